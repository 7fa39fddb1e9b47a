"""`ottla throttles`: show replication throttles, and clear those that no running move needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ottla.cli.errors import CommandFailed
from ottla.cli.options.common import json_option
from ottla.cli.options.confirmation import confirm, dry_run_option, yes_option
from ottla.cli.options.connection import with_admin
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import table, terminal_width
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.operations.moves.leftovers import Found


@click.group()
def throttles() -> None:
    """Show replication throttles, and clear those left behind by moves that ended or were killed.

    \b
    Examples:
      ottla throttles show
      ottla throttles clear
    """


@throttles.command()
@json_option
@with_admin
def show(admin: Admin, *, as_json: bool) -> None:
    """Show rates of brokers and throttled replicas of topics.

    A note says which of them no running move needs.

    \b
    Examples:
      ottla throttles show
      ottla throttles show --json
    """
    found = _find(admin)
    if as_json:
        click.echo(json_text(found.to_json()))
    else:
        click.echo(_text(found))


@throttles.command()
@yes_option
@dry_run_option
@json_option
@with_admin
def clear(admin: Admin, *, yes: bool, dry_run: bool, as_json: bool) -> None:
    """Remove the throttles that no running move needs. Asks for confirmation.

    Throttled replicas of partitions that move stay, and so do rates while anything moves, and lists that are '*', which
    people set on purpose. A broker that is down keeps its rate, which harms nothing without throttled replicas.

    \b
    Examples:
      ottla throttles clear --dry-run
      ottla throttles clear --yes
    """
    from ottla.operations.moves.leftovers import clear_leftovers

    found = _find(admin)
    failed: dict[int, str] = {}
    if found.has_leftovers and not dry_run:
        if not as_json:
            click.echo(_text(found))
        confirm(f"this removes {found.summary}", yes=yes)
        found = _find(admin)  # moves may have begun meanwhile
        failed = clear_leftovers(admin.cluster, found, deadline=admin.cluster.deadline())
    if as_json:
        click.echo(json_text({**found.to_json(), "cleared": found.has_leftovers and not dry_run}))
    elif found.has_leftovers:
        click.echo(f"{'would remove' if dry_run else 'removed'} {found.summary}")
    else:
        click.echo("no throttle is left over")
    if failed:
        lines = "".join(f"\n  broker {broker}: {printable(reason)}" for broker, reason in sorted(failed.items()))
        raise CommandFailed(f"some rates were not removed:{lines}")


def _find(admin: Admin) -> Found:
    from ottla.operations.moves.leftovers import find_throttles

    return find_throttles(admin.cluster, deadline=admin.cluster.deadline())


def _text(found: Found) -> str:
    rows = [(where, setting, value, note) for where, setting, value, note in found.rows()]
    if not rows:
        return "no throttles"
    return table(("where", "setting", "value", "note"), rows, width=terminal_width())
