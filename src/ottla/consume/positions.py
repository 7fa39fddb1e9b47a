"""How far a consumer is in each of its partitions: what it has handed out, what is done, what is committed.

The consumer says what it hands out, and when the program comes back for more; offsets to commit go out. Pure.
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
    """Records of one partition on their way to the program, which has got the first `used` of them."""

    __slots__ = ("cursor", "first", "records", "stop", "used")

    def __init__(self, cursor: Cursor, records: pa.RecordBatch, *, start: int, stop: int) -> None:
        self.cursor = cursor
        self.records = records
        self.first = start
        self.stop = stop
        self.used = 0

    @property
    def at(self) -> TopicPartition:
        """Whose they are."""
        return self.cursor.tp

    @property
    def start(self) -> int:
        """The offset after the last record that the program has got."""
        return self._after(self.used)

    @property
    def done(self) -> int:
        """The offset after the last record that the program has got and come back from."""
        return self._after(self.used - 1)

    def _after(self, count: int) -> int:
        return self.first if count <= 0 else int(self.records.column("offset")[count - 1].as_py()) + 1

    @property
    def is_over(self) -> bool:
        """Whether the program has got all of them."""
        return self.used >= len(self.records)

    def rest(self) -> pa.RecordBatch:
        """Those that the program has not got."""
        return self.records.slice(self.used) if self.used else self.records


class _Place:
    __slots__ = ("committed", "done", "epoch", "handed", "topic_id")

    def __init__(self, offset: int, epoch: int, committed: int, topic_id: UUID | None) -> None:
        self.handed = offset
        """The offset after the last record that was handed out."""
        self.done = offset
        """The offset after the last record that the program is through with, as far as can be told."""
        self.epoch = epoch
        self.committed = committed
        self.topic_id = topic_id
        """The topic that all of these are of, as far as known; its name may be another one's by now."""

    def told(self, offset: int) -> Committed:
        return Committed(offset, self.epoch, topic_id=self.topic_id)


class Positions:
    """The places of one consumer, by partition."""

    def __init__(self) -> None:
        self._places: dict[TopicPartition, _Place] = {}
        self._moved: set[TopicPartition] = set()
        """Where something was handed out since the program came back last."""
        self.underway: Portion | None = None
        """Handed out, and not with the program yet. One store ends that: Ctrl-C comes before it or after it, and what
        the program has not got is neither passed over nor committed."""

    def __contains__(self, at: TopicPartition) -> bool:
        return at in self._places

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(list(self._places))

    def __len__(self) -> int:
        return len(self._places)

    def begin(
        self,
        at: TopicPartition,
        offset: int,
        *,
        epoch: int = UNKNOWN,
        committed: int = UNKNOWN,
        topic_id: UUID | None = None,
    ) -> None:
        """Reading begins, or goes on, at this offset."""
        before = self._places.get(at)
        if before is not None and before.topic_id == topic_id:
            committed = before.committed
        self._places[at] = _Place(offset, epoch, committed, topic_id)
        if self.underway is not None and self.underway.at == at:
            self.underway = None

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """They are somebody else's."""
        for at in partitions:
            self.take_back(at)
            self._places.pop(at, None)

    def reach(self, at: TopicPartition, offset: int, *, topic_id: UUID | None) -> None:
        """What comes next begins here. That is where the last records ended, unless the log was gone on with elsewhere:
        then everything that was known is of a log, or of a part of it, that is not there any more."""
        place = self._places[at]
        if place.topic_id is None and place.handed == offset:
            place.topic_id = topic_id
        elif place.handed != offset or place.topic_id != topic_id:
            self._places[at] = _Place(offset, UNKNOWN, UNKNOWN, topic_id)

    def hand_out(self, portion: Portion, *, epoch: int = UNKNOWN) -> None:
        """These are for the program, which has them when they are `underway` no more."""
        place = self._places[portion.at]
        self._moved.add(portion.at)  # first this: an interrupt may come at any time
        self.underway = portion
        place.handed = portion.stop
        if epoch != UNKNOWN:
            place.epoch = epoch

    def pass_over(self, at: TopicPartition, next_offset: int) -> None:
        """Up to this offset there is nothing more for the program."""
        self._moved.add(at)
        self._places[at].handed = next_offset

    def take_back(self, at: TopicPartition) -> None:
        """What is underway does not get to the program."""
        portion = self.underway
        if portion is not None and portion.at == at:
            self._moved.add(at)
            self._note_done(portion)
            self._places[at].handed = portion.start
            self.underway = None

    def came_back(self) -> None:
        """The program asks for more: it is through with what it got."""
        for at in list(self._moved):
            place = self._places.get(at)
            if place is not None:
                place.done = self._handed(at, place)
        portion = self.underway
        self._moved = set() if portion is None else {portion.at}

    def came_back_in(self, portion: Portion) -> None:
        """The program asks for the next record of the portion."""
        self._places[portion.at].done = portion.start

    def handed(self, at: TopicPartition) -> int | None:
        """The offset of the next record that the program gets; None while that is not known."""
        place = self._places.get(at)
        return None if place is None else self._handed(at, place)

    def epoch(self, at: TopicPartition) -> int:
        """The leader epoch of what was handed out last, as far as known."""
        return self._places[at].epoch

    def topic_id(self, at: TopicPartition) -> UUID | None:
        """The topic that the partition's offsets are of, as far as known."""
        place = self._places.get(at)
        return None if place is None else place.topic_id

    def all_handed(self) -> dict[TopicPartition, Committed]:
        """Everything that the program got, as offsets to commit."""
        return {at: place.told(self._handed(at, place)) for at, place in list(self._places.items())}

    def all_done(self) -> dict[TopicPartition, Committed]:
        """What the program is through with and is not committed yet."""
        if self.underway is not None:
            self._note_done(self.underway)
        return {at: place.told(place.done) for at, place in self._places.items() if place.done != place.committed}

    def committed(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """The group has these offsets now."""
        for at, told in offsets.items():
            place = self._places.get(at)
            if place is not None and told.topic_id in (None, place.topic_id):
                place.committed = told.offset
                # What the program has committed itself it is through with: the next automatic commit goes not back.
                place.done = max(place.done, min(told.offset, self._handed(at, place)))

    def _note_done(self, portion: Portion) -> None:
        if portion.used:
            place = self._places[portion.at]
            place.done = max(place.done, portion.done)

    def _handed(self, at: TopicPartition, place: _Place) -> int:
        portion = self.underway
        return portion.start if portion is not None and portion.at == at else place.handed
