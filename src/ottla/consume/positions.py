"""Where a consumer is in each of its partitions: what it handed out, what the program finished, what is committed.

The consumer reports what it hands out and when the program asks for more; offsets to commit go out. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from uuid import UUID

import pyarrow as pa

from ottla.admin.committed import Committed
from ottla.fetch.cursor import Cursor
from ottla.model import TopicPartition

UNKNOWN = -1


class Portion:
    """Records of one partition on their way to the program, which has received the first `used` of them."""

    __slots__ = ("cursor", "first", "records", "stop", "used")

    def __init__(self, cursor: Cursor, records: pa.RecordBatch, *, start: int, stop: int) -> None:
        self.cursor = cursor
        self.records = records
        self.first = start
        self.stop = stop
        self.used = 0

    @property
    def partition(self) -> TopicPartition:
        """The partition of the records."""
        return self.cursor.tp

    @property
    def start(self) -> int:
        """The offset after the last record that the program received."""
        return self._after(self.used)

    @property
    def done(self) -> int:
        """The offset after the last record that the program received and finished."""
        return self._after(self.used - 1)

    def _after(self, count: int) -> int:
        count = min(count, len(self.records))
        return self.first if count <= 0 else int(self.records.column("offset")[count - 1].as_py()) + 1

    @property
    def is_over(self) -> bool:
        """Whether the program received all records."""
        return self.used >= len(self.records)

    def rest(self) -> pa.RecordBatch:
        """Return the records that the program has not received."""
        return self.records.slice(self.used) if self.used else self.records


class _Position:
    __slots__ = ("committed", "done", "epoch", "handed", "topic_id")

    def __init__(self, offset: int, epoch: int, committed: int, topic_id: UUID | None) -> None:
        self.handed = offset
        """The offset after the last record that was handed out."""
        self.done = offset
        """The offset after the last record that the program finished, as far as is known."""
        self.epoch = epoch
        self.committed = committed
        self.topic_id = topic_id
        """The topic that these offsets belong to, if known; another topic may have its name by now."""

    def as_committed(self, offset: int) -> Committed:
        return Committed(offset, self.epoch, topic_id=self.topic_id)


class Positions:
    """The positions of one consumer, by partition."""

    def __init__(self) -> None:
        self._positions: dict[TopicPartition, _Position] = {}
        self._moved: set[TopicPartition] = set()
        """Partitions with records handed out since the program last asked for more."""
        self.underway: Portion | None = None
        """Handed out, but not yet with the program. A single assignment of None ends that, so Ctrl-C comes before or
        after it: records that the program did not receive are neither skipped nor committed."""

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._positions

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(list(self._positions))

    def __len__(self) -> int:
        return len(self._positions)

    def begin(
        self,
        partition: TopicPartition,
        offset: int,
        *,
        epoch: int = UNKNOWN,
        committed: int = UNKNOWN,
        topic_id: UUID | None = None,
    ) -> None:
        """Set the offset at which reading starts or continues."""
        previous = self._positions.get(partition)
        if previous is not None and previous.topic_id == topic_id:
            committed = previous.committed
        self._positions[partition] = _Position(offset, epoch, committed, topic_id)
        if self.underway is not None and self.underway.partition == partition:
            self.underway = None

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions: another member owns them."""
        for partition in partitions:
            self.take_back(partition)
            self._positions.pop(partition, None)

    def reach(self, partition: TopicPartition, offset: int, *, topic_id: UUID | None) -> None:
        """Note the offset and topic at which the next records start.

        Usually the last ones ended there. If not, reading continued elsewhere, and everything known so far belongs to a
        log, or a part of it, that no longer exists.
        """
        position = self._positions[partition]
        if position.topic_id is None and position.handed == offset:
            position.topic_id = topic_id
        elif position.handed != offset or position.topic_id != topic_id:
            self._positions[partition] = _Position(offset, UNKNOWN, UNKNOWN, topic_id)

    def hand_out(self, portion: Portion, *, epoch: int = UNKNOWN) -> None:
        """Note that this portion goes to the program, which has it once `underway` is None again."""
        position = self._positions[portion.partition]
        self._moved.add(portion.partition)  # First, because an interrupt may come at any time.
        self.underway = portion
        position.handed = portion.stop
        if epoch != UNKNOWN:
            position.epoch = epoch

    def skip_to(self, partition: TopicPartition, next_offset: int) -> None:
        """Note that no record before this offset is left for the program."""
        self._moved.add(partition)
        self._positions[partition].handed = next_offset

    def take_back(self, partition: TopicPartition) -> None:
        """Withdraw the portion under way: it does not reach the program."""
        portion = self.underway
        if portion is not None and portion.partition == partition:
            self._moved.add(partition)
            self._note_done(portion)
            self._positions[partition].handed = portion.start
            self.underway = None

    def mark_done(self) -> None:
        """Note that the program asks for more, and so has finished what it received."""
        for partition in list(self._moved):
            position = self._positions.get(partition)
            if position is not None:
                position.done = self._handed(partition, position)
        portion = self.underway
        self._moved = set() if portion is None else {portion.partition}

    def mark_done_in(self, portion: Portion) -> None:
        """Note that the program asks for the next record of the portion."""
        self._positions[portion.partition].done = portion.start

    def handed(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record for the program, None while it is unknown."""
        position = self._positions.get(partition)
        return None if position is None else self._handed(partition, position)

    def epoch(self, partition: TopicPartition) -> int:
        """Return the leader epoch of the records handed out last, -1 if unknown."""
        return self._positions[partition].epoch

    def topic_id(self, partition: TopicPartition) -> UUID | None:
        """Return the id of the topic that the offsets belong to, None if unknown."""
        position = self._positions.get(partition)
        return None if position is None else position.topic_id

    def all_handed(self) -> dict[TopicPartition, Committed]:
        """Return everything that the program received, as offsets to commit."""
        return {tp: position.as_committed(self._handed(tp, position)) for tp, position in list(self._positions.items())}

    def all_done(self) -> dict[TopicPartition, Committed]:
        """Return what the program finished and is not committed yet."""
        if self.underway is not None:
            self._note_done(self.underway)
        return {
            tp: position.as_committed(position.done)
            for tp, position in self._positions.items()
            if position.done != position.committed
        }

    def committed(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Note that the group has these offsets now."""
        for partition, committed in offsets.items():
            position = self._positions.get(partition)
            if position is not None and committed.topic_id in (None, position.topic_id):
                position.committed = committed.offset
                # The program finished what it committed itself: the next automatic commit must not go back.
                position.done = max(position.done, min(committed.offset, self._handed(partition, position)))

    def _note_done(self, portion: Portion) -> None:
        if portion.used:
            position = self._positions[portion.partition]
            position.done = max(position.done, portion.done)

    def _handed(self, partition: TopicPartition, position: _Position) -> int:
        portion = self.underway
        return portion.start if portion is not None and portion.partition == partition else position.handed
