"""What a member may hold, what its consumer does hold, and what it has lost: the memory between two threads.

The group's decisions come in from the membership's thread, what the consumer has let go of and taken over from the
program's; `TargetAssignment` goes out to the program, `claimed` to the group. Pure, no lock: the owner has one.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.model import TopicPartition

Partitions = frozenset[TopicPartition]
NOTHING: Partitions = frozenset()


class TargetAssignment(NamedTuple):
    """What a consumer should hold now. Whoever calls `wanted` acts on it, and says so with `holding`, before he calls
    it again: a partition that was seen in it counts as held until then."""

    version: int
    """Grows with every change."""
    partitions: Partitions
    """What the group wants this member to hold."""
    lost: Partitions
    """Are held, but somebody else may have them already: let go of them without a commit. None is in `partitions`."""


class OwnedPartitions:
    """A partition is *claimed* from the moment it is offered to the consumer until the consumer has looked again after
    it was withdrawn and does not hold it: only then may another member have it."""

    def __init__(self) -> None:
        self.version = 0
        self._assigned = NOTHING
        self._held = NOTHING
        self._seen = NOTHING  # what the consumer saw when it last looked, and may be about to take
        self._lost = NOTHING
        self._summed = (NOTHING, NOTHING, NOTHING, NOTHING)
        self._claimed = NOTHING
        """What comes of `_summed`: it is asked for at every poll, and there may be thousands."""

    @property
    def assigned(self) -> Partitions:
        """What the group gave."""
        return self._assigned

    @property
    def claimed(self) -> Partitions:
        """What must not be anybody else's yet."""
        parts = (self._held, self._seen, self._assigned, self._lost)
        if any(part is not before for part, before in zip(parts, self._summed, strict=True)):
            self._claimed = (self._held | self._seen | self._assigned) - self._lost
            self._summed = parts
        return self._claimed

    @property
    def kept(self) -> Partitions:
        """What the consumer holds and nobody else can have."""
        return self._held - self._lost

    @property
    def unreleased(self) -> Partitions:
        """What is not this member's any more, but may still be in use here."""
        return self.claimed - self._assigned

    def look(self) -> TargetAssignment:
        """What the consumer is to hold; it is about to act on this."""
        # A lost partition that the consumer was about to take when it was lost, and did not take, needs no farewell.
        if self._lost:  # most of the time nothing is lost, and there may be thousands
            self._lost &= self._held
        self._seen = self._assigned - self._lost if self._lost else self._assigned
        return TargetAssignment(self.version, self._seen, self._lost)

    def hold(self, partitions: Partitions) -> None:
        """The consumer holds exactly these."""
        before = self._lost
        unasked = partitions - self._held - self._seen - self._assigned
        self._held = partitions
        self._lost = (self._lost & (partitions | self._seen)) | unasked
        if self._lost != before:
            self.version += 1

    def assign(self, partitions: Partitions) -> None:
        """The group gives this member exactly these."""
        if partitions != self._assigned:
            self._assigned = partitions
            self.version += 1

    def lose(self) -> None:
        """The group may have given everything to others."""
        lost = self._held | self._seen
        if lost - self._lost or self._assigned:
            self.version += 1
        self._lost |= lost
        self._assigned = NOTHING
