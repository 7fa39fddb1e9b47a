"""`ottla replay`: an archive, or a part of it, back into a topic, exactly once.

The command checks everything before it writes anything, runs the replay on an engine and reports.
"""

from __future__ import annotations

import json
import re
import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from ottla.cli.completion.values import complete_topics
from ottla.cli.errors import UsageError
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import check_topic, json_option, timeout_option, workers_option
from ottla.cli.options.confirmation import confirm, yes_option
from ottla.cli.options.connection import require_brokers
from ottla.cli.options.places import from_option, until_option
from ottla.cli.options.security import security_options
from ottla.cli.options.types import parsed
from ottla.cli.output.pace import Pace, progress_line, records_rate
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.spark import spark_session
from ottla.cli.terminal.stopping import Stopping
from ottla.cli.values.places import Kind, Place
from ottla.cli.values.quantities import parse_size, show_size
from ottla.errors import InputError

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.jobs.replay_plan import Plan
    from ottla.jobs.replay_throttle import Rate, ReplayControl
    from ottla.jobs.replay_where import Condition
    from ottla.jobs.replays import ReplayReport

_INTERRUPTED = 130
_WORKERS = 4
"""The same as `jobs.replays.WORKERS`, which is not imported to show the help."""
_RATE = re.compile(r"\s*([0-9.]+)\s*([kKmM]?)\s*(?:/s)?\s*")
_BYTE_RATE = re.compile(r"\s*(.*[bB])\s*(?:/s)?\s*")
_THOUSANDS = {"": 1, "k": 1_000, "m": 1_000_000}
_STARTS = (Kind.EARLIEST, Kind.OFFSET, Kind.TIME)
_ENDS = (Kind.LATEST, Kind.OFFSET, Kind.TIME)


def _rate(text: str) -> Rate:
    from ottla.jobs.replay_throttle import Rate, Unit

    try:
        if match := _BYTE_RATE.fullmatch(text):
            return Rate(parse_size(match[1]), Unit.BYTES)
        if match := _RATE.fullmatch(text):
            return Rate(float(match[1]) * _THOUSANDS[match[2].lower()])
    except (ValueError, InputError):
        pass
    raise ValueError(f"{text!r} is not a rate: use records (5000/s, 20k/s) or bytes (10MB/s) per second")


def _condition(text: str) -> Condition:
    from ottla.jobs import replay_where

    return replay_where.parse(text)


@click.command()
@click.argument("path")
@click.option(
    "--to",
    "target",
    required=True,
    metavar="TOPIC",
    callback=parsed(check_topic),
    shell_complete=complete_topics,
    help="Topic to write to; it must exist.",
)
@click.option("--topic", "topics", multiple=True, metavar="SOURCE", help="Only records of this topic. Repeatable.")
@from_option("Only records from here on, by source offset or timestamp", kinds=_STARTS, is_absolute=True)
@until_option("Only records before this place", kinds=_ENDS, default="the end of the archive", is_absolute=True)
@click.option("--where", metavar="EXPR", callback=parsed(_condition), help="Only records that match this condition.")
@click.option("--keep-partitions", is_flag=True, help="Keep partition numbers instead of partitioning by key.")
@click.option("--rate", metavar="N/s", callback=parsed(_rate), help="Limit records (5000/s) or bytes (10MB/s).")
@click.option("--name", metavar="NAME", help="Name to resume the replay by.  [default: made from the selection]")
@click.option("--again", is_flag=True, help="Write everything once more, under a new name, which is printed.")
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="zstd",
    show_default=True,
    help="Compression of the written batches.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="What does the work: this process, or Spark.",
)
@yes_option
@workers_option("--workers", f"With --engine local: source partitions at a time.  [default: {_WORKERS}]")
@click.option("--master", metavar="URL", help="With --engine spark: where Spark runs.  [default: local[*]]")
@bootstrap_option
@security_options
@timeout_option("60s")
@json_option
@click.pass_context
def replay(
    context: click.Context,
    /,
    path: str,
    *,
    target: str,
    topics: tuple[str, ...],
    start: Place,
    stop: Place | None,
    where: Condition | None,
    keep_partitions: bool,
    rate: Rate | None,
    name: str | None,
    again: bool,
    compression: str,
    engine: str,
    yes: bool,
    workers: int | None,
    master: str | None,
    bootstrap: str,
    security: Security,
    timeout: float,
    as_json: bool,
) -> None:
    """Write the records of the archive PATH to a topic, with their keys, headers and timestamps.

    PATH is an archive of 'ottla archive', or a folder of Parquet files with the columns of Spark's Kafka connector.
    Each source partition is replayed in offset order, in transactions: read-committed readers see every record exactly
    once, even if the replay is killed. Run the same command again to resume. Exit codes: 0 success, 1 failure, 2 usage
    error, 130 after Ctrl-C.

    \b
    --where compares key, value, header.NAME, topic, partition, offset and timestamp with 'texts' and numbers, using
    = != < <= > >=, in (...), contains, matches (a regular expression), is null; joined by and, or, not, parentheses.

    \b
    Examples:
      ottla replay /data/clicks --to clicks-again
      ottla replay /data/lake --topic clicks --to repaired --from 2026-01-31T00:00Z --until 2026-02-01T00:00Z
      ottla replay /data/lake --to errors --where "value contains 'error' and header.site = 'oslo'"
      ottla replay /data/clicks --to clicks-copy --keep-partitions --rate 10MB/s
    """
    from ottla.config import Timeouts
    from ottla.jobs.replay_partition import CLIENT_ID, Placement, Target
    from ottla.jobs.replay_plan import plan
    from ottla.jobs.replay_source import open_source
    from ottla.jobs.replays import prove, select
    from ottla.net.access import ClusterAccess

    _check_use(engine=engine, master=master, workers=workers, name=name, again=again, span=(start, stop))
    source = open_source(path)
    require_brokers(bootstrap, security, timeout=timeout)
    planned = plan(
        source,
        select(
            topics,
            start=start if isinstance(start, datetime | int | str) else None,
            stop=stop if isinstance(stop, datetime | int | str) else None,
            where=where,
        ),
        Target(
            access=ClusterAccess(
                bootstrap=bootstrap, security=security, client_id=CLIENT_ID, timeouts=Timeouts(total=timeout)
            ),
            topic=target,
            placement=Placement.KEPT if keep_partitions else Placement.BY_KEY,
            compression=compression,
        ),
        name=name,
        since=time.time() if again else None,
    )
    for caution in planned.cautions:
        click.echo(f"note: {caution}", err=True)
    if planned.is_into_source and not any(planned.positions.values()):  # who resumes it has said so before
        confirm(f"{target} is the topic that was archived: it gets its records once more", yes=yes, has_dry_run=False)
    try:
        report, code = _by_spark(planned, master, rate) if engine == "spark" else _by_threads(planned, workers, rate)
    except KeyboardInterrupt:
        click.echo(f"aborted: run the same command to resume (replay {planned.name})", err=True)
        context.exit(_INTERRUPTED)
    _show_report(report, as_json=as_json)
    prove(report)
    context.exit(code)


def _check_use(
    *,
    engine: str,
    master: str | None,
    workers: int | None,
    name: str | None,
    again: bool,
    span: tuple[Place, Place | None],
) -> None:
    if engine == "local" and master:
        raise UsageError("--master needs --engine spark")
    if engine == "spark" and workers:
        raise UsageError("--workers needs --engine local: Spark uses all its cores")
    if again and name:
        raise UsageError("--again and --name are mutually exclusive: a new --name writes everything once more, too")
    start, stop = span
    is_empty = isinstance(start, datetime) and isinstance(stop, datetime) and stop <= start
    if is_empty or (isinstance(start, int) and isinstance(stop, int) and stop <= start):
        raise UsageError("--until must be after --from")


def _by_threads(planned: Plan, workers: int | None, rate: Rate | None) -> tuple[ReplayReport, int]:
    """Return what was done, and the exit code: that of a signal if one ended it."""
    from ottla.jobs.engine_choice import choose_engine
    from ottla.jobs.replay_throttle import ReplayControl
    from ottla.jobs.replays import run_replay

    control = ReplayControl(rate)
    show = _Progress(planned, control)
    with (
        Stopping("stopping after the current chunk; press Ctrl-C again to abort") as stopping,
        LiveLine(show.line),
    ):
        report = run_replay(
            planned,
            choose_engine("local", workers=workers or _WORKERS),
            control=control,
            is_stopped=lambda: stopping.asked > 0,
        )
    return report, stopping.exit_code if stopping.asked else 0


def _by_spark(planned: Plan, master: str | None, rate: Rate | None) -> tuple[ReplayReport, int]:
    """Return what was done. A signal ends it at once; open transactions are aborted when the replay is resumed."""
    from ottla.jobs.engine_choice import choose_engine
    from ottla.jobs.replay_throttle import ReplayControl
    from ottla.jobs.replays import run_replay

    # Tasks cannot coordinate: each gets its share of the rate, as if all ran at the same time.
    control = ReplayControl(None if rate is None else rate.divided(len(planned.ranges)))
    if not planned.ranges:
        return run_replay(planned, choose_engine("local"), control=control), 0  # no session for nothing
    with spark_session("ottla replay", master) as spark:
        return run_replay(planned, choose_engine("spark", spark=spark), control=control), 0


class _Progress:
    """The live line of a replay."""

    def __init__(self, planned: Plan, control: ReplayControl) -> None:
        self._planned = planned
        self._control = control
        self._records, self._share = Pace(), Pace()

    def line(self) -> str:
        now, control = time.monotonic(), self._control
        self._records.observe(now, control.records)
        self._share.observe(now, self._planned.share_done(control.positions()))
        size = show_size(control.size_bytes)
        return progress_line(
            f"{control.records:,} records replayed", size, records_rate(self._records), pace=self._share, total=1.0
        )


def _show_report(report: ReplayReport, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(report.to_json()))
        return
    if report.had_nothing_left:
        click.echo(f"nothing to do: the replay {report.name} is finished; --again writes everything once more")
        return
    proof = "; the fingerprints match the archive" if report.is_proven else ""
    click.echo(
        f"{report.records:,} records ({show_size(report.size_bytes)}) replayed into {report.plan.target.topic}"
        f" in {report.seconds:.1f} s{proof}"
    )
    if not report.is_finished:
        click.echo(f"stopped before the end: run the same command to resume (replay {report.name})", err=True)
