"""What each broker has: replicas, leaders, bytes, free space; also brokers that are down and should have replicas.

Comes in: a cluster. Goes out: a `BrokerLoad` for each broker. It only looks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.operations.moves.reading import survey


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """What a broker has. Sizes are None if it did not say."""

    id: int
    address: str | None
    rack: str | None
    replicas: int
    leaders: int
    preferred: int
    """Partitions of which it should be the leader."""
    size_bytes: int | None
    usable_bytes: int | None
    """What it may still write."""
    state: str
    """`up`, `down`, or why it does not say what it has."""

    def to_json(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self)


def list_loads(cluster: Cluster, *, deadline: Deadline) -> list[BrokerLoad]:
    """Return what each broker has, by id. Raises as `Cluster.call` does."""
    found = survey(cluster, deadline=deadline)
    replicas: Counter[int] = Counter()
    leaders: Counter[int] = Counter()
    preferred: Counter[int] = Counter()
    for place in found.layout.placements:
        replicas.update(place.replicas)
        leaders[place.leader] += 1
        preferred.update(place.replicas[:1])
    sizes: Counter[int] = Counter()
    for by_broker in found.sizes.values():
        sizes.update(by_broker)
    known = cluster.known.brokers
    return [
        BrokerLoad(
            member.id,
            str(known[member.id].address) if member.id in known else None,
            member.rack,
            replicas[member.id],
            leaders[member.id],
            preferred[member.id],
            sizes[member.id] if member.is_alive and member.id not in found.away else None,
            found.usable.get(member.id),
            found.away.get(member.id, "up") if member.is_alive else "down",
        )
        for member in found.layout.members
    ]
