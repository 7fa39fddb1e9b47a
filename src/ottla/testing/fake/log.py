"""The log of one partition: stored batches, the sequence checks of idempotent producers, reading by offset.

Parsed batches come in; offsets and bytes go out, or `Refused` with the error code of a real broker. It knows nothing
about brokers, topics or clocks.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from ottla.errors import ErrorCode
from ottla.wire.batch import Batch, BatchHeader

REMEMBERED_BATCHES = 5  # ProducerStateEntry.NUM_BATCHES_TO_RETAIN of the real broker
_SEQUENCES = 1 << 31  # Sequence numbers run from 0 to 2**31 - 1 and then wrap around.


class Refused(Exception):
    """Answer a request, or its part for one partition, with an error code."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        self.message = message
        super().__init__(message or code.name)


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """One batch in the log: base offset and leader epoch are the broker's, everything else is as sent."""

    data: bytes
    header: BatchHeader


@dataclass(frozen=True, slots=True)
class Remembered:
    """What identifies a producer's batch when it is sent again."""

    first_sequence: int
    last_sequence: int
    base_offset: int


@dataclass(slots=True)
class Producer:
    """What a partition knows about one producer id."""

    epoch: int
    batches: deque[Remembered] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))

    def find(self, header: BatchHeader) -> Remembered | None:
        """Return the same batch, if it is one of the last few of the same epoch."""
        if header.producer_epoch != self.epoch:
            return None
        sequences = header.base_sequence, last_sequence(header)
        return next((b for b in self.batches if (b.first_sequence, b.last_sequence) == sequences), None)

    def check(self, header: BatchHeader) -> None:
        """Raise `Refused` for an old epoch, or a sequence that does not follow the last one."""
        if header.producer_epoch < self.epoch:
            raise Refused(
                ErrorCode.invalid_producer_epoch,
                f"epoch {header.producer_epoch} of producer {header.producer_id} is older than {self.epoch}",
            )
        expected = 0 if header.producer_epoch > self.epoch else (self.batches[-1].last_sequence + 1) % _SEQUENCES
        if header.base_sequence != expected:
            raise Refused(
                ErrorCode.out_of_order_sequence_number,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, expected {expected}",
            )

    def remember(self, header: BatchHeader, base_offset: int) -> None:
        """Add the batch as the newest one; a newer epoch drops the batches of the older one."""
        if header.producer_epoch != self.epoch:
            self.epoch = header.producer_epoch
            self.batches.clear()
        self.batches.append(Remembered(header.base_sequence, last_sequence(header), base_offset))


def last_sequence(header: BatchHeader) -> int:
    """Return the sequence number of a batch's last record."""
    return (header.base_sequence + header.last_offset_delta) % _SEQUENCES


class PartitionLog:
    """The batches of one partition, with the offsets `[start, end)`."""

    def __init__(self) -> None:
        self.start = 0
        self.end = 0
        self.batches: list[StoredBatch] = []
        self.producers: dict[int, Producer] = {}
        self.epochs: list[tuple[int, int]] = []
        """Each leader epoch that wrote something, with its first offset."""

    def append(self, batch: Batch, *, leader_epoch: int) -> int:
        """Store the batch and return its base offset; a duplicate keeps its first offset.

        Raises `Refused` for a fenced epoch or an out-of-order sequence.
        """
        header = batch.header
        if header.producer_id < 0:
            return self._store(batch, leader_epoch)
        # A producer that this partition does not know may start with any sequence: its state may have expired.
        producer = self.producers.get(header.producer_id)
        if producer is not None:
            duplicate = producer.find(header)
            if duplicate is not None:
                return duplicate.base_offset
            producer.check(header)
        base_offset = self._store(batch, leader_epoch)
        self.producers.setdefault(header.producer_id, Producer(header.producer_epoch)).remember(header, base_offset)
        return base_offset

    def _store(self, batch: Batch, leader_epoch: int) -> int:
        base_offset = self.end
        # Neither field is covered by the checksum, which starts with the attributes.
        data = struct.pack(">q", base_offset) + batch.data[8:12] + struct.pack(">i", leader_epoch) + batch.data[16:]
        stored = Batch.parse(data)
        self.batches.append(StoredBatch(data, stored.header))
        self.end = stored.header.next_offset
        if not self.epochs or self.epochs[-1][0] < leader_epoch:
            self.epochs.append((leader_epoch, base_offset))
        return base_offset

    def read(self, offset: int, max_bytes: int) -> list[bytes]:
        """Return whole batches from the one with `offset`, at most `max_bytes`, but always at least one.

        Raises `Refused` for an offset outside the log.
        """
        if not self.start <= offset <= self.end:
            raise Refused(ErrorCode.offset_out_of_range, f"offset {offset} is outside [{self.start}, {self.end}]")
        batches: list[bytes] = []
        size = 0
        if offset == self.end:
            return batches
        for stored in islice(self.batches, self._position(offset), None):
            size += len(stored.data)
            if batches and size > max_bytes:
                break
            batches.append(stored.data)
        return batches

    def _position(self, offset: int) -> int:
        return max(0, bisect_right(self.batches, offset, key=lambda stored: stored.header.base_offset) - 1)

    def delete_before(self, offset: int) -> int:
        """Move the start to `offset` (-1: to the end), drop the batches before it, and return the new start.

        Raises `Refused` for an offset beyond the end.
        """
        new_start = self.end if offset == -1 else offset
        if not 0 <= new_start <= self.end:
            raise Refused(ErrorCode.offset_out_of_range, f"offset {offset} is beyond the end {self.end}")
        self.start = max(self.start, new_start)
        self.batches = [stored for stored in self.batches if stored.header.next_offset > self.start]
        return self.start

    def epoch_of(self, offset: int) -> int:
        """Return the leader epoch that wrote `offset`, or -1."""
        return next((epoch for epoch, start in reversed(self.epochs) if start <= offset), -1)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the newest epoch up to `epoch`, and the offset where it ended; (-1, -1) if `epoch` is newer than
        all."""
        older = [known for known, _ in self.epochs if known <= epoch]
        newer = [start for known, start in self.epochs if known > epoch]
        if newer:
            return (older[-1] if older else epoch), newer[0]
        return (epoch, self.end) if older and older[-1] == epoch else (-1, -1)
