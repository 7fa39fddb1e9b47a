"""What the group assigned to a member, what its consumer holds, and what it lost: the state shared by two threads.

The group's decisions come in from the membership's thread, the partitions that the consumer holds from the program's
thread. `TargetAssignment` goes out to the program, `claimed` to the group. Pure; it has no lock, the owner has one.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.model import TopicPartition

Partitions = frozenset[TopicPartition]
NOTHING: Partitions = frozenset()


class TargetAssignment(NamedTuple):
    """What a consumer should hold now.

    The caller acts on it and reports what it holds before it asks again: until then, each of these partitions counts as
    held.
    """

    version: int
    """Grows with every change."""
    partitions: Partitions
    """What the group assigned to this member."""
    lost: Partitions
    """Held here, but other members may have them already: drop them without a commit. Disjoint from `partitions`."""


class OwnedPartitions:
    """The partitions of one member.

    A partition is *claimed* from the moment the consumer is offered it, until the consumer has looked again after it
    was withdrawn and does not hold it. Only then may another member have it.
    """

    def __init__(self) -> None:
        self.version = 0
        self._assigned = NOTHING
        self._held = NOTHING
        self._seen = NOTHING  # What the consumer saw at its last look, and may be about to take.
        self._lost = NOTHING
        self._cache_key = (NOTHING, NOTHING, NOTHING, NOTHING)
        self._claimed = NOTHING
        """Computed from the sets in `_cache_key`: every poll asks for it, and it may hold thousands of partitions."""

    @property
    def assigned(self) -> Partitions:
        """What the group assigned."""
        return self._assigned

    @property
    def claimed(self) -> Partitions:
        """What no other member may have yet."""
        sets = (self._held, self._seen, self._assigned, self._lost)
        if any(current is not previous for current, previous in zip(sets, self._cache_key, strict=True)):
            self._claimed = (self._held | self._seen | self._assigned) - self._lost
            self._cache_key = sets
        return self._claimed

    @property
    def kept(self) -> Partitions:
        """What the consumer holds and no other member can have."""
        return self._held - self._lost

    @property
    def unreleased(self) -> Partitions:
        """What was withdrawn from this member, but may still be in use here."""
        return self.claimed - self._assigned

    def target(self) -> TargetAssignment:
        """Return what the consumer should hold. The consumer is about to act on it."""
        # A lost partition that the consumer saw and never took need not be reported as lost.
        if self._lost:  # Rarely true; the sets may hold thousands of partitions.
            self._lost &= self._held
        self._seen = self._assigned - self._lost if self._lost else self._assigned
        return TargetAssignment(self.version, self._seen, self._lost)

    def hold(self, partitions: Partitions) -> None:
        """Set what the consumer holds."""
        previous = self._lost
        unexpected = partitions - self._held - self._seen - self._assigned
        self._held = partitions
        self._lost = (self._lost & (partitions | self._seen)) | unexpected
        if self._lost != previous:
            self.version += 1

    def assign(self, partitions: Partitions) -> None:
        """Set what the group assigned to this member."""
        if partitions != self._assigned:
            self._assigned = partitions
            self.version += 1

    def lose(self) -> None:
        """Mark everything as lost: the group may have given it to other members."""
        lost = self._held | self._seen
        if lost - self._lost or self._assigned:
            self.version += 1
        self._lost |= lost
        self._assigned = NOTHING
