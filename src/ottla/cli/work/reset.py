"""`ottla work reset`: move the positions of a group, or change its settings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import UsageError
from ottla.cli.options.common import check_topic, json_option, partition_option
from ottla.cli.options.confirmation import confirm, dry_run_option, yes_option
from ottla.cli.options.connection import with_admin
from ottla.cli.options.places import STARTS, to_option
from ottla.cli.options.store import look, with_store
from ottla.cli.options.types import Duration, Integer, parsed
from ottla.cli.output.tables import table, terminal_width
from ottla.cli.reset import Move, move_dict, moves_text
from ottla.cli.values.places import Place
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.engines.fleet.store import Store


@click.command()
@click.option(
    "--topic", metavar="TOPIC", callback=parsed(check_topic), shell_complete=complete_topics, help="The topic to reset."
)
@partition_option
@to_option("Where to move the positions", kinds=STARTS)
@click.option(
    "--settings",
    "is_settings",
    is_flag=True,
    help="Change the settings of the group instead, with the next three options, while no node runs.",
)
@click.option("--ordered/--unordered", "ordered", default=None, help="At most one unit of a partition at a time.")
@click.option("--max-attempts", type=Integer(1), help="Attempts before a unit goes to the error list.")
@click.option("--lease", type=Duration(0.5, 86_400), help="How long a node may be silent before it loses its units.")
@yes_option
@dry_run_option
@json_option
@with_store
@with_admin
def reset(
    admin: Admin,
    *,
    store: Store,
    group: str,
    topic: str | None,
    partitions: list[int] | None,
    goal: Place | None,
    yes: bool,
    dry_run: bool,
    is_settings: bool,
    ordered: bool | None,
    max_attempts: int | None,
    lease: float | None,
    as_json: bool,
) -> None:
    """Move the positions of a group in a topic, and show them before and after. Asks for confirmation.

    Drops all units of these partitions: waiting, in flight and on the error list. Positions outside a log are cut to
    its ends. If the topic was deleted and created again, the group continues with the new one.

    \b
    Examples:
      ottla work reset --topic clicks --to -2h --store redis://localhost --dry-run
      ottla work reset --topic clicks --partition 0,2 --to 1000 --store redis://localhost
      ottla work reset --settings --ordered --max-attempts 3 --store redis://localhost
    """
    from ottla.cli.work import changes

    given = {"ordered": ordered, "max_attempts": max_attempts, "lease_seconds": lease}
    settings = {name: value for name, value in given.items() if value is not None}
    if is_settings:
        if topic is not None or partitions is not None or goal is not None:
            raise UsageError("--settings keeps all positions: leave out --topic, --partition and --to")
        _reset_settings(admin, store, group, settings, yes=yes, dry_run=dry_run, as_json=as_json)
        return
    if settings:
        raise UsageError("--ordered, --max-attempts and --lease need --settings")
    if topic is None or goal is None:
        raise UsageError("--topic TOPIC and --to PLACE are required, for example --topic clicks --to earliest")
    look(store, group)
    moves = changes.plan_reset(admin, store, group, topic, partitions, goal)
    if not dry_run:
        if not yes:
            click.echo(moves_text(moves, width=terminal_width()), err=True)
        count = f"{len(moves)} partition{'s' if len(moves) != 1 else ''}"
        confirm(f"this resets {count} of {topic} in group {printable(group)}", yes=yes)
        changes.reset(admin, store, group, topic, moves)
    _show(group, moves, dry_run=dry_run, as_json=as_json)


def _reset_settings(
    admin: Admin, store: Store, group: str, settings: dict[str, Any], *, yes: bool, dry_run: bool, as_json: bool
) -> None:
    from ottla.cli.work import changes

    if not settings:
        raise UsageError("--settings needs --ordered or --unordered, --max-attempts or --lease")
    look(store, group)
    before, after = changes.settings_of(store, settings)
    changes.require_idle(store, group)
    changed = {name: [getattr(before, name), getattr(after, name)] for name in settings}
    if not dry_run:
        summary = ", ".join(f"{name} from {old} to {new}" for name, (old, new) in changed.items())
        confirm(f"this changes {summary} in group {printable(group)}", yes=yes)
        changes.recreate(admin, store, group, after)
    if as_json:
        click.echo(json.dumps({"group": group, "reset": not dry_run, "settings": changed}))
        return
    click.echo(f"the settings of group {group} {'would be' if dry_run else 'are'} changed:")
    rows = [(name, str(old), str(new)) for name, (old, new) in changed.items()]
    click.echo(table(("setting", "before", "after"), rows, width=terminal_width(), indent=2))


def _show(group: str, moves: list[Move], *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        rows = [move_dict(move) for move in moves]
        click.echo(json.dumps({"group": group, "reset": not dry_run, "partitions": rows}))
        return
    click.echo(f"group {group} {'would be' if dry_run else 'is'} reset:")
    click.echo(moves_text(moves, width=terminal_width()))
