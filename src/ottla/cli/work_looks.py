"""`ottla work status` and `ottla work units`: how a group stands, once or as a live table.

What is seen comes from `working.looking`, how it looks is in `views.work`. Nothing is changed here.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from ottla.cli import Misuse
from ottla.cli.options.connecting import with_admin
from ottla.cli.options.fleet import look, with_store
from ottla.cli.options.general import json_option
from ottla.cli.terminal.interrupting import Interrupted, Interruption, output_pipe
from ottla.cli.views.tables import terminal_width
from ottla.cli.views.work import status_dict, status_text, unit_dict, units_text
from ottla.errors import StoreUnavailable

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.cli.working.looking import Looking, Standing
    from ottla.engines.fleet.store import Store
    from ottla.engines.fleet.units import Out, Snapshot
    from ottla.model import OffsetRange

_WATCH_SECONDS = 1.0
_REDRAW = "\x1b[H\x1b[J"
_CLEAR = "\x1b[2J"


@click.command()
@click.option("--watch", is_flag=True, help="Look again each second, until Ctrl-C; rates are of the last second.")
@json_option
@with_store
@with_admin
@click.pass_context
def status(context: click.Context, /, admin: Admin, *, store: Store, group: str, watch: bool, as_json: bool) -> None:
    """Show how a group stands: who plans, the nodes, units that wait and are in flight, what failed, lag.

    Lag is the distance from what is done to the end of the log. Rates of nodes are since they began, with --watch
    those between two of their reports. With --watch and --json there is one object in a line each second.

    \b
    Examples:
      ottla work status --store redis://localhost
      ottla work status --store redis://localhost --watch
      ottla work status --store sqlite:///fleet.db --json | jq .lag
    """
    from ottla.cli.working.looking import Looking

    looking = Looking(store, admin, group)
    if not watch:
        _show(looking.look(), as_json=as_json)
        return
    with Interruption(output_pipe()) as interruption, suppress(Interrupted):
        if sys.stdout.isatty() and not as_json:
            click.echo(_CLEAR, nl=False)
        while True:
            with suppress(BrokenPipeError):
                _watched(looking, interruption, as_json=as_json)
            interruption.wait(lambda: time.sleep(_WATCH_SECONDS))
    context.exit(interruption.exit_code)


@click.command()
@click.option("--waiting", is_flag=True, help="Only those that wait.")
@click.option("--out", is_flag=True, help="Only those that somebody works on.")
@click.option("--topic", metavar="TOPIC", help="Only of this one.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="At most so many.")
@json_option
@with_store
def units(*, store: Store, group: str, waiting: bool, out: bool, topic: str | None, limit: int, as_json: bool) -> None:
    """List units: those that somebody works on with their holder, then those that wait, by offset.

    \b
    Examples:
      ottla work units --store redis://localhost --out
      ottla work units --store redis://localhost --waiting --topic clicks --limit 10 --json
    """
    if waiting and out:
        raise Misuse("--waiting and --out exclude one another; without them, both are shown")
    seen = look(store, group)
    held = [] if waiting else [one for one in seen.out if topic in (None, one.range.topic)][:limit]
    left = limit - len(held)
    rest = [] if out or not left else _waiting(store, seen, topic, left)
    if as_json:
        click.echo(json.dumps([unit_dict(one.range, one) for one in held] + [unit_dict(unit) for unit in rest]))
        return
    if held or rest:
        click.echo(units_text(rest, held, width=terminal_width()))
    _tell_rest(seen, held, rest, topic, waiting=waiting, out=out)


def _show(one: Standing, *, as_json: bool) -> None:
    if one.trouble:
        click.echo(f"lag is not known: {one.trouble}", err=True)
    click.echo(json.dumps(status_dict(one)) if as_json else status_text(one, width=terminal_width()))


def _watched(looking: Looking, interruption: Interruption, *, as_json: bool) -> None:
    try:
        one = interruption.wait(looking.look)
    except StoreUnavailable as error:
        text = json.dumps({"trouble": str(error)}) if as_json else str(error)
    else:
        trouble = f"\n  lag is not known: {one.trouble}" if one.trouble else ""
        text = json.dumps(status_dict(one)) if as_json else status_text(one, width=terminal_width()) + trouble
    if sys.stdout.isatty() and not as_json:
        rows = shutil.get_terminal_size().lines - 1
        text = _REDRAW + "\n".join(text.splitlines()[:rows])
    click.echo(text)


def _waiting(store: Store, seen: Snapshot, topic: str | None, most: int) -> list[OffsetRange]:
    if topic is None:
        return store.waiting(None, most)
    found: list[OffsetRange] = []
    for lane in seen.lanes:
        if lane.at.topic == topic and lane.waiting and len(found) < most:
            found += store.waiting(lane.at, most - len(found))
    return found


def _tell_rest(
    seen: Snapshot, held: list[Out], rest: list[OffsetRange], topic: str | None, *, waiting: bool, out: bool
) -> None:
    """That there are more, or none."""
    lanes = [lane for lane in seen.lanes if topic in (None, lane.at.topic)]
    there = sum((0 if waiting else lane.out) + (0 if out else lane.waiting) for lane in lanes)
    more = there - len(held) - len(rest)
    if not held and not rest:
        click.echo("there are no such units", err=True)
    elif more > 0:
        click.echo(f"and {more:,} more: --limit shows them", err=True)
