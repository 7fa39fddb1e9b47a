"""`ottla brokers`: list brokers, and drain them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.completion.values import complete_brokers
from ottla.cli.errors import CommandFailed
from ottla.cli.lazy import is_installed
from ottla.cli.options.common import json_option
from ottla.cli.options.confirmation import dry_run_option, yes_option
from ottla.cli.options.connection import with_admin
from ottla.cli.options.types import Integer
from ottla.cli.output.json_text import json_text
from ottla.cli.output.styles import Style, Styled
from ottla.cli.output.tables import table, terminal_width
from ottla.cli.reassign.options import lost_option, throttle_option
from ottla.cli.values.quantities import show_size

if TYPE_CHECKING:
    from ottla.admin import Admin

_STATES = {"up": Style.GOOD, "down": Style.BAD}


@click.group()
def brokers() -> None:
    """List brokers with their replicas and bytes, and drain them.

    \b
    Examples:
      ottla brokers list
      ottla brokers drain 4 --throttle 50MB/s
    """


@brokers.command("list")
@json_option
@with_admin
def list_brokers(admin: Admin, *, as_json: bool) -> None:
    """List brokers: rack, replicas, leaders, bytes on disk, free space. A broker with replicas that is down is shown.

    \b
    Examples:
      ottla brokers list
      ottla brokers list --json
    """
    from ottla.operations.moves.brokers import list_loads

    rows = list_loads(admin.cluster, deadline=admin.cluster.deadline())
    if as_json:
        click.echo(json_text([row.to_json() for row in rows]))
        return
    cells = [
        (
            str(row.id),
            row.address or "-",
            row.rack or "-",
            f"{row.replicas:,}",
            f"{row.leaders:,}",
            f"{row.preferred:,}",
            "-" if row.size_bytes is None else show_size(row.size_bytes),
            "-" if row.usable_bytes is None else show_size(row.usable_bytes),
            Styled(row.state, _STATES.get(row.state, Style.WARNING)),
        )
        for row in rows
    ]
    headings = ("broker", "address", "rack", "replicas", "leaders", "preferred", "bytes", "free", "state")
    click.echo(table(headings, cells, width=terminal_width()))


@brokers.command()
@click.argument("number", metavar="ID", type=Integer(0), shell_complete=complete_brokers)
@throttle_option
@lost_option
@click.option("--ignore-racks", is_flag=True, help="Replicas of a partition may share a rack afterwards.")
@click.option(
    "--plan", "path", type=click.Path(dir_okay=False, path_type=Path), help="The plan's file.  [default: drain-ID.json]"
)
@yes_option
@dry_run_option
@json_option
@with_admin
@click.pass_context
def drain(
    context: click.Context,
    /,
    admin: Admin,
    *,
    number: int,
    throttle: int | str,
    lost_seconds: float,
    ignore_racks: bool,
    path: Path | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move all replicas and leaders away from broker ID, and nothing else. Asks for confirmation.

    Short for 'ottla reassign plan --drain ID' and 'ottla reassign run'. The broker may be one that is down for good.
    It keeps running and gets replicas of new topics: stop it next.

    \b
    Examples:
      ottla brokers drain 4 --dry-run
      ottla brokers drain 4 --throttle 50MB/s --yes
    """
    if not is_installed(("ortools",)):
        raise CommandFailed("'ottla brokers drain' needs extra packages: pip install 'ottla[operations]'")
    from ottla.cli.reassign.carrying import ask_and_run, planned
    from ottla.operations.moves import Goal, Racks

    goal = Goal(drain=frozenset({number}), racks=Racks.IGNORE if ignore_racks else Racks.SPREAD)
    made, found = planned(admin, goal)
    ask_and_run(
        context,
        admin,
        made,
        found,
        path or Path(f"drain-{number}.json"),
        throttle=throttle,
        lost_seconds=lost_seconds,
        yes=yes,
        dry_run=dry_run,
        as_json=as_json,
    )
