"""Layouts of clusters that do not exist, for tests of plans."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import strategies as st

from ottla.model import TopicPartition
from ottla.operations.moves.values import Layout, Member, Placement


def layout(*placed: tuple[int, ...], racks: str = "", brokers: int | None = None, size_bytes: int = 100) -> Layout:
    """One topic. Brokers count from 1; `racks` has a letter for each of them."""
    count = brokers or len(racks) or max(max(replicas) for replicas in placed)
    members = tuple(Member(number, racks[number - 1] if racks else None) for number in range(1, count + 1))
    placements = [
        Placement(TopicPartition("clicks", index), replicas, size_bytes, replicas[0], replicas)
        for index, replicas in enumerate(placed)
    ]
    return Layout("cluster", members, tuple(placements))


def large(brokers: int, partitions: int, *, topics: int, racks: int, empty: int = 0, seed: int = 1) -> Layout:
    """Three replicas of each partition, spread by chance over all brokers but the last `empty` ones."""
    rng = random.Random(seed)
    used = brokers - empty
    members = tuple(Member(number, f"rack-{number % racks}" if racks else None) for number in range(brokers))
    placements = []
    for number in range(partitions):
        if racks >= 3:
            chosen = rng.sample(range(racks), 3)
            replicas = tuple(rng.choice(range(rack, used, racks)) for rack in chosen)
        else:
            replicas = tuple(rng.sample(range(used), 3))
        partition = TopicPartition(f"topic-{number % topics}", number // topics)
        placements.append(Placement(partition, replicas, int(rng.lognormvariate(18, 1.5)), replicas[0], replicas))
    return Layout("cluster", members, tuple(placements))


@st.composite
def layouts(draw: st.DrawFn, *, most_brokers: int = 7, most_partitions: int = 12) -> Layout:
    """Any small cluster whose partitions have no broker twice."""
    count = draw(st.integers(2, most_brokers))
    racks = draw(st.integers(0, 3))
    members = tuple(
        Member(number, draw(st.sampled_from("abc"[:racks])) if racks else None) for number in range(1, count + 1)
    )
    placements = []
    for topic in draw(st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, unique=True)):
        factor = draw(st.integers(1, min(3, count)))
        for index in range(draw(st.integers(1, most_partitions // 3))):
            replicas = tuple(draw(st.permutations(range(1, count + 1)))[:factor])
            size = draw(st.integers(0, 1000))
            placements.append(Placement(TopicPartition(topic, index), replicas, size, replicas[0], replicas))
    return Layout("cluster", members, tuple(placements))


def loads(cluster: Layout) -> Counter[int]:
    """How many replicas each broker has."""
    counts = Counter({member.id: 0 for member in cluster.members})
    counts.update(broker for place in cluster.placements for broker in place.replicas)
    return counts


def rack_heights(cluster: Layout, replicas: tuple[int, ...]) -> list[int]:
    """How many replicas each rack has, the largest number first."""
    rack_of = {member.id: member.rack for member in cluster.members}
    return sorted(Counter(rack_of.get(broker) for broker in replicas).values(), reverse=True)
