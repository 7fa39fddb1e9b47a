"""`ottla lag show`: the lag of groups, once, after a while, or as a live table."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ottla.cli.errors import CommandFailed, Incomplete, UsageError
from ottla.cli.lag.options import groups_argument, make_poller, make_readers, rare_collections, reading_options
from ottla.cli.lag.view import snapshot_text
from ottla.cli.options.common import json_option
from ottla.cli.options.connection import with_admin
from ottla.cli.options.types import Duration
from ottla.cli.output.json_text import json_text
from ottla.cli.output.tables import terminal_width
from ottla.cli.terminal.interruption import Interrupted, Interruption, output_pipe
from ottla.cli.terminal.screen import Screen
from ottla.text import printable

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.operations.lag.values import Snapshot
    from ottla.operations.lag.watcher import Watcher

_POLLS = 12
"""With --for: enough to fill a window."""
_LEAST_SECONDS = 0.2


@click.command()
@groups_argument
@reading_options
@click.option(
    "--for",
    "seconds",
    type=Duration(1, 86_400),
    metavar="DURATION",
    help="Watch for this long, then print: one look tells no state and no trend.",
)
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option("--every", type=Duration(0.2, 86_400), default="2s", show_default=True, help="How often --watch looks.")
@json_option
@with_admin
@click.pass_context
def show(
    context: click.Context,
    /,
    *,
    admin: Admin,
    groups: tuple[str, ...],
    topics: re.Pattern[str] | None,
    with_internal: bool,
    checkpoints: tuple[Path, ...],
    journal: str,
    isolation: str,
    seconds: float | None,
    watch: bool,
    every: float,
    as_json: bool,
) -> None:
    """Show the lag of groups (default: all) in every partition that they read.

    The seconds are how much older the first unread record is than the newest one, by the headers of their batches.
    The states are Burrow's (OK, WARN, STOP, STALL, REWIND), and LOST, AHEAD, NONE, UNKNOWN. One look tells no state of
    a group that lags: add --for or --watch, or ask 'ottla lag serve'. With --json, one object a line. Exit code 4: a
    broker or a group could not be read.

    \b
    Examples:
      ottla lag
      ottla lag billing --for 30s
      ottla lag --topic 'shop\\..*' --watch
      ottla lag --spark-checkpoint /data/queries/clicks --json
    """
    if watch and seconds is not None:
        raise UsageError("--for and --watch exclude each other: --for ends by itself")
    from ottla.operations.lag.evaluate import Evaluator
    from ottla.operations.lag.watcher import Watcher

    with ExitStack() as resources, rare_collections():
        poller = make_poller(
            admin.cluster, groups=groups, topics=topics, with_internal=with_internal, isolation=isolation
        )
        others = make_readers(
            resources, admin.cluster, groups=groups, topics=topics, checkpoints=checkpoints, journal=journal
        )
        watcher = Watcher(poller, Evaluator(), every=every, others=others)
        if watch:
            code = _watch(watcher, every, as_json=as_json)
            context.exit(code)
        snapshot = _after(watcher, seconds)
        _require(groups, snapshot)
        _print(snapshot, as_json=as_json)
        _report(snapshot)


def _after(watcher: Watcher, seconds: float | None) -> Snapshot:
    """Look once, or as often as fills a window within `seconds`, and return the last look."""
    snapshot = watcher.look()
    if seconds is None:
        return snapshot
    until, pause = time.monotonic() + seconds, max(_LEAST_SECONDS, seconds / _POLLS)
    while (left := until - time.monotonic()) > 0:
        time.sleep(min(pause, left))
        snapshot = watcher.look()
    return snapshot


def _watch(watcher: Watcher, every: float, *, as_json: bool) -> int:
    from ottla.errors import OttlaError

    with Interruption(output_pipe()) as interruption, suppress(Interrupted):
        screen = Screen(is_plain=as_json)
        while True:
            try:
                snapshot = interruption.wait(watcher.look)
            except OttlaError as error:
                click.echo(f"warning: {printable(str(error).partition(chr(10))[0])}", err=True)
            else:
                with suppress(BrokenPipeError):
                    _print(snapshot, as_json=as_json, show=screen.show)
            interruption.wait(lambda: time.sleep(every))
    return interruption.exit_code


def _require(groups: tuple[str, ...], snapshot: Snapshot) -> None:
    missing = sorted(set(groups) - {group.name for group in snapshot.groups})
    if missing and not snapshot.away:
        names = ", ".join(map(printable, missing))
        raise CommandFailed(
            f"group{'s' if len(missing) != 1 else ''} {names} not found: 'ottla groups list' shows all groups"
        )


def _print(snapshot: Snapshot, *, as_json: bool, show: Callable[[str], None] = click.echo) -> None:
    if as_json:
        at = round(snapshot.at, 3)
        for row in snapshot.rows():
            click.echo(json_text({**row.to_json(), "at": at}))
        for group in snapshot.groups:
            if group.error is not None and not group.rows:
                click.echo(
                    json_text({"group": group.name, "type": str(group.type), "state": "UNKNOWN", "note": group.error})
                )
        return
    show(snapshot_text(snapshot, width=terminal_width()))


def _report(snapshot: Snapshot) -> None:
    """Say what could not be read. Raises `Incomplete` if anything could not."""
    problems = [f"broker {number} did not answer: {reason}" for number, reason in sorted(snapshot.away.items())]
    problems += [f"group {group.name}: {group.error}" for group in snapshot.groups if group.error is not None]
    for problem in problems[:-1]:
        click.echo(f"warning: {printable(problem.partition(chr(10))[0])}", err=True)
    if problems:
        raise Incomplete(problems[-1].partition("\n")[0])
