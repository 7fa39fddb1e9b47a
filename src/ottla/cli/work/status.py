"""`ottla work status` and `ottla work units`: the state of a group, once or as a live table."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import UsageError
from ottla.cli.options.common import json_option
from ottla.cli.options.connection import with_admin
from ottla.cli.options.store import look, with_store
from ottla.cli.options.types import Integer
from ottla.cli.output.tables import terminal_width
from ottla.cli.terminal.interruption import Interrupted, Interruption, output_pipe
from ottla.cli.terminal.screen import Screen
from ottla.cli.work.view import status_dict, status_text, unit_dict, units_text
from ottla.errors import StoreUnavailable
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.cli.work.group_status import GroupStatus, StatusReader
    from ottla.engines.fleet.store import Store
    from ottla.engines.fleet.units import Out, Snapshot
    from ottla.model import OffsetRange

_WATCH_SECONDS = 1.0


@click.command()
@click.option("--watch", is_flag=True, help="Refresh every second until Ctrl-C; rates are those of the last second.")
@json_option
@with_store
@with_admin
@click.pass_context
def status(context: click.Context, /, admin: Admin, *, store: Store, group: str, watch: bool, as_json: bool) -> None:
    """Show the planner, nodes, units, failures and lag of a group.

    Lag is the distance from what is done to the end of the log. Rates of nodes are averages since their start; with
    --watch, between two of their reports. --watch --json prints one object on a line every second.

    \b
    Examples:
      ottla work status --store redis://localhost
      ottla work status --store redis://localhost --watch
      ottla work status --store sqlite:///fleet.db --json | jq .lag
    """
    from ottla.cli.work.group_status import StatusReader

    reader = StatusReader(store, admin, group)
    if not watch:
        _show(reader.read(), as_json=as_json)
        return
    with Interruption(output_pipe()) as interruption, suppress(Interrupted):
        screen = Screen(is_plain=as_json)
        while True:
            with suppress(BrokenPipeError):
                screen.show(_refreshed(reader, interruption, as_json=as_json))
            interruption.wait(lambda: time.sleep(_WATCH_SECONDS))
    context.exit(interruption.exit_code)


@click.command()
@click.option("--waiting", is_flag=True, help="Only waiting units.")
@click.option("--out", is_flag=True, help="Only units in flight.")
@click.option("--topic", metavar="TOPIC", shell_complete=complete_topics, help="Only units of this topic.")
@click.option("--limit", type=Integer(1), default=100, show_default=True, help="Show at most N units.")
@json_option
@with_store
def units(*, store: Store, group: str, waiting: bool, out: bool, topic: str | None, limit: int, as_json: bool) -> None:
    """List units: those in flight with their holder, then those waiting, by offset.

    \b
    Examples:
      ottla work units --store redis://localhost --out
      ottla work units --store redis://localhost --waiting --topic clicks --limit 10 --json
    """
    if waiting and out:
        raise UsageError("--waiting and --out are mutually exclusive; without them, both are shown")
    snapshot = look(store, group)
    in_flight = [] if waiting else [unit for unit in snapshot.out if topic in (None, unit.range.topic)][:limit]
    left = limit - len(in_flight)
    rest = [] if out or not left else _waiting(store, snapshot, topic, left)
    if as_json:
        rows = [unit_dict(unit.range, unit) for unit in in_flight] + [unit_dict(unit) for unit in rest]
        click.echo(json.dumps(rows))
        return
    if in_flight or rest:
        click.echo(units_text(rest, in_flight, width=terminal_width()))
    _report_rest(snapshot, in_flight, rest, topic, waiting=waiting, out=out)


def _show(status: GroupStatus, *, as_json: bool) -> None:
    if status.problem:
        click.echo(f"lag is unknown: {status.problem}", err=True)
    click.echo(json.dumps(status_dict(status)) if as_json else status_text(status, width=terminal_width()))


def _refreshed(reader: StatusReader, interruption: Interruption, *, as_json: bool) -> str:
    try:
        status = interruption.wait(reader.read)
    except StoreUnavailable as error:
        return json.dumps({"trouble": str(error)}) if as_json else str(error)
    if as_json:
        return json.dumps(status_dict(status))
    problem = f"\n  lag is unknown: {printable(status.problem)}" if status.problem else ""
    return status_text(status, width=terminal_width()) + problem


def _waiting(store: Store, snapshot: Snapshot, topic: str | None, limit: int) -> list[OffsetRange]:
    if topic is None:
        return store.waiting(None, limit)
    units: list[OffsetRange] = []
    for state in snapshot.partitions:
        if state.partition.topic == topic and state.waiting and len(units) < limit:
            units += store.waiting(state.partition, limit - len(units))
    return units


def _report_rest(
    snapshot: Snapshot, in_flight: list[Out], rest: list[OffsetRange], topic: str | None, *, waiting: bool, out: bool
) -> None:
    """Print how many more units there are, or that there are none."""
    states = [state for state in snapshot.partitions if topic in (None, state.partition.topic)]
    total = sum((0 if waiting else state.out) + (0 if out else state.waiting) for state in states)
    more = total - len(in_flight) - len(rest)
    if not in_flight and not rest:
        click.echo("no such units", err=True)
    elif more > 0:
        click.echo(f"and {more:,} more: --limit shows them", err=True)
