"""The lanes that have something to send or to wait for, and the identity under which they number their batches.

Lanes come in when they get a batch and go when they are idle. Used by the sender's thread; others may only look.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ottla.model import TopicPartition
from ottla.produce.lane import LAST_EPOCH, Lane
from ottla.produce.packing import Topic


class Lanes:
    """Active lanes, each with its topic."""

    def __init__(self, *, transactional: bool) -> None:
        self._active: dict[TopicPartition, tuple[Topic, Lane]] = {}
        self.transactional = transactional
        self.producer: tuple[int, int] | None = None
        """Producer id and epoch for lanes that have none."""
        self.need_identity = False
        """Whether a lane waits for one."""

    def __iter__(self) -> Iterator[tuple[Topic, Lane]]:
        return iter(list(self._active.values()))

    def activate(self, topic: Topic, lane: Lane) -> None:
        """The lane has something to send."""
        self._active[lane.at] = topic, lane

    def retire(self, lane: Lane) -> None:
        """The lane is idle."""
        del self._active[lane.at]

    def forget(self, lanes: Iterable[Lane]) -> bool:
        """These are not used any more; False when one of them still is. A lane that begins in the place of one of them
        gets a higher epoch than it had, so that no number is given twice."""
        lanes = list(lanes)
        if any(lane.at in self._active for lane in lanes):
            return False
        if self.producer is not None:
            producer_id, epoch = self.producer
            after = [lane.epoch + 1 for lane in lanes if not lane.may_adopt(producer_id, epoch)]
            epoch = max([epoch, *after])
            self.producer = (producer_id, epoch) if epoch <= LAST_EPOCH else None
        return True

    @property
    def idle(self) -> bool:
        """Whether nothing is left to send or to wait for."""
        return not self._active

    @property
    def flying(self) -> int:
        """Batches under way."""
        return sum(lane.flying for _, lane in self)

    def identify(self, lane: Lane) -> bool:
        """Gives the lane our identity if it needs one; whether what is new in it can be numbered."""
        if lane.needs_identity and self.producer is not None and lane.may_adopt(*self.producer):
            lane.adopt(*self.producer)
        return not lane.needs_identity
