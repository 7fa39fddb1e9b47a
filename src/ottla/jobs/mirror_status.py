"""The state of a link: how far each partition is behind, and what its process says about itself.

Positions and lag come from the journal and from the brokers of both sides, so they are known without the mirror's
process. What only the process knows (rates, how batches were passed on, its last error, where it runs) it publishes as
notes in the journal. Journal and clusters come in, `LinkStatus` values go out. Nothing here changes a topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from ottla.admin import Admin, OffsetSpec
from ottla.admin.lookup import find_offsets, find_ranges
from ottla.errors import OttlaError
from ottla.fetch.reader import Reader
from ottla.mirror.journal import Journal
from ottla.mirror.lane import Lane
from ottla.mirror.terms import OffsetMap, Term
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net.cluster import Cluster, Refresh
from ottla.net.deadline import Deadline

STALE_SECONDS = 60.0
"""A note that is older says nothing about the present."""
NOTE = "status"
_ROWS_PER_NOTE = 500
"""A note is one record: those of a link with many partitions are split."""
_SECONDS = 10.0
_MOST_READ = 200
"""Of how many partitions a status reads the last batch, to learn its time, if no process has published it."""


class Lag(NamedTuple):
    """How far a partition is behind. None is unknown."""

    records: int | None = None
    """Offsets between what is mirrored and the end of what readers of committed data see."""
    size_bytes: int | None = None
    """An estimate: the share of the log's size."""
    seconds: float | None = None
    """Between the newest mirrored record and the newest of the source, by their timestamps."""


UNKNOWN = Lag()


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One mirrored partition."""

    source: TopicPartition
    target: TopicPartition
    position: int
    """The source offset before which everything is mirrored."""
    source_end: int | None = None
    lag: Lag = UNKNOWN
    records_per_second: float | None = None
    bytes_per_second: float | None = None
    batches: int = 0
    passed_on: int = 0
    """How many of the batches were passed on as they were, since the process began."""
    last_time: float | None = None
    """The newest timestamp of a mirrored record, in seconds since 1970; None if the process has mirrored none."""
    phase: str = ""
    """What the process is doing with it: `running`, `done`, `failed`, ...; empty without a note."""
    error: str | None = None
    term: tuple[int, int] | None = None
    """The identity of the term in which the process was: what it says about positions holds in that term."""

    @property
    def share(self) -> float | None:
        """The share of batches that were passed on as they were, None without any."""
        return self.passed_on / self.batches if self.batches else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "topic": self.source.topic,
            "partition": self.source.partition,
            "target_topic": self.target.topic,
            "target_partition": self.target.partition,
            "position": self.position,
            "source_end": self.source_end,
            "lag_records": self.lag.records,
            "lag_bytes": self.lag.size_bytes,
            "lag_seconds": self.lag.seconds,
            "records_per_second": self.records_per_second,
            "bytes_per_second": self.bytes_per_second,
            "batches": self.batches,
            "passed_on": self.passed_on,
            "last_time": self.last_time,
            "phase": self.phase,
            "error": self.error,
            "term": self.term,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> PartitionStatus:
        """Build a status from the result of `to_json`. Raises `KeyError` or `TypeError` if it is none."""
        return cls(
            source=TopicPartition(row["topic"], row["partition"]),
            target=TopicPartition(row["target_topic"], row["target_partition"]),
            position=row["position"],
            source_end=row["source_end"],
            lag=Lag(row["lag_records"], row["lag_bytes"], row["lag_seconds"]),
            records_per_second=row["records_per_second"],
            bytes_per_second=row["bytes_per_second"],
            batches=row["batches"],
            passed_on=row["passed_on"],
            last_time=row["last_time"],
            phase=row["phase"],
            error=row["error"],
            term=None if row["term"] is None else (row["term"][0], row["term"][1]),
        )


@dataclass(frozen=True, slots=True)
class ProcessNote:
    """What the process of a link last said about itself."""

    host: str
    pid: int
    since: float
    """When it began, in seconds since 1970."""
    at: float
    """When it wrote this."""
    state: str
    """`running` or `ended`."""
    source: str
    """The bootstrap addresses of the source."""
    records: int = 0
    size_bytes: int = 0
    error: str | None = None
    refused: tuple[str, ...] = ()
    """Topics that the target does not take, each with the reason."""

    def is_stale(self, now: float) -> bool:
        """Whether a process that claims to run has not written for a minute."""
        return self.state == "running" and now - self.at > STALE_SECONDS


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """A link with all its partitions."""

    link: str
    partitions: tuple[PartitionStatus, ...]
    process: ProcessNote | None
    state: str
    """`running`, `ended`, `stale` (it claims to run and is silent), or `unknown`."""
    lag_at: float | None = None
    """When the lag was measured, in seconds since 1970: now, or when the process published it."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "link": self.link,
            "state": self.state,
            "process": None if self.process is None else asdict(self.process),
            "lag_records": total(status.lag.records for status in self.partitions),
            "lag_bytes": total(status.lag.size_bytes for status in self.partitions),
            "lag_seconds": highest(status.lag.seconds for status in self.partitions),
            "lag_at": self.lag_at,
            "partitions": [status.to_json() for status in self.partitions],
        }


def total(values: Iterable[int | None]) -> int | None:
    """Return the sum of what is known, None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def highest(values: Iterable[float | None]) -> float | None:
    """Return the highest of what is known, None if nothing is."""
    return max((value for value in values if value is not None), default=None)


# What the process says


def position_of(lane: Lane) -> int | None:
    """Return the source offset before which a lane has mirrored everything, None before it has taken over.

    The lane belongs to another thread. Its queue is filled before its position moves, so an empty queue, looked at
    afterwards, means that everything before that position is acknowledged.
    """
    term, position = lane.term, lane.position
    if term is not None and not lane.queue and lane.term is term:
        return position
    return None if lane.began_at < 0 else lane.acknowledged.source


class Meter:
    """Turns lanes into statuses. The rates are those between two calls of `read`."""

    def __init__(self) -> None:
        self._before: dict[TopicPartition, tuple[float, int, int]] = {}

    def read(self, lanes: Iterable[Lane], *, now: float) -> list[PartitionStatus]:
        """Return the status of each lane, without its lag. `now` is by `time.monotonic`."""
        return [self._read(lane, now) for lane in lanes]

    def _read(self, lane: Lane, now: float) -> PartitionStatus:
        counts = lane.counts
        records, size = counts.records, counts.size_bytes
        then, records_then, size_then = self._before.get(lane.source, (now, records, size))
        self._before[lane.source] = (now, records, size)
        seconds = now - then
        return PartitionStatus(
            lane.source,
            lane.target,
            position=position_of(lane) or 0,
            records_per_second=(records - records_then) / seconds if seconds > 0 else None,
            bytes_per_second=(size - size_then) / seconds if seconds > 0 else None,
            batches=counts.batches,
            passed_on=counts.batches - sum(counts.recoded.values()),
            last_time=None if (last := counts.last_time) is None else last / 1000,
            phase=lane.phase.name.lower(),
            error=None if lane.error is None else str(lane.error),
            term=None if (term := lane.term) is None else term.identity,
        )


def publish(journal: Journal, process: ProcessNote, statuses: Sequence[PartitionStatus]) -> None:
    """Write what a process says about itself and its partitions to the journal."""
    chunks = [statuses[first : first + _ROWS_PER_NOTE] for first in range(0, len(statuses), _ROWS_PER_NOTE)]
    for number, chunk in enumerate(chunks):
        journal.write_note(f"{NOTE}.{number}", {"partitions": [status.to_json() for status in chunk]})
    journal.write_note(NOTE, {**asdict(process), "notes": len(chunks)})


def published(journal: Journal) -> tuple[ProcessNote | None, dict[TopicPartition, PartitionStatus]]:
    """Return the last notes of the link's process, the statuses by source partition."""
    head = journal.note(NOTE)
    if not head:
        return None, {}
    try:
        process = ProcessNote(**{name: head[name] for name in ProcessNote.__slots__ if name in head})
        process = replace(process, refused=tuple(map(str, process.refused)))
        notes = [journal.note(f"{NOTE}.{number}") or {} for number in range(int(head["notes"]))]
        statuses = [PartitionStatus.from_json(row) for note in notes for row in note.get("partitions", ())]
    except (KeyError, TypeError, ValueError):
        return None, {}  # of another version
    return process, {status.source: status for status in statuses}


# What brokers say


class Measured(NamedTuple):
    """A source partition as its brokers have it, and how far the mirror is behind."""

    source: OffsetRange
    """What readers of committed data see."""
    lag: Lag


def measure(
    source: Cluster, statuses: Iterable[PartitionStatus], *, seconds: float = _SECONDS
) -> dict[TopicPartition, Measured]:
    """Return how far each partition is behind.

    Partitions that no broker can tell about are absent; so are bytes and seconds that no broker tells.
    """
    known = {status.source: status for status in statuses}
    if not known:
        return {}
    deadline = Deadline.after(seconds)
    source.metadata({tp.topic for tp in known}, deadline=deadline, refresh=Refresh.IF_STALE)
    ranges = find_ranges(source, list(known), deadline=deadline, isolation=Isolation.READ_COMMITTED)
    behind = [tp for tp, unit in ranges.items() if unit.stop > known[tp].position]
    sizes = _sizes(source, {tp.topic for tp in behind}, deadline)
    newest = _newest(source, behind, deadline)
    measured = {}
    for tp, unit in ranges.items():
        status = known[tp]
        lag = lag_of(status.position, unit, size_bytes=sizes.get(tp), newest=newest.get(tp), mirrored=status.last_time)
        measured[tp] = Measured(unit, lag)
    return measured


def lag_of(
    position: int, log: OffsetRange, *, size_bytes: int | None, newest: float | None, mirrored: float | None
) -> Lag:
    """Return the lag of a partition from what brokers say about its log. Timestamps are seconds since 1970."""
    records = max(0, log.stop - max(position, log.start))
    if not records:
        return Lag(0, 0, 0.0)
    share = records / max(1, log.stop - log.start)
    return Lag(
        records,
        None if size_bytes is None else round(size_bytes * share),
        None if newest is None or mirrored is None else max(0.0, newest - mirrored),
    )


def read_status(
    journal: Journal, target: Cluster, *, source: Cluster | None, now: float, seconds: float = _SECONDS
) -> LinkStatus:
    """Return the state of a link. Without `source`, lag is what the process said last. `now` is seconds since 1970.

    Raises the errors of `Cluster.call` if the brokers of a side do not answer.
    """
    process, noted = published(journal)
    is_stale = process is not None and process.is_stale(now)
    state = "unknown" if process is None else "stale" if is_stale else process.state
    entries = journal.all_entries()
    # Without a process, marks are final or a few seconds old. Those of a running one trail: the log is further.
    ends = _ends(target, entries, seconds) if state == "running" else {}
    statuses = []
    for tp, rows in entries.items():
        terms, note = [row.term for row in rows], noted.get(rows[-1].source)
        status = note or PartitionStatus(rows[-1].source, tp, 0)
        status = replace(status, target=tp, position=_position(terms, ends.get(tp), note))
        if state != "running":
            status = replace(status, records_per_second=None, bytes_per_second=None)
        statuses.append(status)
    if source is not None:
        untimed = {status.target for status in statuses if status.last_time is None}
        mirrored = {tp: OffsetMap(row.term for row in entries[tp]).target_end for tp in sorted(untimed)[:_MOST_READ]}
        times = _last_times(target, mirrored)
        statuses = [replace(status, last_time=times.get(status.target, status.last_time)) for status in statuses]
        measured = measure(source, statuses, seconds=seconds)
        statuses = [with_lag(status, measured.get(status.source)) for status in statuses]
    statuses.sort(key=lambda status: status.source)
    known = {status.source for status in statuses}
    failed = [status for tp, status in noted.items() if tp not in known and status.error is not None]
    lag_at = now if source is not None else None if process is None else process.at
    return LinkStatus(journal.link, (*statuses, *failed), process, state, lag_at)


def with_lag(status: PartitionStatus, measured: Measured | None) -> PartitionStatus:
    """Return the status with what was measured of its partition, or with an unknown lag."""
    if measured is None:
        return replace(status, source_end=None, lag=UNKNOWN)
    return replace(status, source_end=measured.source.stop, lag=measured.lag)


def estimated_position(terms: Sequence[Term], target_end: int | None) -> int:
    """Return the source offset that a partition has reached, from the last mark and the end of the target's log.

    What lies behind the mark counts as mirrored: exact unless there are foreign records. Only for showing.
    """
    last = terms[-1]
    reached = last.reached
    more = 0 if target_end is None else max(0, target_end - reached.target)
    try:
        return max(reached.source, last.source_after(reached.number + more)[0])
    except LookupError:
        return reached.source


def noted_position(terms: Sequence[Term], noted: PartitionStatus | None) -> int:
    """Return the position in a note, which also covers gaps at the end of the source; 0 if it is of another term."""
    return noted.position if noted is not None and noted.term == terms[-1].identity else 0


def _position(terms: Sequence[Term], target_end: int | None, noted: PartitionStatus | None) -> int:
    return max(estimated_position(terms, target_end), noted_position(terms, noted))


def _ends(cluster: Cluster, partitions: Iterable[TopicPartition], seconds: float) -> dict[TopicPartition, int]:
    selected = list(partitions)
    if not selected:
        return {}
    deadline = Deadline.after(seconds)
    cluster.metadata({tp.topic for tp in selected}, deadline=deadline, refresh=Refresh.IF_STALE)
    return {tp: unit.stop for tp, unit in find_ranges(cluster, selected, deadline=deadline).items()}


def _sizes(cluster: Cluster, topics: set[str], deadline: Deadline) -> dict[TopicPartition, int]:
    """Return the sizes of logs, as far as brokers tell: some users may not ask."""
    if not topics:
        return {}
    try:
        sizes = Admin(cluster).replica_sizes(topics, timeout=deadline.remaining())
    except OttlaError:
        return {}
    return {tp: size for tp in sizes.copies if (size := sizes.largest(tp)) is not None}


def _newest(cluster: Cluster, partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, float]:
    """Return the greatest timestamp of each partition, as far as brokers tell."""
    selected = list(partitions)
    if not selected:
        return {}
    limit = deadline.sooner(deadline.remaining() / 2)
    try:
        found = find_offsets(
            cluster, selected, at=OffsetSpec.MAX_TIMESTAMP, isolation=Isolation.READ_UNCOMMITTED, deadline=limit
        )
    except OttlaError:
        return {}  # before Kafka 3.0, or a partition without a leader
    return {tp: at.timestamp / 1000 for tp, at in found.items() if at.offset >= 0}


def _last_times(cluster: Cluster, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
    """Return the newest timestamp in the last batch before each of these target offsets, from its header.

    Brokers tell the newest timestamp of a log, too, but that may be one of a marker.
    """
    times: dict[TopicPartition, float] = {}
    reader = Reader(cluster, isolation=Isolation.READ_UNCOMMITTED)
    try:
        for tp, end in ends.items():
            if not end:
                continue
            with closing(reader.batches(OffsetRange(*tp, end - 1, end))) as batches:
                for raw in batches:
                    times[tp] = raw.batch.header.max_timestamp / 1000
    except OttlaError:
        pass  # deleted meanwhile
    finally:
        reader.close()
    return times
