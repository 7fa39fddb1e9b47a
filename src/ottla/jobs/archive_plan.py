"""Plans what to archive next: compares the positions of the ledger with where the logs of the topics begin and end.

Positions and log offsets come in. Ranges, gaps and start positions go out, or an error if records were deleted before
they were archived. `Survey` asks the brokers; everything else is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ottla.errors import InputError, OffsetsLost, OttlaError
from ottla.fetch import bounds
from ottla.fetch.options import OnLost
from ottla.fetch.record_sizes import GUESS_BYTES, RecordSizes
from ottla.lake.values import Gap
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net import Cluster
from ottla.plan import RecordBytes, cut, limit_bytes

Offsets = Mapping[TopicPartition, int]
Start = bounds.Bound
"""Where to start topics that are new to an archive."""
_WORTH_RECORDS = 50_000
"""Fewer records than this are not worth a task of their own."""


@dataclass(frozen=True, slots=True)
class Logs:
    """The logs of the topics at one moment."""

    begins: Offsets
    ends: Offsets
    topics: Mapping[str, str]
    """Topic ids by topic."""
    record_bytes: RecordBytes = GUESS_BYTES

    def without(self, topics: Collection[str]) -> Logs:
        """Return the logs of all other topics."""
        return replace(
            self,
            begins={tp: offset for tp, offset in self.begins.items() if tp.topic not in topics},
            ends={tp: offset for tp, offset in self.ends.items() if tp.topic not in topics},
            topics={name: topic_id for name, topic_id in self.topics.items() if name not in topics},
        )


def joined(parts: Iterable[Logs]) -> Logs:
    """Join the logs of different topics."""
    parts = list(parts)
    return Logs(
        {tp: offset for logs in parts for tp, offset in logs.begins.items()},
        {tp: offset for logs in parts for tp, offset in logs.ends.items()},
        {name: topic_id for logs in parts for name, topic_id in logs.topics.items()},
    )


@dataclass(frozen=True, slots=True)
class Round:
    """What comes into the archive next, as one entry of the ledger."""

    ranges: tuple[OffsetRange, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def records(self) -> int:
        """The number of offsets, which is at least the number of records."""
        return sum(map(len, self.ranges))

    @property
    def topics(self) -> list[str]:
        """The topics with a range or a gap in this round."""
        return sorted({span.topic for span in (*self.ranges, *(gap.range for gap in self.gaps))})

    def of(self, topic: str) -> Round:
        """Return the part of this round that belongs to one topic."""
        ranges = tuple(span for span in self.ranges if span.topic == topic)
        return Round(ranges, tuple(gap for gap in self.gaps if gap.range.topic == topic))


class Survey:
    """Asks the brokers where the logs of topics begin and end."""

    def __init__(self, cluster: Cluster, topics: tuple[str, ...], isolation: Isolation) -> None:
        self._cluster = cluster
        self._topics = topics
        self._isolation = isolation
        self._sizes = RecordSizes(cluster)

    def logs(self, topics: Collection[str] | None = None) -> Logs:
        """Return the current logs of these topics, by default of all.

        Raises the errors of `Cluster` if a topic does not exist or brokers cannot be reached.
        """
        names = self._topics if topics is None else tuple(topics)
        # Ask the brokers: cached metadata lacks new partitions and the id of a topic that was created again.
        described = self._cluster.topics(names)
        partitions = [TopicPartition(name, row.index) for name in names for row in described[name].partitions]
        begins, ends = (self._resolve(partitions, place) for place in ("earliest", "latest"))
        ids = {name: str(described[name].id) for name in names if described[name].id is not None}
        return Logs(begins, {tp: max(begins[tp], end) for tp, end in ends.items()}, ids)

    def sized(self, logs: Logs) -> Logs:
        """Return the logs with the average size of their records."""
        topics = sorted({tp.topic for tp in logs.begins})
        return replace(logs, record_bytes=self._sizes.of(topics, logs.begins, logs.ends))

    def ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the current ids of the topics, without those that are gone."""
        described = self._cluster.metadata(topics).topics
        return {
            name: str(described[name].id) for name in topics if name in described and described[name].id is not None
        }

    def at(self, start: Start, topics: Collection[str]) -> dict[TopicPartition, int]:
        """Return the offset of a place in every partition of the topics."""
        described = self._cluster.topics(topics)
        partitions = [
            TopicPartition(name, partition.index) for name, topic in described.items() for partition in topic.partitions
        ]
        return self._resolve(partitions, start)

    def _resolve(self, partitions: list[TopicPartition], place: Start) -> dict[TopicPartition, int]:
        deadline = self._cluster.deadline()
        offsets = bounds.resolve(self._cluster, partitions, place, isolation=self._isolation, deadline=deadline)
        return dict(sorted(offsets.items()))


def beginnings(positions: Offsets, starts: Offsets, topics: tuple[str, ...]) -> dict[TopicPartition, int]:
    """Return the start positions for topics that the archive does not have yet."""
    known = {tp.topic for tp in positions}
    return {tp: offset for tp, offset in starts.items() if tp.topic in topics and tp.topic not in known}


def within(start: Start, starts: Offsets, logs: Logs) -> dict[TopicPartition, int]:
    """Return the start positions cut to the logs: a position outside would count as a loss for ever.

    A position of a group or a mapping that lies before its log stays, because its records are lost. Raises `InputError`
    for one offset that lies behind the end of every partition: most likely it is a typing error.
    """
    if isinstance(start, int) and starts and all(offset > logs.ends[tp] for tp, offset in starts.items()):
        tp, last = max(logs.ends.items(), key=lambda end: end[1])
        raise InputError(
            f"start is offset {start}, which is beyond the end of every partition; the furthest is {tp}, which ends at"
            f" {last}"
        )
    is_own = isinstance(start, Mapping | bounds.CommittedBy)  # each partition has a position of its own
    return {tp: min(offset if is_own else max(offset, logs.begins[tp]), logs.ends[tp]) for tp, offset in starts.items()}


def check(positions: Offsets, logs: Logs) -> None:
    """Raise `InputError` if a log ends before what is archived. The positions must be older than the logs."""
    for tp, end in logs.ends.items():
        if end < positions.get(tp, 0):
            raise InputError(
                f"{tp} ends at offset {end}, but is archived up to {positions[tp]}: the topic was created again, or"
                " these are the brokers of another cluster"
            )


def up_to(positions: Offsets, logs: Logs, stops: Offsets) -> Logs:
    """Return the logs as if they ended at these stops; never before what is archived, which would look like a loss."""
    ends = {
        tp: min(end, max(stops.get(tp, end), positions.get(tp, 0), logs.begins[tp])) for tp, end in logs.ends.items()
    }
    return replace(logs, ends=ends)


def faults(positions: Offsets, ids: Mapping[str, str], logs: Logs, *, on_lost: OnLost) -> dict[str, OttlaError]:
    """Return the topics that cannot be archived, with the error of each.

    A topic was created again, ends before what is archived, or lost offsets before they were archived.
    """
    errors: dict[str, OttlaError] = {}
    for topic in sorted({tp.topic for tp in logs.begins}):
        topic_logs = logs.without([tp.topic for tp in logs.begins if tp.topic != topic])
        try:
            check(positions, topic_logs)
            require_same_id(topic, ids.get(topic), logs.topics.get(topic))
            due(positions, topic_logs, on_lost=on_lost)
        except OttlaError as error:
            errors[topic] = error
    return errors


def require_same_id(topic: str, before: str | None, now: str | None) -> None:
    """Raise `InputError` if the topic was deleted and created again under the same name."""
    if before is not None and now is not None and before != now:
        raise InputError(
            f"topic {topic} was deleted and created again (its id was {before} and is {now}), so its offsets mean"
            " other records: archive it to another place"
        )


def due(positions: Offsets, logs: Logs, *, on_lost: OnLost) -> Round:
    """Return everything that is not archived yet.

    A partition without a position was added later, and starts where its log begins. Raises `OffsetsLost` if retention
    deleted offsets before they were archived, unless `on_lost` is EARLIEST: then they become a gap.
    """
    ranges: list[OffsetRange] = []
    gaps: list[Gap] = []
    for tp, begin in logs.begins.items():
        position = positions.get(tp, begin)
        end = logs.ends[tp]
        if position < begin:
            lost = OffsetRange(*tp, position, begin)
            if on_lost is not OnLost.EARLIEST:
                raise OffsetsLost(
                    *tp,
                    start=position,
                    stop=begin,
                    resume=begin,
                    reason="retention deleted them before they were archived",
                )
            gaps.append(Gap(lost, "deleted by retention before it was archived"))
        if max(position, begin) < end:
            ranges.append(OffsetRange(*tp, max(position, begin), end))
    return Round(tuple(ranges), tuple(gaps))


def limited(whole: Round, max_bytes: int, record_bytes: RecordBytes) -> Round:
    """Return about `max_bytes` of a round, divided fairly among the partitions."""
    starts = {span.topic_partition: span.start for span in whole.ranges}
    stops = limit_bytes(starts, {span.topic_partition: span.stop for span in whole.ranges}, max_bytes, record_bytes)
    ranges = (OffsetRange(*tp, start, stops[tp]) for tp, start in starts.items())
    return Round(tuple(span for span in ranges if len(span)), whole.gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How ranges become tasks: a task writes at most one file's worth, and every worker gets some."""

    file_bytes: int
    workers: int
    batch_bytes: int = field(default=0)
    """The largest size of one ledger entry; 0 for four files per worker."""

    @property
    def round_bytes(self) -> int:
        """The largest size of one ledger entry."""
        return self.batch_bytes or 4 * self.workers * self.file_bytes

    def tasks(self, whole: Round, record_bytes: RecordBytes) -> list[OffsetRange]:
        """Cut the ranges into tasks. Few records stay together: one file per partition is small enough."""
        total = sum(len(span) for span in whole.ranges)
        worth = min(self.workers, max(1, total // _WORTH_RECORDS))
        return cut(whole.ranges, at_least=worth, max_bytes=self.file_bytes, record_bytes=record_bytes)
