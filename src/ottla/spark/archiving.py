"""Archives topics by a streaming query: Spark keeps offsets and runs the tasks, the ledger says what is archived.

A session, a lake and what is wanted come in, a running query goes out. Its rows are ranges (`ranges_source`); for each
batch the archive job runs as tasks, and the driver records what they have staged and publishes it. A batch that Spark
repeats finds its ranges in the ledger and does nothing.
"""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import msgspec
from pyspark.errors import StreamingQueryException

from ottla.engines import spark as engine
from ottla.errors import ConfigError, EngineFailed, OttlaError
from ottla.jobs.archive_plan import Cutting, Survey, due
from ottla.jobs.archive_plan import check as check_logs
from ottla.jobs.archive_range import ArchiveRange
from ottla.jobs.archiving import Wanted, begin, report
from ottla.lake import layout
from ottla.lake.lake import Lake
from ottla.lake.ledger import create_file
from ottla.lake.values import Entry, WrittenBy
from ottla.spark.ranges_source import NAME, OPTION, RangesPlan, RangesSource, planned

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_MARK = "ottla-archive.json"
"""In a checkpoint folder: of which archive and topics it is."""
_QUERY = "sql.streaming.queryId"
_registered: WeakSet[SparkSession] = WeakSet()
"""Sessions that know the source; Spark warns of every further registration."""


def archive_stream(
    spark: SparkSession,
    lake: Lake,
    job: ArchiveRange,
    wanted: Wanted,
    *,
    cutting: Cutting,
    every: float | None = None,
    checkpoint: str | None = None,
    told: Callable[[Entry], None] | None = None,
) -> ArchiveQuery:
    """Starts a query that archives up to where the logs end now, or with `every` goes on for ever, that often.

    `told` hears of every entry, in a thread of its own. What is wrong with topics, offsets or the checkpoint is raised
    here, before anything is started.
    """
    folder = _checkpoint(lake, wanted, checkpoint)
    lake.recover()
    lake.sweep()
    _check(lake, job, wanted)
    if spark not in _registered:
        spark.dataSource.register(RangesSource)
        _registered.add(spark)
    plan = RangesPlan(
        brokers=job.brokers, path=str(lake.path), topics=wanted.topics, on_lost=wanted.on_lost, cutting=cutting
    )
    rows = spark.readStream.format(NAME).option(OPTION, plan.to_option()).load()
    batch = ArchiveBatch(job, wanted, told)
    writer = (
        rows.writeStream.queryName(f"ottla archive {' '.join(wanted.topics)} to {lake.path}")
        .foreachBatch(batch)
        .option("checkpointLocation", str(folder))
    )
    if every is None:
        return ArchiveQuery(writer.trigger(availableNow=True).start(), batch)
    return ArchiveQuery(writer.trigger(processingTime=f"{max(1, round(every * 1000))} milliseconds").start(), batch)


class ArchiveQuery:
    """A query that archives; `query` is Spark's own."""

    def __init__(self, query: StreamingQuery, batch: ArchiveBatch) -> None:
        self.query = query
        self._batch = batch

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after at most so many seconds; raises why it failed, if it did."""
        try:
            return bool(self.query.awaitTermination(seconds))  # type: ignore[arg-type]
        except StreamingQueryException as error:
            if isinstance(self._batch.failed, OttlaError):
                raise self._batch.failed from error
            raise EngineFailed(engine.cause(error)) from error

    def stop(self) -> None:
        """Ends it, and finishes what it had recorded."""
        self.query.stop()
        lake = Lake.open(self._batch.job.path)
        lake.recover()
        lake.sweep(0.0, run=self._batch.job.run)

    @property
    def behind(self) -> int:
        """Offsets between where it is and where the logs end, as it last said."""
        last = self.query.lastProgress
        if last is None:
            return 0
        ends, reached = (_offsets(last["sources"][0][name]) for name in ("latestOffset", "endOffset"))
        return sum(max(0, end - reached.get(at, 0)) for at, end in ends.items())


def _offsets(text: str | None) -> dict[tuple[str, str], int]:
    found = msgspec.json.decode(text) if text else {}
    return {(topic, partition): offset for topic, there in found.items() for partition, offset in there.items()}


@dataclass
class ArchiveBatch:
    """What is done with one batch of ranges. It runs in the driver, or where a Spark Connect server runs such code."""

    job: ArchiveRange
    wanted: Wanted
    told: Callable[[Entry], None] | None = field(default=None)
    failed: BaseException | None = field(default=None)
    """Why the last batch failed, where this is the driver's own process: Spark's text of it is hard to read."""

    def __getstate__(self) -> dict[str, Any]:
        return {"job": self.job, "wanted": self.wanted, "told": None, "failed": None}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Runs the tasks, records and publishes."""
        try:
            self._archive(rows, batch)
        except BaseException as error:
            self.failed = error
            raise

    def _archive(self, rows: DataFrame, batch: int) -> None:
        chosen, topics = planned([tuple(row) for row in rows.collect()])
        if not chosen.ranges and not chosen.gaps:
            return
        spark = rows.sparkSession
        lake = Lake.open(self.job.path)
        by = WrittenBy(engine="spark", host=socket.gethostname(), query=_query_id(spark), batch=batch)
        try:
            done = list(engine.run(self.job, chosen.ranges, spark=spark))
            entry = lake.append(done, by=by, gaps=chosen.gaps, topics=topics)
        finally:
            lake.sweep(0.0, run=self.job.run)  # dead tasks leave files, too
        if entry is None:
            return
        if self.wanted.group is not None:
            with self.job.brokers.cluster() as cluster:
                report(lake, cluster, self.wanted)
        if self.told is not None:
            self.told(entry)


def _check(lake: Lake, job: ArchiveRange, wanted: Wanted) -> None:
    """Meets every error that can be met here, where it can still be told in one sentence."""
    by = WrittenBy(engine="spark", host=socket.gethostname())
    with job.brokers.cluster() as cluster:
        survey = Survey(cluster, wanted.topics, job.brokers.isolation)
        begin(lake, survey, wanted, by)
        positions = lake.positions()
        logs = survey.logs()
        check_logs(positions, logs)
        due(positions, logs, on_lost=wanted.on_lost)
        report(lake, cluster, wanted)


def _checkpoint(lake: Lake, wanted: Wanted, given: str | None) -> Path:
    """The folder, marked as ours; one that belongs to another query is refused."""
    topics = sorted(wanted.topics)
    if given is None:
        digest = hashlib.sha256("\n".join(topics).encode()).hexdigest()[:16]
        folder = lake.path / layout.CHECKPOINTS / digest
    else:
        folder = Path(given.removeprefix("file://")).absolute()
        if "://" in str(given).removeprefix("file://"):
            raise ConfigError(f"checkpoint {given} is not a folder that is mounted")
    mark = folder / _MARK
    folder.mkdir(parents=True, exist_ok=True)
    if not mark.exists():
        if any(folder.iterdir()):
            raise ConfigError(f"checkpoint {folder} belongs to another query: give a new or empty folder")
        create_file(mark, msgspec.json.encode({"archive": lake.id, "topics": topics}), root=lake.path)
    found = msgspec.json.decode(mark.read_bytes())
    if found["topics"] != topics:
        raise ConfigError(
            f"checkpoint {folder} is of topic {', '.join(found['topics'])}, not {', '.join(topics)}: give another one"
        )
    if found["archive"] != lake.id:
        raise ConfigError(f"checkpoint {folder} is of another archive than {lake.path}: give another folder")
    return folder


def _query_id(spark: SparkSession) -> str:
    context = getattr(spark, "_sc", None)  # a Connect session has none
    return (context.getLocalProperty(_QUERY) or "") if context is not None else ""


__all__ = ["ArchiveBatch", "ArchiveQuery", "archive_stream"]
