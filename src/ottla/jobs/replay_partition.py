"""The job that replays one source partition of an archive into a topic, chunk by chunk, exactly once.

An `OffsetRange` of the source comes in, `Replayed` goes out, with a receipt for each chunk. Every chunk is a
transaction of its records and of the position behind them, which is committed as the offset of a consumer group;
whoever begins takes the transactional id first, so that nobody else can commit any more, and reads the position then.
It can be pickled and knows no engine.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.admin.committed import fetch_committed
from ottla.config import PLAINTEXT, Security, Timeouts
from ottla.errors import Fenced
from ottla.jobs import replay_source
from ottla.jobs.replay_notes import NO_NOTES, Note, Notes
from ottla.jobs.replay_source import Selection, SourcePartition
from ottla.jobs.replay_throttle import ReplayControl
from ottla.model import Fingerprint, GroupMember, Isolation, OffsetRange, Receipt, TopicPartition
from ottla.net.cluster import Cluster
from ottla.produce.producer import Producer
from ottla.wire.columns import Columns, from_arrow
from ottla.wire.encode import fingerprint_of

CHUNK_BYTES = 16 << 20
CHUNK_RECORDS = 200_000
_TRANSACTION_SECONDS = 60.0
"""How long readers may have to wait behind a replay that was killed and is not begun again."""
_LARGEST_RECORD = (1 << 30) - 1
"""The broker says what is too large: the records were in a log once."""


class Placement(Enum):
    """Which partition of the target a record goes to."""

    BY_KEY = "by key"
    """As any producer has it."""
    KEPT = "kept"
    """The number that it has had."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The topic that is written to, and how to reach it."""

    bootstrap: str
    topic: str
    placement: Placement = Placement.BY_KEY
    security: Security = PLAINTEXT
    timeouts: Timeouts = field(default_factory=Timeouts)
    compression: str = "zstd"

    @property
    def position_at(self) -> TopicPartition:
        """The partition for which positions are committed; every topic has it."""
        return TopicPartition(self.topic, 0)

    def cluster(self) -> Cluster:
        """A connection for questions."""
        return Cluster(self.bootstrap, security=self.security, client_id="ottla-replay", timeouts=self.timeouts)

    def producer(self, transactional_id: str) -> Producer:
        """A producer of its own for a lineage."""
        return Producer(
            self.bootstrap,
            security=self.security,
            client_id="ottla-replay",
            timeouts=self.timeouts,
            transactional_id=transactional_id,
            transaction_timeout=_TRANSACTION_SECONDS,
            compression=self.compression,
            max_record_bytes=_LARGEST_RECORD,
        )


@dataclass(frozen=True, slots=True)
class ReplayNames:
    """Under which names the brokers know a replay.

    A topic's name has no colon, and neither has that of a replay, so no two lineages share one.
    """

    name: str
    digest: str
    """Of what is selected and where it goes: positions of another selection are never taken for ours."""

    @property
    def prefix(self) -> str:
        """Of the groups of every replay of this name, whatever it selects."""
        return f"ottla-replay-{self.name}:"

    def transactional_id(self, at: TopicPartition) -> str:
        """Of the lineage; the same for every selection, so that two under one name end one another."""
        return f"{self.prefix}{at.topic}:{at.partition}"

    def group(self, at: TopicPartition) -> str:
        """The group whose offset is the position of the lineage."""
        return f"{self.prefix}{self.digest}:{at.topic}:{at.partition}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What was done of a lineage."""

    range: OffsetRange
    """All of it."""
    start: int
    """The position at which this run has begun; the beginning if it was stopped before it looked."""
    position: int
    """The position at which it has ended: what lies before is in the topic, exactly once."""
    receipts: tuple[Receipt, ...]
    """One for each chunk: source range, number and fingerprint of the records sent."""
    before: Fingerprint | None
    """Of what earlier runs have sent; None if that is not known."""

    @property
    def whole(self) -> Fingerprint | None:
        """Of everything before the position, whichever run has sent it."""
        return None if self.before is None else self.before + self.fingerprint

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left."""
        return self.position >= self.range.stop

    @property
    def fingerprint(self) -> Fingerprint:
        """Of all records that were sent."""
        return sum((one.fingerprint for one in self.receipts), Fingerprint())

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "topic": self.range.topic,
            "partition": self.range.partition,
            "start": self.start,
            "position": self.position,
            "stop": self.range.stop,
            "finished": self.is_finished,
            "fingerprint": str(self.fingerprint),
            "whole": None if self.whole is None else str(self.whole),
            "receipts": [one.to_json() for one in self.receipts],
        }


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPartition:
    """Replays the lineage of the range it is called with."""

    target: Target
    title: ReplayNames
    lineages: Mapping[TopicPartition, SourcePartition]
    selection: Selection
    notes: Notes = NO_NOTES
    reins: ReplayControl = field(default_factory=ReplayControl)
    is_stopped: Callable[[], bool] = _never
    chunk_bytes: int = CHUNK_BYTES
    chunk_records: int = CHUNK_RECORDS

    def until(self, is_stopped: Callable[[], bool]) -> ReplayPartition:
        """The same job, which ends after the chunk that is under way when a function says so."""
        before = self.is_stopped
        return replace(self, is_stopped=lambda: before() or is_stopped())

    def __call__(self, one: OffsetRange) -> Replayed:
        """Goes on at the position; returns at the end of the range, or when it was stopped."""
        at = one.topic_partition
        if self.is_stopped():
            return Replayed(one, one.start, one.start, (), None)
        try:
            with self.target.producer(self.title.transactional_id(at)) as producer:
                with producer.transaction():
                    pass  # from here on nobody else commits, and what somebody has left open is aborted
                start = max(one.start, self._position(one))
                return self._run(producer, one, start=start, before=self._sent_before(one, start))
        except Fenced as error:
            raise Fenced(
                f"{at} is replayed by somebody else: another run of the replay {self.title.name} has taken over, or a"
                f" chunk took longer than {_TRANSACTION_SECONDS:.0f} s; nothing was written twice, and this run has"
                " stopped",
                records=0,
                cause=error,
            ) from error

    def _position(self, one: OffsetRange) -> int:
        with self.target.cluster() as cluster:
            found = position(cluster, self.target, self.title, one.topic_partition, isolation=Isolation.READ_COMMITTED)
        return self.notes.checked(one, found)

    def _sent_before(self, one: OffsetRange, start: int) -> Fingerprint | None:
        """What the notes say; of the chunk that was committed and not noted, what the archive says."""
        if start <= one.start:
            return Fingerprint()
        note = self.notes.read(one.topic_partition)
        if note is None or note.position > start:
            return None
        found = note.fingerprint
        lineage = self.lineages[one.topic_partition]
        for batch in replay_source.records(lineage, start=note.position, selection=self.selection):
            missed = batch.filter(pc.less(batch.column("offset"), start))
            if not missed.num_rows:
                break
            found += fingerprint_of(_columns(missed))
        return found

    def _run(self, producer: Producer, one: OffsetRange, *, start: int, before: Fingerprint | None) -> Replayed:
        at, now, whole = one.topic_partition, start, before
        receipts: list[Receipt] = []
        self._told(at, now, whole)
        for chunk in self._chunks(at, start):
            columns = _columns(chunk)
            if not self.reins.wait(columns.count, columns.data_bytes, self.is_stopped):
                return Replayed(one, start, now, tuple(receipts), before)
            stop = int(chunk.column("offset")[-1].as_py()) + 1
            receipts.append(self._send(producer, chunk, columns, OffsetRange(*at, now, stop)))
            now, whole = stop, None if whole is None else whole + receipts[-1].fingerprint
            self._told(at, now, whole, receipts[-1])
        if now < one.stop and not self.is_stopped():
            with producer.transaction() as transaction:  # what follows was not selected
                transaction.send_offsets(self.title.group(at), {self.target.position_at: one.stop})
            now = one.stop
            self._told(at, now, whole)
        return Replayed(one, start, now, tuple(receipts), before)

    def _told(self, at: TopicPartition, now: int, whole: Fingerprint | None, receipt: Receipt | None = None) -> None:
        """Whoever looks hears how far it is."""
        records, size = (0, 0) if receipt is None else (receipt.count, receipt.size_bytes)
        self.reins.sent(at, now, records=records, size_bytes=size)
        if whole is not None:
            self.notes.write(at, Note(now, whole, time.time()))

    def _send(self, producer: Producer, chunk: pa.Table, columns: Columns, span: OffsetRange) -> Receipt:
        started, began = time.time(), time.monotonic()
        with producer.transaction() as transaction:
            producer.send_table(self.target.topic, self._rows(chunk))
            transaction.send_offsets(self.title.group(span.topic_partition), {self.target.position_at: span.stop})
        first, last = pc.min_max(chunk.column("timestamp").cast(pa.int64())).as_py().values()  # years beyond 9999, too
        return Receipt(
            range=span,
            fingerprint=fingerprint_of(columns),
            size_bytes=columns.data_bytes,
            first_time=first / 1e6,
            last_time=last / 1e6,
            host=socket.gethostname(),
            started=started,
            seconds=time.monotonic() - began,
        )

    def _rows(self, chunk: pa.Table) -> pa.Table:
        kept = ("partition",) if self.target.placement is Placement.KEPT else ()
        rows = chunk.select(["key", "value", "headers", *kept])
        return rows.append_column("timestamp", _times(chunk.column("timestamp")))

    def _chunks(self, at: TopicPartition, start: int) -> Iterator[pa.Table]:
        rate = self.reins.rate
        records, size = (None, None) if rate is None else rate.at_once()
        found = replay_source.records(self.lineages[at], start=start, selection=self.selection)
        return chunks(
            found,
            most_records=min(self.chunk_records, records or self.chunk_records),
            most_bytes=min(self.chunk_bytes, size or self.chunk_bytes),
        )


def position(
    cluster: Cluster, target: Target, title: ReplayNames, at: TopicPartition, *, isolation: Isolation
) -> int | None:
    """The next source offset of a lineage as the brokers know it, None if they know of none.

    With READ_COMMITTED, a transaction that is about to change it is awaited.
    """
    member = GroupMember(title.group(at))
    found = fetch_committed(cluster, member, [target.position_at], isolation=isolation)
    return found[target.position_at].offset if target.position_at in found else None


def chunks(found: Iterator[pa.RecordBatch], *, most_records: int, most_bytes: int) -> Iterator[pa.Table]:
    """The records in runs that have at most so many, and about so many bytes; never an empty one."""
    waiting: list[pa.RecordBatch] = []
    records = size = 0
    for batch in found:
        for piece in _cut(batch, most_records, most_bytes):
            if waiting and (records + piece.num_rows > most_records or size + piece.nbytes > most_bytes):
                yield pa.Table.from_batches(waiting)
                waiting, records, size = [], 0, 0
            waiting.append(piece)
            records += piece.num_rows
            size += piece.nbytes
    if waiting:
        yield pa.Table.from_batches(waiting)


def _cut(batch: pa.RecordBatch, most_records: int, most_bytes: int) -> Iterator[pa.RecordBatch]:
    each = max(1, batch.nbytes // batch.num_rows)
    step = max(1, min(most_records, most_bytes // each))
    for first in range(0, batch.num_rows, step):
        yield batch.slice(first, step)


def _times(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A record that has none, which Kafka writes as -1 ms, gets the time of sending."""
    now = pa.scalar(int(time.time() * 1e6), pa.int64()).cast(column.type)
    is_known = pc.greater_equal(column, pa.scalar(0, pa.int64()).cast(column.type))
    return pc.if_else(is_known, column, now)


def _columns(chunk: pa.Table) -> Columns:
    return from_arrow(chunk.column("value"), key=chunk.column("key"), headers=chunk.column("headers"))
