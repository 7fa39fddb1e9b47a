"""How far a consumer is in each of its partitions: what it has handed out, what is done, what is committed.

The consumer says what it hands out, and when the program comes back for more; offsets to commit go out. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.admin.committed import Committed
from ottla.model import TopicPartition

UNKNOWN = -1


class _Place:
    __slots__ = ("committed", "done", "epoch", "handed")

    def __init__(self, offset: int, epoch: int, committed: int) -> None:
        self.handed = offset
        """The offset after the last record that the program got."""
        self.done = offset
        """The offset after the last record that the program is through with, as far as can be told."""
        self.epoch = epoch
        self.committed = committed


class Positions:
    """The places of one consumer, by partition."""

    def __init__(self) -> None:
        self._places: dict[TopicPartition, _Place] = {}

    def __contains__(self, at: TopicPartition) -> bool:
        return at in self._places

    def begin(self, at: TopicPartition, offset: int, *, epoch: int = UNKNOWN, committed: int = UNKNOWN) -> None:
        """Reading begins, or goes on, at this offset."""
        before = self._places.get(at)
        self._places[at] = _Place(offset, epoch, before.committed if before is not None else committed)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """They are somebody else's."""
        for at in partitions:
            self._places.pop(at, None)

    def hand_out(self, at: TopicPartition, next_offset: int, *, epoch: int = UNKNOWN) -> None:
        """The program gets, or will never get, everything before this offset."""
        place = self._places[at]
        place.handed = max(place.handed, next_offset)
        if epoch != UNKNOWN:
            place.epoch = epoch

    def rewind(self, at: TopicPartition, next_offset: int) -> None:
        """Of what was handed out, only the records before this offset are with the program by now."""
        place = self._places.get(at)
        if place is not None:
            place.handed = next_offset

    def came_back(self) -> None:
        """The program asks for more: it is through with what it got."""
        for place in self._places.values():
            place.done = place.handed

    def handed(self, at: TopicPartition) -> int | None:
        """The offset of the next record that the program gets; None while that is not known."""
        place = self._places.get(at)
        return None if place is None else place.handed

    def all_handed(self) -> dict[TopicPartition, Committed]:
        """Everything that was handed out, as offsets to commit."""
        return {at: Committed(place.handed, place.epoch) for at, place in self._places.items()}

    def all_done(self) -> dict[TopicPartition, Committed]:
        """What the program is through with and is not committed yet."""
        return {
            at: Committed(place.done, place.epoch)
            for at, place in self._places.items()
            if place.done != place.committed
        }

    def committed(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """The group has these offsets now."""
        for at, told in offsets.items():
            place = self._places.get(at)
            if place is not None:
                place.committed = told.offset
