"""How far a run is, and how it ended: plain values, and their JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ottla.model import TopicPartition
from ottla.operations.moves.values import Layout, Plan


class Stage(Enum):
    """Where a partition of a plan is."""

    WAITING = "waiting"
    MOVING = "moving"
    DONE = "done"
    BLOCKED = "blocked"
    """A broker that it needs is down, or the partition has no leader."""
    CHANGED = "changed"
    """Another program has given it other replicas: it stays as it is."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A run at one moment."""

    stages: Mapping[TopicPartition, Stage] = field(default_factory=dict)
    left_bytes: int = 0
    total_bytes: int = 0
    bytes_per_second: float = 0.0
    """Measured; 0 before anything was."""
    seconds_left: float | None = None
    """None if unknown."""
    throttle: int | None = None
    """The rate of each broker; None without one."""
    is_paused: bool = False
    lost: frozenset[int] = frozenset()
    """Brokers of the plan that are down."""

    def count(self, stage: Stage) -> int:
        """Return the partitions at a stage."""
        return sum(each is stage for each in self.stages.values())

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            **{stage.value: self.count(stage) for stage in Stage},
            "left_bytes": self.left_bytes,
            "total_bytes": self.total_bytes,
            "bytes_per_second": round(self.bytes_per_second),
            "seconds_left": None if self.seconds_left is None else round(self.seconds_left, 1),
            "throttle": self.throttle,
            "is_paused": self.is_paused,
            "lost_brokers": sorted(self.lost),
        }


@dataclass(frozen=True, slots=True)
class Difference:
    """A partition that is not where the plan wants it."""

    partition: TopicPartition
    planned: tuple[int, ...]
    present: tuple[int, ...]
    """Empty if the partition is gone."""
    in_sync: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """How a run ended: what is where it should be, and what is not."""

    cluster_id: str
    purpose: str
    plan: str
    """The plan's checksum."""
    outcome: str
    """`complete`, `incomplete`, `cancelled` or `stopped`."""
    partitions: int
    differences: tuple[Difference, ...] = ()
    moved_replicas: int = 0
    moved_bytes: int = 0
    seconds: float = 0.0
    lost: tuple[int, ...] = ()
    throttles_left: Mapping[int, str] = field(default_factory=dict)
    """Brokers that still have a rate of this run, and why."""
    notes: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every partition is as planned."""
        return not self.differences

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "cluster_id": self.cluster_id,
            "purpose": self.purpose,
            "plan_sha256": self.plan,
            "outcome": self.outcome,
            "partitions": self.partitions,
            "as_planned": self.partitions - len(self.differences),
            "moved_replicas": self.moved_replicas,
            "moved_bytes": self.moved_bytes,
            "seconds": round(self.seconds, 1),
            "lost_brokers": list(self.lost),
            "throttles_left": {str(broker): reason for broker, reason in self.throttles_left.items()},
            "differences": [
                {
                    "topic": each.partition.topic,
                    "partition": each.partition.partition,
                    "planned": list(each.planned),
                    "present": list(each.present),
                    "in_sync": list(each.in_sync),
                }
                for each in self.differences
            ],
            "notes": list(self.notes),
        }


def compare(plan: Plan, layout: Layout) -> tuple[Difference, ...]:
    """Return the partitions that are not as planned: other replicas, another order, or a new one not in sync."""
    places = {place.partition: place for place in layout.placements}
    differences = []
    for move in plan.moves:
        place = places.get(move.partition)
        if place is None:
            differences.append(Difference(move.partition, move.after, ()))
        elif place.replicas != move.after or not set(move.added) <= set(place.isr):
            differences.append(Difference(move.partition, move.after, place.replicas, place.isr))
    return tuple(differences)
