"""`ottla replay`: an archive, or a part of it, back into a topic, exactly once.

The command checks everything before it writes anything, runs the replay on an engine and reports.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import click

from ottla.cli.errors import CommandFailed, UsageError
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.common import check_topic, json_option, timeout_option, workers_option
from ottla.cli.options.connection import require_brokers
from ottla.cli.options.places import from_option, until_option
from ottla.cli.options.security import security_options
from ottla.cli.options.types import parsed
from ottla.cli.output.bars import bar
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.spark import spark_session
from ottla.cli.terminal.stopping import Stopping
from ottla.cli.values.places import Kind, Place
from ottla.cli.values.quantities import parse_size, show_size
from ottla.errors import InputError

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.jobs.replay_partition import Replayed
    from ottla.jobs.replay_plan import Plan
    from ottla.jobs.replay_throttle import Rate, ReplayControl
    from ottla.jobs.replay_where import Condition
    from ottla.model import TopicPartition

_INTERRUPTED = 130
_WORKERS = 4
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
    from ottla.jobs.replay_partition import Placement, Target
    from ottla.jobs.replay_plan import plan
    from ottla.jobs.replay_source import Selection, open_source

    _check_use(engine=engine, master=master, workers=workers, name=name, again=again, span=(start, stop))
    source = open_source(path)
    require_brokers(bootstrap, security, timeout=timeout)
    planned = plan(
        source,
        Selection(
            topics=tuple(dict.fromkeys(topics)),
            start=start if isinstance(start, datetime) else None,
            stop=stop if isinstance(stop, datetime) else None,
            where=_within_offsets(where, start, stop),
        ),
        Target(
            bootstrap=bootstrap,
            topic=target,
            placement=Placement.KEPT if keep_partitions else Placement.BY_KEY,
            security=security,
            timeouts=Timeouts(total=timeout),
            compression=compression,
        ),
        name=name,
        since=time.time() if again else None,
    )
    for caution in planned.cautions:
        click.echo(f"note: {caution}", err=True)
    began = time.monotonic()
    done: list[Replayed] = []
    code = 0
    try:
        if planned.ranges and engine == "spark":
            done = _by_spark(planned, master, rate)
        elif planned.ranges:
            done, code = _by_threads(planned, workers or _WORKERS, rate)
    except KeyboardInterrupt:
        click.echo(f"aborted: run the same command to resume (replay {planned.title.name})", err=True)
        context.exit(_INTERRUPTED)
    _report(planned, done, seconds=time.monotonic() - began, as_json=as_json)
    _verify(planned, done)
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


def _within_offsets(where: Condition | None, start: Place, stop: Place | None) -> Condition | None:
    """Return the condition, and that source offsets are within the places if those are offsets."""
    from ottla.jobs.replay_where import AllOf, Compared

    conditions: list[Condition] = [] if where is None else [where]
    if isinstance(start, int):
        conditions.append(Compared("offset", ">=", start))
    if isinstance(stop, int):
        conditions.append(Compared("offset", "<", stop))
    return AllOf(tuple(conditions)) if len(conditions) > 1 else next(iter(conditions), None)


def _by_threads(planned: Plan, workers: int, rate: Rate | None) -> tuple[list[Replayed], int]:
    """Return what was done, and the exit code: that of a signal if one ended it."""
    from ottla.engines import local
    from ottla.jobs.replay_throttle import ReplayControl

    reins = ReplayControl(rate)
    with (
        Stopping("stopping after the current chunk; press Ctrl-C again to abort") as stopping,
        LiveLine(lambda: _show(planned, reins)),
    ):
        job = planned.job(reins).until(lambda: stopping.asked > 0)
        done = list(local.run(job, planned.ranges, workers=workers))
    return done, stopping.exit_code if stopping.asked else 0


def _by_spark(planned: Plan, master: str | None, rate: Rate | None) -> list[Replayed]:
    """Return what was done. A signal ends it at once; open transactions are aborted when the replay is resumed."""
    from ottla.jobs.replay_throttle import Rate, ReplayControl

    with spark_session("ottla replay", master) as spark:
        from pyspark.errors import PySparkException

        from ottla.engines import spark as engine

        # Tasks cannot coordinate: each gets its share of the rate, as if all ran at the same time.
        share = None if rate is None else Rate(rate.amount / len(planned.ranges), rate.unit)
        try:
            return list(engine.run(planned.job(ReplayControl(share)), planned.ranges, spark=spark))
        except PySparkException as error:
            raise CommandFailed(f"Spark failed: {error}") from error


def _show(planned: Plan, reins: ReplayControl) -> str:
    share = _share(planned, reins.positions())
    return f"{bar(share)}  {reins.records:,} records replayed, {show_size(reins.size_bytes)}"


def _share(planned: Plan, positions: Mapping[TopicPartition, int]) -> float:
    passed = total = 0
    for lineage in planned.lineages.values():
        offsets = lineage.range
        position = max(offsets.start, planned.positions[lineage.at], positions.get(lineage.at, 0))
        passed += min(position, offsets.stop) - offsets.start
        total += len(offsets)
    return passed / total if total else 1.0


def _report(planned: Plan, done: list[Replayed], *, seconds: float, as_json: bool) -> None:
    from ottla.model import Fingerprint

    sent = sum((lineage.fingerprint for lineage in done), Fingerprint())
    size = sum(receipt.size_bytes for lineage in done for receipt in lineage.receipts)
    reached = {lineage.range.topic_partition: lineage.position for lineage in done}
    is_finished = _share(planned, reached) >= 1.0
    if as_json:
        row = {
            "name": planned.title.name,
            "path": planned.source.path,
            "target": planned.target.topic,
            "records": sent.count,
            "bytes": size,
            "fingerprint": str(sent),
            "seconds": round(seconds, 3),
            "finished": is_finished,
            "verified": _verified(planned, done),
            "lineages": [lineage.to_json() for lineage in sorted(done, key=lambda lineage: lineage.range)],
        }
        click.echo(json.dumps(row))
        return
    if is_finished and all(
        lineage.start >= lineage.range.stop for lineage in done
    ):  # the plan may be behind what is committed
        click.echo(f"nothing to do: the replay {planned.title.name} is finished; --again writes everything once more")
        return
    proof = "; the fingerprints match the archive" if _verified(planned, done) else ""
    click.echo(
        f"{sent.count:,} records ({show_size(size)}) replayed into {planned.target.topic} in {seconds:.1f} s{proof}"
    )
    if not is_finished:
        click.echo(f"stopped before the end: run the same command to resume (replay {planned.title.name})", err=True)


def _verified(planned: Plan, done: list[Replayed]) -> bool | None:
    """Return whether everything that was sent matches the archive's receipts; None if they do not cover it."""
    expected = planned.expected()
    finished = [lineage for lineage in done if lineage.is_finished and lineage.whole is not None]
    if expected is None or len(finished) < len(planned.lineages):
        return None
    return all(lineage.whole == expected[lineage.range.topic_partition] for lineage in finished)


def _verify(planned: Plan, done: list[Replayed]) -> None:
    expected = planned.expected() or {}
    for lineage in done:
        receipts = expected.get(lineage.range.topic_partition)
        if lineage.is_finished and lineage.whole is not None and receipts is not None and lineage.whole != receipts:
            raise CommandFailed(
                f"{lineage.range.topic_partition}: {lineage.whole.count:,} records were sent, the archive has receipts"
                f" for {receipts.count:,}, or their content differs ({lineage.whole} and {receipts}):"
                " see 'ottla lake verify'"
            )
