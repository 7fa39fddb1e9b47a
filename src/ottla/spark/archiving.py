"""Archives topics with a streaming query: Spark keeps offsets and runs tasks, the ledger says what is archived.

A session, a lake and an `ArchiveRequest` come in; a running query goes out. Its rows are offset ranges
(`ranges_source`). For each batch the archive job runs as tasks, and the driver records and publishes what they staged.
If Spark repeats a batch, the ranges are in the ledger already and nothing happens: the query's checkpoint never decides
what is archived.
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
"""In Spark's report of an error: brokers were unreachable while a batch was planned, in another process."""
_OWNER_FILE = "ottla-archive.json"
"""In a checkpoint folder: the archive and topics that it belongs to."""
_QUERY = "sql.streaming.queryId"
_registered: WeakSet[SparkSession] = WeakSet()
"""Sessions that know the source. Spark warns about every further registration."""


def start_query(
    spark: SparkSession,
    lake: Lake,
    job: ArchiveRange,
    request: ArchiveRequest,
    *,
    cutting: Cutting,
    every: float | None = None,
    checkpoint: str | None = None,
    on_entry: Callable[[Entry], None] | None = None,
) -> ArchiveQuery:
    """Start a query that archives up to the current ends of the logs, or, with `every` (seconds), without an end.

    Calls `on_entry` with every ledger entry, on another thread. Raises `ConfigError` for a checkpoint of another query,
    and the errors of planning (`InputError`, `OffsetsLost`, `LakeError` and the like) before anything starts.
    """
    folder = _checkpoint(lake, request, checkpoint)
    lake.recover()
    lake.sweep()
    _check(lake, job, request)
    if spark not in _registered:
        spark.dataSource.register(RangesSource)
        _registered.add(spark)
    plan = RangesPlan(
        brokers=job.brokers, path=str(lake.path), topics=request.topics, on_lost=request.on_lost, cutting=cutting
    )
    rows = spark.readStream.format(NAME).option(OPTION, plan.to_option()).load()
    batch = ArchiveBatch(job, request, on_entry)
    writer = (
        rows.writeStream.queryName(f"ottla archive {' '.join(request.topics)} to {lake.path}")
        .foreachBatch(batch)
        .option("checkpointLocation", str(folder))
    )
    if every is None:
        return ArchiveQuery(writer.trigger(availableNow=True).start(), batch)
    return ArchiveQuery(writer.trigger(processingTime=f"{max(1, round(every * 1000))} milliseconds").start(), batch)


class ArchiveQuery:
    """A running query that archives. `query` is Spark's own object."""

    def __init__(self, query: StreamingQuery, batch: ArchiveBatch) -> None:
        self.query = query
        self._batch = batch

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; returns whether the query has ended.

        If it failed, raises the batch's own error, `DeadlineExceeded` if brokers were unreachable, or `EngineFailed`.
        """
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
        """Topics that the last batch left out, with the reason."""
        return self._batch.troubles

    def stop(self) -> None:
        """Stop the query, publish what it recorded and remove what its tasks left."""
        self.query.stop()
        lake = Lake.open(self._batch.job.path)
        lake.recover()
        lake.sweep(0.0, run=self._batch.job.run)

    @property
    def behind(self) -> int:
        """Offsets between the query's position and the ends of the logs, from its last progress report."""
        last = self.query.lastProgress
        if last is None:
            return 0
        ends, reached = (_offsets(last["sources"][0][name]) for name in ("latestOffset", "endOffset"))
        return sum(max(0, end - reached.get(partition, 0)) for partition, end in ends.items())


def _offsets(text: str | None) -> dict[tuple[str, str], int]:
    by_topic = msgspec.json.decode(text) if text else {}
    return {
        (topic, partition): offset
        for topic, by_partition in by_topic.items()
        for partition, offset in by_partition.items()
    }


@dataclass
class ArchiveBatch:
    """Archives one batch of ranges. Runs on the driver, or wherever a Spark Connect server runs `foreachBatch`."""

    job: ArchiveRange
    request: ArchiveRequest
    on_entry: Callable[[Entry], None] | None = field(default=None)
    failed: BaseException | None = field(default=None)
    """Why the last batch failed, if this is the driver's own process. Spark's report of it is hard to read."""
    troubles: dict[str, str] = field(default_factory=dict)
    """Topics that the last batch left out, with the reason."""
    lake: Lake | None = field(default=None)

    def __getstate__(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"on_entry": None, "failed": None, "troubles": {}, "lake": None}
        return {"job": self.job, "request": self.request, **empty}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Run the tasks, record and publish. Raises the job's and the lake's errors."""
        try:
            self._archive(rows, batch)
        except BaseException as error:
            self.failed = error
            raise

    def _archive(self, rows: DataFrame, batch: int) -> None:
        planned_rows = [tuple(row) for row in rows.collect()]
        chosen, topics = planned(planned_rows)
        if not chosen.ranges and not chosen.gaps:
            return
        self.troubles = suspended(planned_rows)
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
        """Record topic by topic: a topic that fails is left out, and due again in the next batch."""
        errors: list[OttlaError] = []
        for topic in chosen.topics:
            try:
                self._record(spark, chosen.of(topic), topics, by)
            except OttlaError as error:
                if isinstance(error, LakeError) or is_outage(error):
                    raise
                errors.append(error)
                self.troubles[topic] = str(error)
                _log.error("topic %s is suspended, the others continue: %s", topic, error)
        if len(errors) == len(chosen.topics):
            raise errors[0]

    def _record(self, spark: SparkSession, chosen: Round, topics: Mapping[str, str], by: WrittenBy) -> None:
        assert self.lake is not None
        ids = {topic: topics[topic] for topic in chosen.topics if topic in topics}
        try:
            done = list(engine.run(self.job, chosen.ranges, spark=spark))
            with self.job.brokers.cluster() as cluster:
                now = Survey(cluster, self.request.topics, self.job.brokers.isolation).ids(chosen.topics)
                for topic, before in ids.items():
                    require_same_id(topic, before, now.get(topic))
                entry = self.lake.append(done, by=by, gaps=chosen.gaps, topics=ids)
                if entry is not None:
                    report(self.lake, cluster, self.request)
        finally:
            self.lake.sweep(0.0, run=self.job.run)  # dead tasks leave files
        if entry is not None and self.on_entry is not None:
            self.on_entry(entry)


def _check(lake: Lake, job: ArchiveRange, request: ArchiveRequest) -> None:
    """Raise every error that can be known now: errors inside a query come as long Spark reports."""
    by = WrittenBy(engine="spark", host=socket.gethostname())
    with job.brokers.cluster() as cluster:
        survey = Survey(cluster, request.topics, job.brokers.isolation)
        begin(lake, survey, request, by)
        Topics(survey, lake, request.topics, on_lost=request.on_lost, events=Events(LogSink())).look()
        report(lake, cluster, request)


def _checkpoint(lake: Lake, request: ArchiveRequest, given: str | None) -> Path:
    """The checkpoint folder, marked as ours. Raises `ConfigError` if it belongs to another query."""
    topics = sorted(request.topics)
    if given is None:
        digest = hashlib.sha256("\n".join(topics).encode()).hexdigest()[:16]
        folder = lake.path / layout.CHECKPOINTS / digest
    else:
        folder = Path(given.removeprefix("file://")).absolute()
        if "://" in str(given).removeprefix("file://"):
            raise ConfigError(f"checkpoint {given} is not a mounted folder: give a path on the driver's file system")
    owner_file = folder / _OWNER_FILE
    folder.mkdir(parents=True, exist_ok=True)
    if not owner_file.exists():
        if any(folder.iterdir()):
            raise ConfigError(f"checkpoint {folder} belongs to another query: give a new or empty folder")
        create_file(owner_file, msgspec.json.encode({"archive": lake.id, "topics": topics}), root=lake.path)
    owner = msgspec.json.decode(owner_file.read_bytes())
    if owner["topics"] != topics:
        raise ConfigError(
            f"checkpoint {folder} belongs to topic {', '.join(owner['topics'])}, not {', '.join(topics)}: give another"
            " folder"
        )
    if owner["archive"] != lake.id:
        raise ConfigError(f"checkpoint {folder} belongs to another archive than {lake.path}: give another folder")
    return folder


def _query_id(spark: SparkSession) -> str:
    context = getattr(spark, "_sc", None)  # a Connect session has none
    return (context.getLocalProperty(_QUERY) or "") if context is not None else ""


__all__ = ["ArchiveBatch", "ArchiveQuery", "start_query"]
