"""Archives topics by a streaming query: Spark keeps offsets and runs the tasks, the ledger says what is archived.

A session, a lake and what is wanted come in, a running query goes out. Its rows are ranges (`ranges_source`); for each
batch the archive job runs as tasks, and the driver records what they have staged and publishes it. A batch that Spark
repeats finds its ranges in the ledger and does nothing.
"""

from __future__ import annotations

import hashlib
import logging
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import msgspec
from pyspark.errors import StreamingQueryException

from ottla.engines import spark as engine
from ottla.errors import ConfigError, DeadlineExceeded, EngineFailed, LakeError, OttlaError
from ottla.events import Events, LogSink
from ottla.jobs.archive_plan import Cutting, Round, Survey, require_same_id
from ottla.jobs.archive_range import ArchiveRange
from ottla.jobs.archive_topics import Topics, is_outage
from ottla.jobs.archiving import ArchiveRequest, begin, report
from ottla.lake import layout
from ottla.lake.lake import Lake
from ottla.lake.ledger import create_file
from ottla.lake.values import Entry, WrittenBy
from ottla.spark.ranges_source import NAME, OPTION, RangesPlan, RangesSource, planned, suspended

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_log = logging.getLogger(__name__)
_OUTAGE = re.compile(
    r"ottla\.errors\.(NoBrokerReachable|DeadlineExceeded|ConnectFailed|ConnectionLost|RequestTimedOut)"
)
"""In Spark's report: brokers were away when a batch was planned, which is done in a process of its own."""
_MARK = "ottla-archive.json"
"""In a checkpoint folder: of which archive and topics it is."""
_QUERY = "sql.streaming.queryId"
_registered: WeakSet[SparkSession] = WeakSet()
"""Sessions that know the source; Spark warns of every further registration."""


def archive_stream(
    spark: SparkSession,
    lake: Lake,
    job: ArchiveRange,
    wanted: ArchiveRequest,
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
            if _OUTAGE.search(str(error)):
                raise DeadlineExceeded("planning a batch", 0.0, (engine.cause(error),)) from error
            raise EngineFailed(engine.cause(error)) from error

    @property
    def troubles(self) -> dict[str, str]:
        """Topics that the last batch has left out, and why."""
        return self._batch.troubles

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
    wanted: ArchiveRequest
    told: Callable[[Entry], None] | None = field(default=None)
    failed: BaseException | None = field(default=None)
    """Why the last batch failed, where this is the driver's own process: Spark's text of it is hard to read."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Topics that the last batch has left out, and why."""
    lake: Lake | None = field(default=None)

    def __getstate__(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"told": None, "failed": None, "troubles": {}, "lake": None}
        return {"job": self.job, "wanted": self.wanted, **empty}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Runs the tasks, records and publishes."""
        try:
            self._archive(rows, batch)
        except BaseException as error:
            self.failed = error
            raise

    def _archive(self, rows: DataFrame, batch: int) -> None:
        found = [tuple(row) for row in rows.collect()]
        chosen, topics = planned(found)
        if not chosen.ranges and not chosen.gaps:
            return
        self.troubles = suspended(found)
        self.lake = self.lake or Lake.open(self.job.path)
        spark = rows.sparkSession
        by = WrittenBy(engine="spark", host=socket.gethostname(), query=_query_id(spark), batch=batch)
        try:
            self._record(spark, chosen, topics, by)
        except OttlaError as error:
            if len(chosen.topics) == 1 or isinstance(error, LakeError) or is_outage(error):
                raise
            self._record_singly(spark, chosen, topics, by)

    def _record_singly(self, spark: SparkSession, chosen: Round, topics: Mapping[str, str], by: WrittenBy) -> None:
        """One topic is what is wrong: it is left out, and due in the next batch again."""
        errors: list[OttlaError] = []
        for topic in chosen.topics:
            try:
                self._record(spark, chosen.of(topic), topics, by)
            except OttlaError as error:
                if isinstance(error, LakeError) or is_outage(error):
                    raise
                errors.append(error)
                self.troubles[topic] = str(error)
                _log.error("topic %s is not archived at present: %s", topic, error)
        if len(errors) == len(chosen.topics):
            raise errors[0]

    def _record(self, spark: SparkSession, chosen: Round, topics: Mapping[str, str], by: WrittenBy) -> None:
        assert self.lake is not None
        ids = {topic: topics[topic] for topic in chosen.topics if topic in topics}
        try:
            done = list(engine.run(self.job, chosen.ranges, spark=spark))
            with self.job.brokers.cluster() as cluster:
                now = Survey(cluster, self.wanted.topics, self.job.brokers.isolation).ids(chosen.topics)
                for topic, before in ids.items():
                    require_same_id(topic, before, now.get(topic))
                entry = self.lake.append(done, by=by, gaps=chosen.gaps, topics=ids)
                if entry is not None:
                    report(self.lake, cluster, self.wanted)
        finally:
            self.lake.sweep(0.0, run=self.job.run)  # dead tasks leave files, too
        if entry is not None and self.told is not None:
            self.told(entry)


def _check(lake: Lake, job: ArchiveRange, wanted: ArchiveRequest) -> None:
    """Meets every error that can be met here, where it can still be told in one sentence."""
    by = WrittenBy(engine="spark", host=socket.gethostname())
    with job.brokers.cluster() as cluster:
        survey = Survey(cluster, wanted.topics, job.brokers.isolation)
        begin(lake, survey, wanted, by)
        Topics(survey, lake, wanted.topics, on_lost=wanted.on_lost, events=Events(LogSink())).look()
        report(lake, cluster, wanted)


def _checkpoint(lake: Lake, wanted: ArchiveRequest, given: str | None) -> Path:
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
