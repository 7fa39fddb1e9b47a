"""`ottla work run`: a node of a group, which calls a function with what comes to topics.

It parses and prints; what runs the handler is in `working.running` and `working.processes`.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ottla.cli import Misuse
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.connecting import soon
from ottla.cli.options.fleet import group_option, parse_start, store_option
from ottla.cli.options.general import json_option
from ottla.cli.options.reading import isolation_option, max_batch_bytes_option, parsed
from ottla.cli.options.security import security_options
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.stopping import Stopping
from ottla.cli.values.units import SIZES, parse_size
from ottla.cli.views.work import tally_text
from ottla.cli.working.handlers import Takes, load
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.units import Charter

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.cli.working.running import Tally, Task
    from ottla.engines.fleet.store import Store

_UNITS = Units()
_CHARTER = Charter()
_LOOK_SECONDS = 0.1
_LAG_SECONDS = 1.0
_ASK_SECONDS = 20.0


def _topic(text: str) -> str:
    from ottla.produce.records import topic as check_topic

    check_topic(text)
    return text


@click.command()
@click.option("--handler", required=True, metavar="MODULE:FUNCTION", help="What is called; also in the current folder.")
@click.option(
    "--takes",
    type=click.Choice([one.value for one in Takes]),
    default=Takes.BATCHES.value,
    show_default=True,
    help="What it is called with: the unit, each Arrow batch, each record, or the bare range.",
)
@click.option(
    "--topic",
    "names",
    multiple=True,
    metavar="TOPIC",
    callback=parsed(_topic),
    help="Work on this, too, from now on. Repeatable.  [default: those that the group has]",
)
@group_option
@store_option
@click.option(
    "--start",
    default="latest",
    show_default=True,
    metavar="PLACE",
    callback=parsed(parse_start),
    help="earliest, latest or a time: where to begin with topics that the group does not have yet.",
)
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Units at a time.")
@click.option(
    "--processes", type=click.IntRange(1, 1024), default=1, show_default=True, help="Each with so many threads."
)
@click.option(
    "--ordered/--unordered",
    "ordered",
    default=None,
    help="At most one unit of a partition at a time, in order.  [default: as the group has it; unordered]",
)
@click.option(
    "--unit-records",
    type=click.IntRange(1),
    default=_UNITS.records,
    show_default=True,
    metavar="N",
    help="Offsets of a unit, at most.",
)
@click.option(
    "--unit-bytes",
    default=str(_UNITS.bytes),
    show_default=True,
    metavar="SIZE",
    callback=parsed(parse_size),
    help=f"Of a unit on the broker's disk, about, at most; {SIZES}.",
)
@click.option(
    "--backlog",
    type=click.IntRange(1),
    default=_UNITS.backlog,
    show_default=True,
    metavar="N",
    help="Units that may wait before planning pauses.",
)
@click.option(
    "--max-attempts",
    type=click.IntRange(1),
    metavar="N",
    help=f"After so many a unit comes to the error list.  [default: as the group has it; {_CHARTER.max_attempts}]",
)
@click.option(
    "--lease",
    type=click.FloatRange(0.5, 86_400),
    metavar="SECONDS",
    help="A node that is silent for so long loses its units."
    f"  [default: as the group has it; {_CHARTER.lease_seconds:g}]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="A unit that takes longer counts as failed.  [default: no limit]",
)
@click.option(
    "--on-lost",
    type=click.Choice(["error", "earliest", "latest"]),
    default="error",
    show_default=True,
    help="When a position is not in its log any more: stop with that partition, or go on there.",
)
@click.option(
    "--commit-group", metavar="NAME", help="Commit how far all is done as the offsets of this consumer group."
)
@click.option("--until-end", is_flag=True, help="End when everything is done that is in the topics now.")
@click.option(
    "--events",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write what happens to files in it, for 'ottla work report'.",
)
@isolation_option
@max_batch_bytes_option
@bootstrap_option
@security_options
@json_option
@click.pass_context
def run(
    context: click.Context,
    /,
    *,
    names: tuple[str, ...],
    takes: str,
    threads: int,
    processes: int,
    ordered: bool | None,
    unit_records: int,
    unit_bytes: int,
    backlog: int,
    max_attempts: int | None,
    lease: float | None,
    timeout: float | None,
    start: str | datetime,
    max_batch_bytes: int,
    as_json: bool,
    **given: Any,
) -> None:
    """Call a function with everything that comes to topics, as a node of a group.

    A unit is done when the function has returned for all of it; if it raises, the unit is tried again, here or
    elsewhere, and comes to the error list after --max-attempts. Begin as many nodes as you like, anywhere. Ctrl-C
    finishes the units in hand, a second one gives them back at once. Ends with 0 when done, 1 when something failed
    (with --until-end, when a unit came to the error list), 2 when used wrongly, 130 after Ctrl-C.

    \b
    Examples:
      ottla work run --handler shop:handle --topic clicks --store redis://localhost
      ottla work run --handler shop:one --takes records --topic clicks --store sqlite:///fleet.db --processes 4
      ottla work run --handler shop:handle --topic clicks --start earliest --until-end --json
      ottla work run --handler shop:handle --ordered --group billing --events /var/log/fleet
    """
    from ottla.cli.working.running import Task
    from ottla.fetch.options import Fetching

    insisted = {"ordered": ordered, "max_attempts": max_attempts, "lease_seconds": lease}
    task = Task(
        takes=Takes(takes),
        topics=tuple(dict.fromkeys(names)),
        start=start,
        units=Units(records=unit_records, bytes=unit_bytes, backlog=backlog),
        settings={name: value for name, value in insisted.items() if value is not None},
        most_seconds=timeout,
        threads=threads,
        fetching=Fetching(max_batch_bytes=max_batch_bytes),
        **given,
    )
    load(task.handler, task.takes)
    began = time.monotonic()
    stopping = Stopping("stopping: units in hand are finished; once more gives them back")
    with stopping, _Progress(task) as progress:
        given_up = _prepare(task, progress.store, progress.admin)
        try:
            _work(task, processes, progress, stopping)
        except KeyboardInterrupt:
            progress.live.say("units in hand were given back")
        given_up = progress.store.look().counts.given_up - given_up
    _report(progress.tally, time.monotonic() - began, given_up, as_json=as_json)
    context.exit(stopping.exit_code if stopping.asked else int(task.until_end and given_up > 0))


class _Progress:
    """What is known while it runs, on a live line."""

    def __init__(self, task: Task) -> None:
        from ottla.admin import Admin
        from ottla.cli.working.looking import Looking
        from ottla.cli.working.running import Counting, Rate
        from ottla.config import Timeouts
        from ottla.engines.fleet.store import open_store

        self.store: Store = open_store(task.store, task.group)
        self.admin = Admin(task.bootstrap, security=task.security, timeouts=Timeouts(total=_ASK_SECONDS), retry=soon())
        self.count: Any = Counting()
        """Has a `tally`."""
        self.live = LiveLine(self._line)
        self._looking = Looking(self.store, self.admin, task.group)
        self._rate = Rate()
        self._lag: int | None = None
        self._lag_at = 0.0

    @property
    def tally(self) -> Tally:
        found: Tally = self.count.tally
        return found

    def __enter__(self) -> _Progress:
        self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        with closing(self.store), closing(self.admin):
            self.live.__exit__(*error)

    def _line(self) -> str:
        if time.monotonic() >= self._lag_at:
            self._lag = self._looking.lag()
            self._lag_at = time.monotonic() + _LAG_SECONDS
        tally = self.tally
        lag = "?" if self._lag is None else f"{self._lag:,}"
        return (
            f"{tally.done:,} units done, {tally.records:,} records, {self._rate.of(tally.records):,.0f} records/s,"
            f" {tally.failed:,} failed, lag {lag}"
        )


def _prepare(task: Task, store: Store, admin: Admin) -> int:
    """Everything that can be wrong is found before a node begins; units that were given up until now."""
    from ottla.cli.working.running import settle

    for name in task.topics:
        admin.cluster.topic(name)
    there = store.look()
    if not task.topics and not there.topics:
        raise Misuse(f"group {task.group} has no topics yet: say which with --topic")
    settle(task)
    return there.counts.given_up


def _work(task: Task, processes: int, progress: _Progress, stopping: Stopping) -> None:
    from ottla.cli.working.processes import Processes
    from ottla.cli.working.running import Running

    if processes > 1:
        progress.count = children = Processes(task, processes, progress.live.say)
        children.run(lambda: stopping.asked)
        return
    with Running(task, progress.count) as running:
        while not running.is_over(_LOOK_SECONDS):
            if stopping.asked:
                running.stop()


def _report(tally: Tally, seconds: float, given_up: int, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({**tally._asdict(), "given_up": given_up, "seconds": round(seconds, 3)}))
        return
    click.echo(tally_text(tally, seconds))
    sys.stdout.flush()
    if given_up > 0:
        click.echo(f"{given_up:,} came to the error list of the group: 'ottla work errors list' shows them", err=True)
