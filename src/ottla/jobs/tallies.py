"""`tally`: counts topics by time bucket from their logs with one call, and publishes the tallies.

Topics, brokers and the name of a tier come in; a report goes out when everything that was in the topics at the time of
the call is counted and published. A call continues where the last one stopped, however that one ended. Threads of this
process do the work, or tasks of a Spark session.
"""

from __future__ import annotations

import dataclasses
import time as clock
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from ottla.admin.committed import fetch_committed
from ottla.audit.coverage import Coverage, cover, plan_cells
from ottla.audit.notes import Notes
from ottla.errors import ConfigError, InputError
from ottla.fetch.reader import Reader
from ottla.jobs import event_time
from ottla.jobs.arguments import check_moment, check_topic_names
from ottla.jobs.audit_notes import read_notes
from ottla.jobs.brokers import Brokers
from ottla.jobs.engine_choice import choose_engine
from ottla.jobs.tallying import LogFacts, TallyRange
from ottla.model import GroupMember, OffsetRange, TopicPartition
from ottla.tally.publishing import ensure_topic, publish
from ottla.tally.values import (
    AUDIT_TOPIC,
    DEFAULT_BUCKET_SECONDS,
    RECORD_TIME,
    RangeTally,
    check_bucket,
    check_name,
    time_kind,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ottla.jobs.engine_choice import EngineChoice

CELL_RECORDS = 1_000_000
"""Ranges begin and end at multiples of this, so that all writers cut logs in the same way."""


@dataclass(slots=True)
class TallyReport:
    """What a call counted."""

    tier: str
    tallies: list[RangeTally] = field(default_factory=list)
    """What was counted by this call."""
    refreshed: int = 0
    """Partitions to which nothing was appended since the last call."""

    @property
    def records(self) -> int:
        """The records that this call counted."""
        return sum(tally.records for tally in self.tallies)

    @property
    def size_bytes(self) -> int:
        """Their bytes."""
        return sum(piece.bytes for tally in self.tallies for piece in tally.buckets)

    @property
    def buckets(self) -> int:
        """The buckets they are in, of all topics."""
        return len({(tally.topic, piece.start) for tally in self.tallies for piece in tally.buckets})


@dataclass(frozen=True, slots=True, kw_only=True)
class TallyRequest:
    """What to count, and how."""

    tier: str
    service: str = "-"
    bucket_seconds: int = DEFAULT_BUCKET_SECONDS
    time: str = RECORD_TIME
    headers_only: bool = False
    start: datetime | None = None
    group: str | None = None
    positions: Mapping[TopicPartition, int] | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("tier", self.tier)
        check_name("service", self.service)
        object.__setattr__(self, "bucket_seconds", check_bucket(self.bucket_seconds))
        event_time.parse(self.time)
        if self.headers_only and self.time != RECORD_TIME:
            raise ConfigError(f"headers alone do not have the time {self.time}: count records, or use their timestamps")
        check_moment("start", self.start)
        if self.group is not None and self.positions is not None:
            raise ConfigError("a tier is what a group has committed or what is before given positions, not both")


def tally(
    topics: str | Iterable[str],
    *,
    brokers: Brokers | str,
    tier: str,
    service: str = "-",
    audit: Brokers | str | None = None,
    audit_topic: str = AUDIT_TOPIC,
    bucket_seconds: int = DEFAULT_BUCKET_SECONDS,
    time: str = RECORD_TIME,
    headers_only: bool = False,
    start: datetime | None = None,
    group: str | None = None,
    positions: Mapping[TopicPartition, int] | None = None,
    names: Mapping[str, str] | None = None,
    engine: EngineChoice | None = None,
    spark: SparkSession | None = None,
    workers: int | None = None,
    counted: Callable[[RangeTally], None] | None = None,
) -> TallyReport:
    """Count what is in the topics now by time bucket, publish the tallies, and return what this call counted.

    `audit` is the cluster of the audit topic, by default that of the topics. `time` is `record` (timestamps),
    `header:NAME` or `json:FIELD`. With `headers_only` nothing is decompressed, and the tallies have counts without
    fingerprints. `start` leaves out what is older. With `group`, only what this consumer group has committed counts:
    the tier is the group, or the fleet that commits its positions there. With `positions`, only what is before them
    counts: the tier is whatever has done that, such as a streaming query by its checkpoint. `names` maps topics to the
    names that other tiers have for them. `counted` is called with each tally that was published.

    Raises `ConfigError` for invalid arguments, an audit topic that is not compacted, and a tier that was counted in
    other buckets or by other times before, `InputError` for a group that
    has committed nothing of a topic and for positions that name no partition of one, `BrokerError` for an unknown
    topic, `OffsetsLost` if retention deletes records while they are counted, and the
    errors of `Reader` if brokers cannot be reached.
    """
    request = TallyRequest(
        tier=tier,
        service=service,
        bucket_seconds=bucket_seconds,
        time=time,
        headers_only=headers_only,
        start=start,
        group=group,
        positions=positions,
        names=names or {},
    )
    listed = check_topic_names("topics", topics)
    source = brokers if isinstance(brokers, Brokers) else Brokers(bootstrap=brokers, client_id="ottla-audit")
    target = source if audit is None else audit if isinstance(audit, Brokers) else Brokers(bootstrap=audit)
    run = choose_engine(engine, spark=spark, workers=workers)
    facts, starts = survey(source, listed, request)
    report = TallyReport(tier)
    with target.cluster() as cluster:
        ensure_topic(cluster, audit_topic)
        named = [request.names.get(topic, topic) for topic in listed]
        known = read_notes(target, audit_topic, topics=named, tiers=[tier])
        check_buckets(known, request)
        ranges: list[OffsetRange] = []
        refreshed: list[RangeTally] = []
        facts = {topic: _first_counted(topic, each, known, request) for topic, each in facts.items()}
        for topic in listed:
            planned, unchanged = _plan(topic, facts[topic], starts, known, request)
            ranges += planned
            refreshed += unchanged
        publish(cluster, refreshed, topic=audit_topic)
        report.refreshed = len(refreshed)
        for counted_range in run(_job(source, facts, request), ranges):
            publish(cluster, [counted_range], topic=audit_topic)
            report.tallies.append(counted_range)
            if counted is not None:
                counted(counted_range)
    return report


def count_log(
    topics: Iterable[str],
    brokers: Brokers,
    request: TallyRequest,
    *,
    run: Callable[[TallyRange, list[OffsetRange]], Iterable[RangeTally]],
    cell: int = CELL_RECORDS,
) -> list[RangeTally]:
    """Count topics without publishing anything: for a comparison of the data itself."""
    listed = list(topics)
    facts, starts = survey(brokers, listed, request)
    ranges = [
        OffsetRange(topic, partition, start, stop)
        for topic in listed
        for partition, end in facts[topic].ends.items()
        for start, stop in plan_cells(starts[topic, partition], end, known=Coverage((), ()), cell=cell).ranges
    ]
    return list(run(_job(brokers, facts, request), ranges))


def _job(brokers: Brokers, facts: Mapping[str, LogFacts], request: TallyRequest) -> TallyRange:
    return TallyRange(
        brokers=brokers,
        tier=request.tier,
        facts=facts,
        names=request.names,
        service=request.service,
        bucket_seconds=request.bucket_seconds,
        time=request.time,
        headers_only=request.headers_only,
    )


def survey(
    brokers: Brokers, topics: list[str], request: TallyRequest
) -> tuple[dict[str, LogFacts], dict[tuple[str, int], int]]:
    """Ask where the logs begin and end. Returns what is known of each topic, and where to begin in each partition."""
    facts: dict[str, LogFacts] = {}
    starts: dict[tuple[str, int], int] = {}
    with brokers.reader() as reader:
        for topic in topics:
            described = reader.cluster.topics([topic])[topic]
            # Before the ends are asked for: what is appended meanwhile may or may not be counted.
            as_of = clock.time()
            begins, spans = _bounds(reader, topic, described.id, request)
            since = None if request.start is None else request.start.timestamp()
            facts[topic] = LogFacts(
                described.id,
                len(described.partitions),
                {span.partition: span.stop for span in spans},
                as_of,
                begins,
                since,
            )
            starts.update({(topic, partition): offset for partition, offset in begins.items()})
    return facts, starts


def _bounds(
    reader: Reader, topic: str, topic_id: UUID | None, request: TallyRequest
) -> tuple[dict[int, int], list[OffsetRange]]:
    """Where to begin in each partition, and what there is of it."""
    spans = reader.ranges(topic)
    done = _done(reader, spans, topic_id, request)
    if done is not None:
        spans = [_up_to(span, done.get(span.topic_partition)) for span in spans]
    if request.start is None:
        return {span.partition: span.start for span in spans}, spans
    found = reader.offsets(topic, request.start)
    begins = {tp.partition: offset for tp, offset in found.items()}
    return {span.partition: max(span.start, min(begins[span.partition], span.stop)) for span in spans}, spans


def _done(
    reader: Reader, spans: list[OffsetRange], topic_id: UUID | None, request: TallyRequest
) -> Mapping[TopicPartition, int] | None:
    """Where the tier is in each partition of a topic; None if the tier is the topic itself."""
    (topic,) = {span.topic for span in spans} or {""}
    if request.group is not None:
        partitions = [span.topic_partition for span in spans]
        committed = fetch_committed(reader.cluster, GroupMember(request.group), partitions, ids={topic: topic_id})
        if not committed:
            raise InputError(f"group {request.group} has committed nothing of topic {topic}: is it the right group?")
        return {partition: found.offset for partition, found in committed.items()}
    if request.positions is not None and not any(span.topic_partition in request.positions for span in spans):
        raise InputError(f"the positions that were given name no partition of topic {topic}")
    return request.positions


def _up_to(span: OffsetRange, done: int | None) -> OffsetRange:
    stop = span.start if done is None else max(span.start, min(done, span.stop))
    return OffsetRange(span.topic, span.partition, span.start, stop)


def _first_counted(topic: str, facts: LogFacts, known: Notes, request: TallyRequest) -> LogFacts:
    """Return what is known of a topic, with the time of its first tally: later ones replace that tally."""
    topic_id = "" if facts.topic_id is None else str(facts.topic_id)
    times = [
        note.written if note.first_counted is None else note.first_counted
        for note in known.selected(topics=[request.names.get(topic, topic)])
        if isinstance(note, RangeTally) and note.topic_id == topic_id
    ]
    return dataclasses.replace(facts, first_counted=min(times, default=facts.as_of))


def _plan(
    topic: str, facts: LogFacts, starts: Mapping[tuple[str, int], int], known: Notes, request: TallyRequest
) -> tuple[list[OffsetRange], list[RangeTally]]:
    """What to count of a topic, and the tallies that only need a newer time."""
    ranges: list[OffsetRange] = []
    unchanged: list[RangeTally] = []
    by_partition: dict[int, list[RangeTally]] = {}
    topic_id = "" if facts.topic_id is None else str(facts.topic_id)
    for note in known.selected(topics=[request.names.get(topic, topic)]):
        is_ours = isinstance(note, RangeTally) and note.topic_id == topic_id
        # A tally by headers does not replace one with fingerprints, but the other way round it does.
        if is_ours and (request.headers_only or all(piece.fingerprint is not None for piece in note.buckets)):
            by_partition.setdefault(note.partition, []).append(note)  # type: ignore[union-attr, arg-type]
    for partition, end in sorted(facts.ends.items()):
        coverage = cover(by_partition.get(partition, ()))
        plan = plan_cells(starts[topic, partition], end, known=coverage, cell=CELL_RECORDS)
        ranges += [OffsetRange(topic, partition, start, stop) for start, stop in plan.ranges]
        if plan.unchanged is not None:
            unchanged.append(
                msgspec.structs.replace(
                    plan.unchanged.head,
                    as_of=facts.as_of,
                    first_counted=facts.first_counted,
                    written=clock.time(),
                    partitions=facts.partitions,
                    part=0,
                    parts=1,
                    buckets=plan.unchanged.buckets,
                )
            )
    return ranges, unchanged


def check_buckets(known: Notes, request: TallyRequest) -> None:
    """Raise `ConfigError` if the tier was counted in buckets of another length, or by other times, before."""
    for note in known.tallies.values():
        counted_by = note.time if isinstance(note, RangeTally) else RECORD_TIME
        if time_kind(counted_by) != time_kind(request.time):
            raise ConfigError(
                f"tier {request.tier} has tallies of topic {note.topic} by the time {counted_by}, and"
                f" {request.time} was asked for: use the same, or another tier"
            )
        if note.bucket_seconds != request.bucket_seconds:
            raise ConfigError(
                f"tier {request.tier} has tallies of topic {note.topic} in buckets of {note.bucket_seconds:,} s, and"
                f" {request.bucket_seconds:,} s were asked for: use the same, or another tier"
            )
