"""Working until the end: whether everything is done that was in the topics when somebody began.

A store and the ends of logs come in, yes or no goes out. Nobody is asked to plan or work for it: other nodes may.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.engines.fleet.lease_watch import LeaseWatch
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.units import PartitionState, Snapshot, label
from ottla.errors import FleetError, StoreUnavailable
from ottla.model import TopicPartition

_HALTED_SECONDS = 30.0
"""How long a partition that is not planned is waited for: a leader may come back."""


class Goal:
    """Offsets up to which a group shall have worked."""

    def __init__(self, store: Store, group: str, ends: Mapping[TopicPartition, int], *, ordered: bool) -> None:
        self._store = store
        self._group = group
        self._ends = ends
        self._ordered = ordered
        self._halts: LeaseWatch[str, str] = LeaseWatch(_HALTED_SECONDS)

    def is_reached(self, now: float) -> bool:
        """Whether nothing is left to do. Raises when somebody has said for long why a rest is not planned."""
        try:
            seen = self._store.look()
            left = self._left(seen)
            if not left and _state(seen) != _state(self._store.look()):
                return False  # units moved while they were looked at one by one
        except StoreUnavailable:
            return False
        for what, why in self._halts.still(seen.halted, now).items():
            if any(what in (at.topic, label(at)) for at in left):
                raise FleetError(f"group {self._group} does not plan {what}: {why}")
        return not left

    def _left(self, seen: Snapshot) -> list[TopicPartition]:
        lanes = {lane.at: lane for lane in seen.lanes}
        return [at for at, end in self._ends.items() if at not in lanes or not self._is_past(lanes[at], end, seen)]

    def _is_past(self, lane: PartitionState, end: int, seen: Snapshot) -> bool:
        """Whether nothing before `end` is to be done, or will be without somebody who looks at the error list."""
        if lane.done >= end:
            return True
        if not lane.failed or any(out.range.topic_partition == lane.at and out.range.start < end for out in seen.out):
            return False
        if self._ordered:
            return True  # the failed one holds up all that follow
        waiting = self._store.waiting(lane.at, 1)
        return lane.planned >= end and (not waiting or waiting[0].start >= end)


def _state(seen: Snapshot) -> tuple[object, ...]:
    return seen.lanes, tuple(out.range for out in seen.out)
