"""Which replica of each partition is the preferred leader, so that leaders are spread: a flow like that of replicas.

Comes in: the replicas of partitions. Goes out: the leader of each. A leader that stays costs nothing; one that had the
replica before costs less than one that gets a new copy. Leaders move no data. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ottla.operations.moves.flow import FlowNetwork
from ottla.operations.moves.steps import FAR, load_steps


@dataclass(frozen=True, slots=True)
class Candidates:
    """The replicas of a partition, by number of the broker, and what it costs if they lead."""

    brokers: tuple[int, ...]
    costs: tuple[int, ...]


def choose_leaders(partitions: Sequence[Candidates], load: Sequence[int]) -> list[int]:
    """Return the broker that leads each partition. `load` is what each broker leads whatever is chosen."""
    if not partitions:
        return []
    network = FlowNetwork()
    brokers = [network.node() for _ in load]
    arcs: list[list[int]] = []
    for partition in partitions:
        node = network.node(1)
        arcs.append(
            [
                network.arc(node, brokers[broker], capacity=1, cost=cost)
                for broker, cost in zip(partition.brokers, partition.costs, strict=True)
            ]
        )
    sink = network.node(-len(partitions))
    weight = 1 + 4 * max(max(partition.costs) for partition in partitions)
    level = (sum(load) + len(partitions)) / len(load)
    for broker, node in enumerate(brokers):
        for units, cost in load_steps(level, present=load[broker], room=len(partitions)):
            network.arc(node, sink, capacity=units, cost=(cost + FAR) * weight)
    flow = network.solve()
    return [
        next(broker for broker, arc in zip(partition.brokers, own, strict=True) if flow[arc])
        for partition, own in zip(partitions, arcs, strict=True)
    ]
