"""What a plan would do: replicas and bytes that move, how long that takes, how even brokers are before and after.

Comes in: a plan, the layout, a rate. Goes out: a `Preview` with a row for each broker. Pure.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from ottla.operations.moves.values import Layout, Plan


@dataclass(frozen=True, slots=True)
class BrokerChange:
    """A broker before and after."""

    broker: int
    rack: str | None
    is_alive: bool
    replicas: tuple[int, int]
    leaders: tuple[int, int]
    """Partitions of which it is the preferred leader."""
    size_bytes: tuple[int, int]
    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class Preview:
    """What a plan would do."""

    brokers: tuple[BrokerChange, ...]
    partitions: int
    moved_replicas: int
    moved_bytes: int
    lower_bound: int
    removed_replicas: int
    """Replicas that are given up and not replaced."""
    leader_changes: int
    rate: int | None
    """Bytes per second of each broker."""

    @property
    def busiest_bytes(self) -> int:
        """What the busiest broker has to receive or send."""
        return max((max(row.received_bytes, row.sent_bytes) for row in self.brokers), default=0)

    @property
    def seconds(self) -> float | None:
        """The time it takes at the rate, at least; None without a rate."""
        return None if self.rate is None else self.busiest_bytes / self.rate

    def spread(self, after: bool) -> tuple[int, int]:
        """Return the fewest and most replicas of a broker that has, or gets, any."""
        counts = [row.replicas[after] for row in self.brokers if row.is_alive and (row.replicas[1] or not after)]
        return min(counts, default=0), max(counts, default=0)

    def fullest(self, after: bool) -> float:
        """Return the bytes of the fullest broker by those of an average one."""
        sizes = [row.size_bytes[after] for row in self.brokers if row.is_alive and (row.replicas[1] or not after)]
        return max(sizes) * len(sizes) / sum(sizes) if sizes and sum(sizes) else 1.0

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "partitions": self.partitions,
            "moved_replicas": self.moved_replicas,
            "moved_bytes": self.moved_bytes,
            "lower_bound": self.lower_bound,
            "removed_replicas": self.removed_replicas,
            "leader_changes": self.leader_changes,
            "throttle": self.rate,
            "seconds": None if self.seconds is None else round(self.seconds, 1),
            "replicas_per_broker": {"before": list(self.spread(False)), "after": list(self.spread(True))},
            "fullest_to_mean": {"before": round(self.fullest(False), 3), "after": round(self.fullest(True), 3)},
            "brokers": [
                {
                    "broker": row.broker,
                    "rack": row.rack,
                    "is_alive": row.is_alive,
                    "replicas": list(row.replicas),
                    "leaders": list(row.leaders),
                    "size_bytes": list(row.size_bytes),
                    "received_bytes": row.received_bytes,
                    "sent_bytes": row.sent_bytes,
                }
                for row in self.brokers
            ],
        }


def preview(plan: Plan, layout: Layout, *, rate: int | None = None) -> Preview:
    """Return what the plan would do to the layout, at `rate` bytes per second of each broker."""
    after = layout.with_moves(plan.moves)
    leader_of = {place.partition: place.leader for place in layout.placements}
    received: Counter[int] = Counter()
    sent: Counter[int] = Counter()
    for move in plan.moves:
        for broker in move.added:
            received[broker] += move.size_bytes
            sent[leader_of.get(move.partition, -1)] += move.size_bytes
    counted = [_counted(each) for each in (layout, after)]
    rows = tuple(
        BrokerChange(
            member.id,
            member.rack,
            member.is_alive,
            (counted[0][0][member.id], counted[1][0][member.id]),
            (counted[0][1][member.id], counted[1][1][member.id]),
            (counted[0][2][member.id], counted[1][2][member.id]),
            received[member.id],
            sent[member.id],
        )
        for member in layout.members
    )
    return Preview(
        rows,
        len(plan.moves),
        plan.moved_replicas,
        plan.moved_bytes,
        plan.lower_bound,
        sum(max(0, len(move.removed) - len(move.added)) for move in plan.moves),
        sum(move.before[0] != move.after[0] for move in plan.moves),
        rate,
    )


def _counted(layout: Layout) -> tuple[Counter[int], Counter[int], Counter[int]]:
    """Return replicas, preferred leaders and bytes by broker."""
    replicas: Counter[int] = Counter()
    leaders: Counter[int] = Counter()
    sizes: Counter[int] = Counter()
    for place in layout.placements:
        replicas.update(place.replicas)
        leaders.update(place.replicas[:1])
        for broker in place.replicas:
            sizes[broker] += place.size_bytes
    return replicas, leaders, sizes
