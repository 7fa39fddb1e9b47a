"""Which ranges an archive needs next: where it is, against where the logs of the topics begin and end.

Positions of the ledger and offsets of the brokers come in; ranges, gaps and beginnings go out, or an error where
records are gone that were to be archived. `Survey` asks the brokers; the rest is pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from ottla.errors import InputError, OffsetsLost, OttlaError
from ottla.fetch import bounds
from ottla.fetch.options import OnLost
from ottla.fetch.record_sizes import GUESS_BYTES, RecordSizes
from ottla.lake.values import Gap
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.plan import RecordBytes, cut, limit_bytes

Offsets = Mapping[TopicPartition, int]
Start = str | datetime


@dataclass(frozen=True, slots=True)
class Logs:
    """The logs of the topics, as they are at one moment."""

    begins: Offsets
    ends: Offsets
    topics: Mapping[str, str]
    """Their ids."""
    record_bytes: RecordBytes = GUESS_BYTES

    def without(self, topics: Collection[str]) -> Logs:
        """Those of the other topics."""
        return replace(
            self,
            begins={at: offset for at, offset in self.begins.items() if at.topic not in topics},
            ends={at: offset for at, offset in self.ends.items() if at.topic not in topics},
            topics={name: found for name, found in self.topics.items() if name not in topics},
        )


def joined(logs: Iterable[Logs]) -> Logs:
    """Logs of different topics, together."""
    found = list(logs)
    return Logs(
        {at: offset for one in found for at, offset in one.begins.items()},
        {at: offset for one in found for at, offset in one.ends.items()},
        {name: known for one in found for name, known in one.topics.items()},
    )


@dataclass(frozen=True, slots=True)
class Round:
    """What comes into an archive next, together."""

    ranges: tuple[OffsetRange, ...]
    gaps: tuple[Gap, ...] = ()

    @property
    def records(self) -> int:
        """Offsets, to be exact."""
        return sum(map(len, self.ranges))

    @property
    def topics(self) -> list[str]:
        """Of which something is in it."""
        return sorted({one.topic for one in (*self.ranges, *(gap.range for gap in self.gaps))})

    def of(self, topic: str) -> Round:
        """What it has of one topic."""
        ranges = tuple(one for one in self.ranges if one.topic == topic)
        return Round(ranges, tuple(gap for gap in self.gaps if gap.range.topic == topic))


class Survey:
    """Asks where the logs of topics begin and end."""

    def __init__(self, cluster: Cluster, topics: tuple[str, ...], isolation: Isolation) -> None:
        self._cluster = cluster
        self._topics = topics
        self._isolation = isolation
        self._sizes = RecordSizes(cluster)

    def logs(self, topics: Collection[str] | None = None) -> Logs:
        """As they are now, of all topics or of some."""
        names = self._topics if topics is None else tuple(topics)
        # Partitions and ids that are new since the last time are not in what a cluster remembers.
        found = self._cluster.topics(names)
        partitions = [TopicPartition(name, one.index) for name in names for one in found[name].partitions]
        begins, ends = (self._resolve(partitions, place) for place in ("earliest", "latest"))
        ids = {name: str(found[name].id) for name in names if found[name].id is not None}
        return Logs(begins, {at: max(begins[at], end) for at, end in ends.items()}, ids)

    def sized(self, logs: Logs) -> Logs:
        """The same, with the size of records."""
        topics = sorted({at.topic for at in logs.begins})
        return replace(logs, record_bytes=self._sizes.of(topics, logs.begins, logs.ends))

    def ids(self, topics: Collection[str]) -> dict[str, str]:
        """Of the topics, as they are now; those that are gone are left out."""
        found = self._cluster.metadata(topics).topics
        return {name: str(found[name].id) for name in topics if name in found and found[name].id is not None}

    def at(self, start: Start, topics: Collection[str]) -> dict[TopicPartition, int]:
        """Where a place is in every partition of the topics."""
        known = self._cluster.topics(topics)
        partitions = [TopicPartition(name, part.index) for name, one in known.items() for part in one.partitions]
        return self._resolve(partitions, start)

    def _resolve(self, partitions: list[TopicPartition], place: Start) -> dict[TopicPartition, int]:
        deadline = Deadline.after(self._cluster.timeouts.total)
        found = bounds.resolve(self._cluster, partitions, place, isolation=self._isolation, deadline=deadline)
        return dict(sorted(found.items()))


def beginnings(positions: Offsets, starts: Offsets, topics: tuple[str, ...]) -> dict[TopicPartition, int]:
    """Where to begin with the partitions of topics of which the archive knows nothing."""
    known = {at.topic for at in positions}
    return {at: offset for at, offset in starts.items() if at.topic in topics and at.topic not in known}


def check(positions: Offsets, logs: Logs) -> None:
    """Refuses logs that end before what is archived; the positions must have been read before the logs were."""
    for at, end in logs.ends.items():
        if end < positions.get(at, 0):
            raise InputError(
                f"{at} ends at offset {end}, but is archived up to {positions[at]}: the topic was created again, or"
                " these are the brokers of another cluster"
            )


def faults(positions: Offsets, ids: Mapping[str, str], logs: Logs, *, on_lost: OnLost) -> dict[str, OttlaError]:
    """Which topics cannot be archived, and why: created again, ended before what is archived, offsets lost."""
    found: dict[str, OttlaError] = {}
    for topic in sorted({at.topic for at in logs.begins}):
        mine = logs.without([at.topic for at in logs.begins if at.topic != topic])
        try:
            check(positions, mine)
            require_same_id(topic, ids.get(topic), logs.topics.get(topic))
            due(positions, mine, on_lost=on_lost)
        except OttlaError as error:
            found[topic] = error
    return found


def require_same_id(topic: str, before: str | None, now: str | None) -> None:
    """Refuses a topic that is another one than before, under the same name."""
    if before is not None and now is not None and before != now:
        raise InputError(
            f"topic {topic} was deleted and created again (its id was {before} and is {now}), so that its offsets mean"
            " other records: archive it to another place"
        )


def due(positions: Offsets, logs: Logs, *, on_lost: OnLost) -> Round:
    """All that is not archived yet. A partition of which nothing is known was added later: it begins with its log."""
    ranges: list[OffsetRange] = []
    gaps: list[Gap] = []
    for at, begin in logs.begins.items():
        position = positions.get(at, begin)
        end = logs.ends[at]
        if position < begin:
            lost = OffsetRange(*at, position, begin)
            if on_lost is not OnLost.EARLIEST:
                raise OffsetsLost(
                    *at,
                    start=position,
                    stop=begin,
                    resume=begin,
                    reason="retention deleted them before they were archived",
                )
            gaps.append(Gap(lost, "deleted by retention before it was archived"))
        if max(position, begin) < end:
            ranges.append(OffsetRange(*at, max(position, begin), end))
    return Round(tuple(ranges), tuple(gaps))


def limited(whole: Round, max_bytes: int, record_bytes: RecordBytes) -> Round:
    """About so many bytes of it, of each partition its share."""
    starts = {one.topic_partition: one.start for one in whole.ranges}
    stops = limit_bytes(starts, {one.topic_partition: one.stop for one in whole.ranges}, max_bytes, record_bytes)
    ranges = (OffsetRange(*at, start, stops[at]) for at, start in starts.items())
    return Round(tuple(one for one in ranges if len(one)), whole.gaps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutting:
    """How ranges become tasks: none should write more than a file, and every worker should have some."""

    file_bytes: int
    workers: int
    batch_bytes: int = field(default=0)
    """What one entry of the ledger should have at most; 0: four files for each worker."""

    @property
    def round_bytes(self) -> int:
        """What one entry of the ledger should have at most."""
        return self.batch_bytes or 4 * self.workers * self.file_bytes

    def tasks(self, whole: Round, record_bytes: RecordBytes) -> list[OffsetRange]:
        """The ranges in pieces. Little is not worth dividing: a file for each partition is small enough."""
        total = sum(len(one) for one in whole.ranges)
        worth = min(self.workers, max(1, total // _WORTH_RECORDS))
        return cut(whole.ranges, at_least=worth, max_bytes=self.file_bytes, record_bytes=record_bytes)


_WORTH_RECORDS = 50_000
