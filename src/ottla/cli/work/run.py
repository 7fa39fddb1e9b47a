"""`ottla work run`: a node of a group, which calls a function with all records of topics.

`node` and `processes` run the handler; this module has the options, the progress line and the report.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ottla.cli.completion.values import complete_groups, complete_topics
from ottla.cli.errors import UsageError
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import (
    check_topic,
    isolation_option,
    json_option,
    max_batch_size_option,
    timeout_option,
)
from ottla.cli.options.connection import few_retries
from ottla.cli.options.old import old_flag, old_spelling
from ottla.cli.options.places import STARTS, from_option, until_option
from ottla.cli.options.security import security_options
from ottla.cli.options.store import group_option, store_option
from ottla.cli.options.types import Duration, Integer, Size, parsed
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.stopping import Stopping
from ottla.cli.values.places import Kind, Place, ReaderPlace
from ottla.cli.values.quantities import show_duration, show_size
from ottla.cli.work.handlers import Takes, load
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.units import Charter
from ottla.text import redacted

if TYPE_CHECKING:
    from ottla.admin import Admin
    from ottla.cli.work.node import Tally, Task
    from ottla.engines.fleet.store import Store

_UNITS = Units()
_CHARTER = Charter()
_POLL_SECONDS = 0.1
_LAG_SECONDS = 1.0


@click.command()
@click.option(
    "--handler", required=True, metavar="MODULE:FUNCTION", help="Function to call; also from the current folder."
)
@click.option(
    "--takes",
    type=click.Choice([takes.value for takes in Takes]),
    default=Takes.BATCHES.value,
    show_default=True,
    help="Argument of the function: the unit, each Arrow batch, each record, or the bare range.",
)
@click.option(
    "--topic",
    "names",
    multiple=True,
    metavar="TOPIC",
    callback=parsed(check_topic),
    shell_complete=complete_topics,
    help="Add this topic to the group. Repeatable.  [default: the topics of the group]",
)
@group_option
@store_option
@from_option("Where to start topics that are new to the group", kinds=STARTS - {Kind.LAST}, default="latest")
@old_spelling("--start", "--from", metavar="PLACE")
@until_option("Where to end", kinds=(Kind.LATEST,), default="never")
@old_flag("--until-end", "--until", "latest")
@click.option("--threads", type=Integer(1, 1024), default=1, show_default=True, help="Units at a time.")
@click.option(
    "--processes", type=Integer(1, 1024), default=1, show_default=True, help="Worker processes, each with --threads."
)
@click.option(
    "--ordered/--unordered",
    "ordered",
    default=None,
    help="At most one unit of a partition at a time, in order.  [default: as the group; unordered]",
)
@click.option(
    "--unit-records",
    type=Integer(1),
    default=_UNITS.records,
    show_default=True,
    help="Maximum number of offsets in a unit.",
)
@click.option(
    "--unit-size",
    type=Size(1),
    default=show_size(_UNITS.bytes),
    show_default=True,
    help="Approximate maximum size of a unit on the broker's disk.",
)
@old_spelling("--unit-bytes", "--unit-size")
@click.option(
    "--backlog",
    type=Integer(1),
    default=_UNITS.backlog,
    show_default=True,
    help="Waiting units at which planning pauses.",
)
@click.option(
    "--max-attempts",
    type=Integer(1),
    help=f"Attempts before a unit goes to the error list.  [default: as the group; {_CHARTER.max_attempts}]",
)
@click.option(
    "--lease",
    type=Duration(0.5, 86_400),
    help="How long a node may be silent before it loses its units."
    f"  [default: as the group; {show_duration(_CHARTER.lease_seconds)}]",
)
@click.option(
    "--unit-timeout",
    type=Duration(0.001),
    help="A unit that takes longer fails.  [default: no limit]",
)
@click.option(
    "--on-lost",
    type=click.Choice(["error", "earliest", "latest"]),
    default="error",
    show_default=True,
    help="If records were deleted before they were read: stop that partition, or continue there.",
)
@click.option(
    "--commit-group",
    metavar="NAME",
    shell_complete=complete_groups,
    help="Keep the offsets of this consumer group up to date with what is done.",
)
@click.option(
    "--events",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write event files into this folder, for 'ottla work report'.",
)
@isolation_option
@max_batch_size_option
@bootstrap_option
@security_options
@timeout_option(note="Applies at the start.")
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
    unit_size: int,
    backlog: int,
    max_attempts: int | None,
    lease: float | None,
    unit_timeout: float | None,
    start: ReaderPlace,
    stop: Place | None,
    max_batch_size: int,
    timeout: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Call a function with all records of topics, as a node of a group.

    A unit is done when the function has returned for all of it. If it raises, the unit is retried, here or elsewhere,
    and goes to the error list after --max-attempts. Start any number of nodes, anywhere. Ctrl-C finishes the units in
    hand, a second Ctrl-C gives them back at once. Exit codes: 0 success, 1 failure (with --until latest, also if a unit
    went to the error list), 2 usage error, 130 after Ctrl-C.

    \b
    Examples:
      ottla work run --handler shop:handle --topic clicks --store redis://localhost
      ottla work run --handler shop:handle --takes records --topic clicks --store sqlite:///fleet.db --processes 4
      ottla work run --handler shop:handle --topic clicks --from earliest --until latest --json
      ottla work run --handler shop:handle --ordered --group billing --events /var/log/fleet
    """
    from ottla.cli.work.node import Task
    from ottla.fetch.options import Fetching

    required = {"ordered": ordered, "max_attempts": max_attempts, "lease_seconds": lease}
    task = Task(
        takes=Takes(takes),
        topics=tuple(dict.fromkeys(names)),
        start=start,
        units=Units(records=unit_records, bytes=unit_size, backlog=backlog),
        settings={name: value for name, value in required.items() if value is not None},
        unit_timeout=unit_timeout,
        until_end=stop is not None,
        threads=threads,
        fetching=Fetching(max_batch_bytes=max_batch_size),
        **given,
    )
    load(task.handler, task.takes)
    began = time.monotonic()
    stopping = Stopping("stopping: finishing the units in hand; press Ctrl-C again to give them back")
    with stopping, _Progress(task, timeout=timeout) as progress:
        given_up = _prepare(task, progress.store, progress.admin)
        try:
            _work(task, processes, progress, stopping)
        except KeyboardInterrupt:
            progress.live.say("units in hand were given back")
        given_up = progress.store.look().counts.given_up - given_up
    _report(progress.tally, time.monotonic() - began, given_up, as_json=as_json)
    if given_up > 0 and not as_json:
        units = "1 unit" if given_up == 1 else f"{given_up:,} units"
        click.echo(f"{units} went to the error list: see '{_errors_list(context, task)}'", err=True)
    context.exit(stopping.exit_code if stopping.asked else int(task.until_end and given_up > 0))


class _Progress:
    """What the live line shows while the node runs."""

    def __init__(self, task: Task, *, timeout: float) -> None:
        from ottla.admin import Admin
        from ottla.cli.work.group_status import StatusReader
        from ottla.cli.work.node import RecentRate, TallySink
        from ottla.config import Timeouts
        from ottla.engines.fleet.store import open_store

        self.store: Store = open_store(task.store, task.group)
        timeouts = Timeouts(total=timeout)
        self.admin = Admin(task.bootstrap, security=task.security, timeouts=timeouts, retry=few_retries())
        self.counter: Any = TallySink()
        """Has a `tally`."""
        self.live = LiveLine(self._line)
        self._status = StatusReader(self.store, self.admin, task.group)
        self._rate = RecentRate()
        self._lag: int | None = None
        self._lag_at = 0.0

    @property
    def tally(self) -> Tally:
        tally: Tally = self.counter.tally
        return tally

    def __enter__(self) -> _Progress:
        self.live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        with closing(self.store), closing(self.admin):
            self.live.__exit__(*error)

    def _line(self) -> str:
        if time.monotonic() >= self._lag_at:
            self._lag = self._status.lag()
            self._lag_at = time.monotonic() + _LAG_SECONDS
        tally = self.tally
        lag = "?" if self._lag is None else f"{self._lag:,}"
        return (
            f"{tally.done:,} units done, {tally.records:,} records, {self._rate.update(tally.records):,.0f} records/s,"
            f" {tally.failed:,} failed, lag {lag}"
        )


def _prepare(task: Task, store: Store, admin: Admin) -> int:
    """Check everything before a node starts; return the number of failed units so far."""
    from ottla.cli.work.node import agree

    for name in task.topics:
        admin.cluster.topic(name)
    snapshot = store.look()
    if not task.topics and not snapshot.topics:
        raise UsageError(f"group {task.group} has no topics yet: name one with --topic")
    agree(task)
    return snapshot.counts.given_up


def _work(task: Task, processes: int, progress: _Progress, stopping: Stopping) -> None:
    from ottla.cli.work.node import HandlerNode
    from ottla.cli.work.processes import WorkerProcesses

    if processes > 1:
        progress.counter = children = WorkerProcesses(task, processes, progress.live.say)
        children.run(lambda: stopping.asked)
        return
    with HandlerNode(task, progress.counter) as node:
        while not node.wait(_POLL_SECONDS):
            if stopping.asked:
                node.stop()


def _report(tally: Tally, seconds: float, given_up: int, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({**tally._asdict(), "given_up": given_up, "seconds": round(seconds, 3)}))
        return
    click.echo(_tally_text(tally, seconds))
    sys.stdout.flush()


def _errors_list(context: click.Context, task: Task) -> str:
    """Return the command that lists the failed units of this group."""
    import shlex

    given = {"group": ("--group", task.group), "store": ("--store", task.store)}
    words = [
        word
        for name, (option, value) in given.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        for word in (option, redacted(value))
    ]
    return shlex.join(["ottla", "work", "errors", "list", *words])


def _tally_text(tally: Tally, seconds: float) -> str:
    text = f"{_count(tally.done)} done: {tally.records:,} records ({show_size(tally.size_bytes)}) in {seconds:.1f} s"
    for count, what in ((tally.failed, "failed"), (tally.given_back, "given back"), (tally.lost, "lost")):
        text += f", {count:,} {what}" if count else ""
    return text


def _count(count: int) -> str:
    return f"{count:,} unit{'s' if count != 1 else ''}"
