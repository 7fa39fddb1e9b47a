"""`Goal`: whether everything is done that was in the topics when the work began.

A store and the ends of logs come in, yes or no goes out. It only looks: any node may do the planning and the work.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.engines.fleet.lease_watch import LeaseWatch
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.units import PartitionState, Snapshot, label
from ottla.errors import FleetError, StoreUnavailable
from ottla.model import TopicPartition

_HALTED_SECONDS = 30.0
"""How long to wait for a partition that is not planned: its leader may come back."""


class Goal:
    """Offsets that a group shall reach."""

    def __init__(self, store: Store, group: str, ends: Mapping[TopicPartition, int], *, ordered: bool) -> None:
        self._store = store
        self._group = group
        self._ends = ends
        self._ordered = ordered
        self._halts: LeaseWatch[str, str] = LeaseWatch(_HALTED_SECONDS)

    def is_reached(self, now: float) -> bool:
        """Whether nothing is left to do. Raises `FleetError` if a partition that is left has been halted for long."""
        try:
            snapshot = self._store.look()
            left = self._left(snapshot)
            if not left and _progress(snapshot) != _progress(self._store.look()):
                return False  # units moved between the requests
        except StoreUnavailable:
            return False
        for name, reason in self._halts.still(snapshot.halted, now).items():
            if any(name in (partition.topic, label(partition)) for partition in left):
                raise FleetError(f"group {self._group} does not plan {name}: {reason}")
        return not left

    def _left(self, snapshot: Snapshot) -> list[TopicPartition]:
        states = {state.partition: state for state in snapshot.partitions}
        return [
            partition
            for partition, end in self._ends.items()
            if partition not in states or not self._is_past(states[partition], end, snapshot)
        ]

    def _is_past(self, state: PartitionState, end: int, snapshot: Snapshot) -> bool:
        """Whether every unit before `end` is done, or waits for an operator to look at the error list."""
        if state.done >= end:
            return True
        if not state.failed:
            return False
        if any(unit.range.topic_partition == state.partition and unit.range.start < end for unit in snapshot.out):
            return False
        if self._ordered:
            return True  # the failed unit blocks all that follow
        waiting = self._store.waiting(state.partition, 1)
        return state.planned >= end and (not waiting or waiting[0].start >= end)


def _progress(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.partitions, tuple(unit.range for unit in snapshot.out)
