"""`ottla replay`: an archive, or what is selected of it, back into a topic, exactly once.

It parses, checks everything that can be wrong before anything is written, runs the lineages on an engine and reports.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from ottla.cli import Failure, Misuse
from ottla.cli.options.bootstrap import bootstrap_option
from ottla.cli.options.connecting import meet
from ottla.cli.options.general import json_option
from ottla.cli.options.reading import parsed
from ottla.cli.options.security import security_options
from ottla.cli.terminal.progress import LiveLine
from ottla.cli.terminal.sparks import spark_session
from ottla.cli.terminal.stopping import Stopping
from ottla.cli.values import times
from ottla.cli.values.units import SIZES, parse_size, show_size
from ottla.errors import InputError

if TYPE_CHECKING:
    from ottla.config import Security
    from ottla.jobs import replay_where
    from ottla.jobs.replay_partition import Replayed
    from ottla.jobs.replay_plan import Plan
    from ottla.jobs.replay_throttle import Rate, ReplayControl
    from ottla.model import TopicPartition

_BAR = 24
_INTERRUPTED = 130
_WORKERS = 4
_RATE = re.compile(r"\s*([0-9.]+)\s*([kKmM]?)\s*(?:/s)?\s*")
_BYTE_RATE = re.compile(r"\s*(.*[bB])\s*(?:/s)?\s*")
_THOUSANDS = {"": 1, "k": 1_000, "m": 1_000_000}
_RELATIVE = re.compile(r"\s*(-.*|.*\sago\s*|now\s*)", re.IGNORECASE)


def _moment(text: str) -> datetime:
    found = times.parse_time(text, now=datetime.now(UTC))
    if _RELATIVE.fullmatch(text):
        raise ValueError(
            f"{text!r} is another time whenever the replay is resumed: write {found.isoformat(timespec='seconds')}"
        )
    return found


def _rate(text: str) -> Rate:
    from ottla.jobs.replay_throttle import Rate, Unit

    try:
        if match := _BYTE_RATE.fullmatch(text):
            return Rate(parse_size(match[1]), Unit.BYTES)
        if match := _RATE.fullmatch(text):
            return Rate(float(match[1]) * _THOUSANDS[match[2].lower()])
    except (ValueError, InputError):
        pass
    raise ValueError(f"{text!r} is no rate: records (5000/s, 20k/s) or bytes (10MB/s) a second; {SIZES}")


def _condition(text: str) -> replay_where.Condition:
    from ottla.jobs import replay_where

    return replay_where.parse(text)


@click.command()
@click.argument("path")
@click.option("--to", "target", required=True, metavar="TOPIC", help="The topic that is written to; it must exist.")
@click.option("--topic", "topics", multiple=True, metavar="SOURCE", help="Only records of this topic. Repeatable.")
@click.option("--from", "start", metavar="TIME", callback=parsed(_moment), help="Only records from this time on.")
@click.option("--until", "stop", metavar="TIME", callback=parsed(_moment), help="Only records before this time.")
@click.option("--where", metavar="EXPR", callback=parsed(_condition), help="Only records for which this holds.")
@click.option("--keep-partitions", is_flag=True, help="Into the partitions of the same numbers, not by key.")
@click.option("--rate", metavar="N/s", callback=parsed(_rate), help="At most: records (5000/s) or bytes (10MB/s).")
@click.option("--name", metavar="NAME", help="Of the replay, to resume it by.  [default: made from what is selected]")
@click.option("--again", is_flag=True, help="Write everything once more, under a new name, which is told.")
@click.option(
    "--compression",
    type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]),
    default="zstd",
    show_default=True,
    help="Of the batches that are written.",
)
@click.option(
    "--engine",
    type=click.Choice(["local", "spark"]),
    default="local",
    show_default=True,
    help="Who does the work: this process, or Spark.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 1024),
    metavar="N",
    help=f"With --engine local: source partitions at a time.  [default: {_WORKERS}]",
)
@click.option("--master", metavar="URL", help="With --engine spark: where Spark runs.  [default: local[*]]")
@bootstrap_option
@security_options
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="Seconds that brokers may be away before it fails.",
)
@json_option
@click.pass_context
def replay(
    context: click.Context,
    /,
    path: str,
    *,
    target: str,
    topics: tuple[str, ...],
    start: datetime | None,
    stop: datetime | None,
    where: replay_where.Condition | None,
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
    """Write the records of the archive PATH into a topic: keys, headers and timestamps as they were.

    PATH is what 'ottla archive' has made, or a folder of Parquet files with the columns of Spark's Kafka connector.
    Each source partition is replayed in the order of its offsets, in transactions: read-committed readers see every
    record exactly once, whatever is killed on the way. The same command goes on where it stopped. Ends with 0 when
    done, 1 when something failed, 2 when used wrongly, 130 after Ctrl-C.

    \b
    --where compares key, value, header.NAME, topic, partition, offset and timestamp with 'texts' and numbers by
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
    meet(bootstrap, security, timeout=timeout)
    planned = plan(
        source,
        Selection(topics=tuple(dict.fromkeys(topics)), start=start, stop=stop, where=where),
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
        click.echo(f"given up: the same command goes on where it was (the replay {planned.title.name})", err=True)
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
    span: tuple[datetime | None, datetime | None],
) -> None:
    if engine == "local" and master:
        raise Misuse("--master is for --engine spark")
    if engine == "spark" and workers:
        raise Misuse("--workers is for --engine local: Spark has as many as it has cores")
    if again and name:
        raise Misuse("--again makes a name of its own; to write everything once more, a new --name is enough")
    start, stop = span
    if start is not None and stop is not None and stop <= start:
        raise Misuse("--until is not after --from: nothing lies between them")


def _by_threads(planned: Plan, workers: int, rate: Rate | None) -> tuple[list[Replayed], int]:
    """What was done, and the exit code: that of a signal if one has ended it."""
    from ottla.engines import local
    from ottla.jobs.replay_throttle import ReplayControl

    reins = ReplayControl(rate)
    with (
        Stopping("stopping after the chunk that is under way; once more gives up") as stopping,
        LiveLine(lambda: _show(planned, reins)),
    ):
        job = planned.job(reins).until(lambda: stopping.asked > 0)
        done = list(local.run(job, planned.ranges, workers=workers))
    return done, stopping.exit_code if stopping.asked else 0


def _by_spark(planned: Plan, master: str | None, rate: Rate | None) -> list[Replayed]:
    """What was done. A signal ends it at once: what a task has not committed is aborted when the replay goes on."""
    from ottla.jobs.replay_throttle import Rate, ReplayControl

    with spark_session("ottla replay", master) as spark:
        from pyspark.errors import PySparkException

        from ottla.engines import spark as engine

        # Tasks cannot wait for one another: each gets its share of the rate, as if all ran at the same time.
        share = None if rate is None else Rate(rate.amount / len(planned.ranges), rate.unit)
        try:
            return list(engine.run(planned.job(ReplayControl(share)), planned.ranges, spark=spark))
        except PySparkException as error:
            raise Failure(f"Spark has failed: {error}") from error


def _show(planned: Plan, reins: ReplayControl) -> str:
    share = _share(planned, reins.positions())
    return (
        f"[{'#' * int(share * _BAR):-<{_BAR}}] {share:4.0%}  {reins.records:,} records replayed,"
        f" {show_size(reins.size_bytes)}"
    )


def _share(planned: Plan, positions: Mapping[TopicPartition, int]) -> float:
    passed = total = 0
    for lineage in planned.lineages.values():
        one = lineage.range
        known = max(one.start, planned.positions[lineage.at], positions.get(lineage.at, 0))
        passed += min(known, one.stop) - one.start
        total += len(one)
    return passed / total if total else 1.0


def _report(planned: Plan, done: list[Replayed], *, seconds: float, as_json: bool) -> None:
    from ottla.model import Fingerprint

    sent = sum((one.fingerprint for one in done), Fingerprint())
    size = sum(receipt.size_bytes for one in done for receipt in one.receipts)
    reached = {one.range.topic_partition: one.position for one in done}
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
            "lineages": [one.to_json() for one in sorted(done, key=lambda one: one.range)],
        }
        click.echo(json.dumps(row))
        return
    if is_finished and all(one.start >= one.range.stop for one in done):  # the plan may be behind what is committed
        click.echo(f"nothing left: the replay {planned.title.name} has been finished before; --again writes once more")
        return
    proof = "; the fingerprints are those of the archive" if _verified(planned, done) else ""
    click.echo(
        f"{sent.count:,} records ({show_size(size)}) replayed into {planned.target.topic} in {seconds:.1f} s{proof}"
    )
    if not is_finished:
        click.echo(
            f"stopped before the end: the same command goes on there (the replay {planned.title.name})", err=True
        )


def _verified(planned: Plan, done: list[Replayed]) -> bool | None:
    """Whether everything that was sent is what the archive's receipts say; None if they do not say it."""
    expected = planned.expected()
    told = [one for one in done if one.is_finished and one.whole is not None]
    if expected is None or len(told) < len(planned.lineages):
        return None
    return all(one.whole == expected[one.range.topic_partition] for one in told)


def _verify(planned: Plan, done: list[Replayed]) -> None:
    expected = planned.expected() or {}
    for one in done:
        said = expected.get(one.range.topic_partition)
        if one.is_finished and one.whole is not None and said is not None and one.whole != said:
            raise Failure(
                f"{one.range.topic_partition}: {one.whole.count:,} records were sent and the archive has receipts for"
                f" {said.count:,}, or their content differs ({one.whole} and {said}): see 'ottla lake verify'"
            )
