"""The job that replays one source partition of an archive into a topic, chunk by chunk, exactly once.

An `OffsetRange` of the source comes in, `Replayed` goes out, with a receipt for each chunk. Every chunk is one
transaction: its records, and the position after them, committed as the offset of a consumer group. A run first takes
over the transactional id, which fences every other run, and only then reads the position. The job can be pickled and
knows no engine.
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
from ottla.errors import Fenced
from ottla.jobs import replay_source
from ottla.jobs.replay_notes import NO_NOTES, Note, Notes
from ottla.jobs.replay_source import Selection, SourcePartition
from ottla.jobs.replay_throttle import ReplayControl
from ottla.model import Fingerprint, GroupMember, Isolation, OffsetRange, Receipt, TopicPartition
from ottla.net.access import ClusterAccess
from ottla.net.cluster import Cluster
from ottla.produce.producer import Producer
from ottla.wire.columns import Columns, from_arrow
from ottla.wire.encode import fingerprint_of

CLIENT_ID = "ottla-replay"
CHUNK_BYTES = 16 << 20
CHUNK_RECORDS = 200_000
_TRANSACTION_SECONDS = 60.0
"""How long read-committed readers may wait behind a replay that was killed and not resumed."""
_LARGEST_RECORD = (1 << 30) - 1
"""No limit of our own: these records were in a log once, and the broker refuses what is too large."""


class Placement(Enum):
    """Which partition of the target a record goes to."""

    BY_KEY = "by key"
    """By the hash of the key, as any producer does it."""
    KEPT = "kept"
    """The partition number that it had in the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The topic to write to, and how to reach it."""

    access: ClusterAccess
    topic: str
    placement: Placement = Placement.BY_KEY
    compression: str = "zstd"

    @property
    def position_at(self) -> TopicPartition:
        """The partition under which positions are committed. Partition 0 exists in every topic."""
        return TopicPartition(self.topic, 0)

    def producer(self, transactional_id: str) -> Producer:
        """Return the producer of one source partition."""
        return Producer(
            self.access,
            transactional_id=transactional_id,
            transaction_timeout=_TRANSACTION_SECONDS,
            compression=self.compression,
            max_record_bytes=_LARGEST_RECORD,
        )


@dataclass(frozen=True, slots=True)
class ReplayNames:
    """The names of a replay on the brokers.

    Neither a topic's name nor a replay's has a colon, so no two source partitions share a name.
    """

    name: str
    digest: str
    """Of the selection and the target, so that positions of another selection are never mistaken for ours."""

    @property
    def prefix(self) -> str:
        """The prefix of the groups of all replays with this name, whatever they select."""
        return f"ottla-replay-{self.name}:"

    def transactional_id(self, tp: TopicPartition) -> str:
        """Return the transactional id of a source partition.

        It does not depend on the selection, so of two replays with one name the later fences the earlier.
        """
        return f"{self.prefix}{tp.topic}:{tp.partition}"

    def group(self, tp: TopicPartition) -> str:
        """Return the group whose committed offset is the position of a source partition."""
        return f"{self.prefix}{self.digest}:{tp.topic}:{tp.partition}"


@dataclass(frozen=True, slots=True)
class Replayed:
    """What one run did for a source partition."""

    range: OffsetRange
    """The whole range of the source partition."""
    start: int
    """The position where this run started; the start of the range if it was stopped before it read the position."""
    position: int
    """The position where it ended. Everything before it is in the topic, exactly once."""
    receipts: tuple[Receipt, ...]
    """One per chunk: source range, number and fingerprint of the records sent."""
    before: Fingerprint | None
    """The fingerprint of what earlier runs sent; None if unknown."""

    @property
    def whole(self) -> Fingerprint | None:
        """The fingerprint of everything before the position, by all runs; None if unknown."""
        return None if self.before is None else self.before + self.fingerprint

    @property
    def is_finished(self) -> bool:
        """Whether no records are left."""
        return self.position >= self.range.stop

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the records that this run sent."""
        return sum((receipt.fingerprint for receipt in self.receipts), Fingerprint())

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "topic": self.range.topic,
            "partition": self.range.partition,
            "start": self.start,
            "position": self.position,
            "stop": self.range.stop,
            "finished": self.is_finished,
            "fingerprint": str(self.fingerprint),
            "whole": None if self.whole is None else str(self.whole),
            "receipts": [receipt.to_json() for receipt in self.receipts],
        }


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPartition:
    """Replays the source partition of the range it is called with."""

    target: Target
    names: ReplayNames
    partitions: Mapping[TopicPartition, SourcePartition]
    selection: Selection
    notes: Notes = NO_NOTES
    control: ReplayControl = field(default_factory=ReplayControl)
    is_stopped: Callable[[], bool] = _never
    chunk_bytes: int = CHUNK_BYTES
    chunk_records: int = CHUNK_RECORDS

    def until(self, is_stopped: Callable[[], bool]) -> ReplayPartition:
        """Return the same job, which ends after the current chunk once `is_stopped` returns True."""
        before = self.is_stopped
        return replace(self, is_stopped=lambda: before() or is_stopped())

    def __call__(self, span: OffsetRange) -> Replayed:
        """Continue at the committed position. Return at the end of the range, or when stopped.

        Raises `Fenced` if another run takes over, and `LakeError` if the archive is damaged or the position is lost.
        """
        tp = span.topic_partition
        if self.is_stopped():
            return Replayed(span, span.start, span.start, (), None)
        try:
            with self.target.producer(self.names.transactional_id(tp)) as producer:
                with producer.transaction():
                    pass  # fences other runs and aborts what a killed one left open, so the position read next is final
                start = max(span.start, self._position(span))
                return self._run(producer, span, start=start, before=self._sent_before(span, start))
        except Fenced as error:
            raise Fenced(
                f"another run of the replay {self.names.name} took over {tp}, or a chunk took longer than"
                f" {_TRANSACTION_SECONDS:.0f} s; nothing was written twice, and this run has stopped",
                records=0,
                cause=error,
            ) from error

    def _position(self, span: OffsetRange) -> int:
        with self.target.access.cluster() as cluster:
            committed = position(
                cluster, self.target, self.names, span.topic_partition, isolation=Isolation.READ_COMMITTED
            )
        return self.notes.checked(span, committed)

    def _sent_before(self, span: OffsetRange, start: int) -> Fingerprint | None:
        """Return the fingerprint of what earlier runs sent, from the notes.

        A chunk that was committed and not noted is read from the archive again.
        """
        if start <= span.start:
            return Fingerprint()
        note = self.notes.read(span.topic_partition)
        if note is None or note.position > start:
            return None
        total = note.fingerprint
        partition = self.partitions[span.topic_partition]
        for batch in replay_source.records(partition, start=note.position, selection=self.selection):
            unnoted = batch.filter(pc.less(batch.column("offset"), start))
            if not unnoted.num_rows:
                break
            total += fingerprint_of(_columns(unnoted))
        return total

    def _run(self, producer: Producer, span: OffsetRange, *, start: int, before: Fingerprint | None) -> Replayed:
        tp, reached, total = span.topic_partition, start, before
        receipts: list[Receipt] = []
        self._report(tp, reached, total)
        for chunk in self._chunks(tp, start):
            columns = _columns(chunk)
            if not self.control.wait(columns.count, columns.data_bytes, self.is_stopped):
                return Replayed(span, start, reached, tuple(receipts), before)
            stop = int(chunk.column("offset")[-1].as_py()) + 1
            receipts.append(self._send(producer, chunk, columns, OffsetRange(*tp, reached, stop)))
            reached, total = stop, None if total is None else total + receipts[-1].fingerprint
            self._report(tp, reached, total, receipts[-1])
        if reached < span.stop and not self.is_stopped():
            with producer.transaction() as transaction:  # the rest is not selected: commit the position alone
                transaction.send_offsets(self.names.group(tp), {self.target.position_at: span.stop})
            reached = span.stop
            self._report(tp, reached, total)
        return Replayed(span, start, reached, tuple(receipts), before)

    def _report(
        self, tp: TopicPartition, reached: int, total: Fingerprint | None, receipt: Receipt | None = None
    ) -> None:
        """Update the counters and the note."""
        records, size = (0, 0) if receipt is None else (receipt.count, receipt.size_bytes)
        self.control.sent(tp, reached, records=records, size_bytes=size)
        if total is not None:
            self.notes.write(tp, Note(reached, total, time.time()))

    def _send(self, producer: Producer, chunk: pa.Table, columns: Columns, span: OffsetRange) -> Receipt:
        started, began = time.time(), time.monotonic()
        # Records and position in one transaction: this is what makes a replay exactly-once.
        with producer.transaction() as transaction:
            producer.send_table(self.target.topic, self._rows(chunk))
            transaction.send_offsets(self.names.group(span.topic_partition), {self.target.position_at: span.stop})
        # As integers: timestamps may be beyond the year 9999, which Python's datetime cannot hold.
        first, last = pc.min_max(chunk.column("timestamp").cast(pa.int64())).as_py().values()
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

    def _chunks(self, tp: TopicPartition, start: int) -> Iterator[pa.Table]:
        rate = self.control.rate
        records, size = (None, None) if rate is None else rate.at_once()
        batches = replay_source.records(self.partitions[tp], start=start, selection=self.selection)
        return chunks(
            batches,
            most_records=min(self.chunk_records, records or self.chunk_records),
            most_bytes=min(self.chunk_bytes, size or self.chunk_bytes),
        )


def position(
    cluster: Cluster, target: Target, names: ReplayNames, tp: TopicPartition, *, isolation: Isolation
) -> int | None:
    """Return the next source offset of a source partition as committed on the brokers; None if they have none.

    With READ_COMMITTED it waits for a transaction that is about to change it.
    """
    member = GroupMember(names.group(tp))
    committed = fetch_committed(cluster, member, [target.position_at], isolation=isolation)
    return committed[target.position_at].offset if target.position_at in committed else None


def chunks(batches: Iterator[pa.RecordBatch], *, most_records: int, most_bytes: int) -> Iterator[pa.Table]:
    """Regroup batches into tables of at most `most_records` and about `most_bytes`. None of them is empty."""
    waiting: list[pa.RecordBatch] = []
    records = size = 0
    for batch in batches:
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
    """Give records without a timestamp (-1 ms in Kafka) the time of sending."""
    now = pa.scalar(int(time.time() * 1e6), pa.int64()).cast(column.type)
    is_known = pc.greater_equal(column, pa.scalar(0, pa.int64()).cast(column.type))
    return pc.if_else(is_known, column, now)


def _columns(chunk: pa.Table) -> Columns:
    return from_arrow(chunk.column("value"), key=chunk.column("key"), headers=chunk.column("headers"))
