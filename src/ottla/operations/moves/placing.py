"""Which brokers get the replicas of partitions: the problem as a minimum-cost flow, and what the flow means.

Comes in: a `Problem`: what is fixed, what may stay, how many replicas are to be placed. Goes out: the brokers of each
item. What is wanted most comes first: different racks, then an even load of brokers, then an even spread of each topic,
then moving as little as possible. Each is worth a fixed number of the next (`_TOPIC`, `_LOAD`, `_RACK`), and the flow
is the cheapest of all. Pure.

A flow in which every partition had an arc to every broker would be too large: a hundred million arcs. Replicas that
move cost the same wherever they go, so those of a topic go through one node of each rack, its *pool*. If several
replicas of one partition come out of a pool, they must reach different brokers, which the flow does not know. Where
`matching` cannot arrange that, the pool is replaced by arcs of each partition, and the flow is solved again. Every
round is a relaxation of the problem, so the first solution that can be carried out is the best one.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ottla.operations.moves.flow import FlowNetwork, largest_cost
from ottla.operations.moves.matching import match
from ottla.operations.moves.problem import Item, Problem, Shares
from ottla.operations.moves.steps import FAR, bounds, load_steps

_TOPIC, _LOAD, _RACK = 16, 16, 64
"""What one step of unevenness is worth: of a topic, in largest moves; of a broker, in steps of a topic; of a rack."""
_FINEST = 1 << 26
"""The largest cost of a move: sizes differ if they do by this part of the largest."""
_MANY_ARCS = 4_000_000
"""Beyond this many arcs from pools to brokers, only brokers below their fair share are offered to pools directly."""


def place(problem: Problem) -> list[tuple[int, ...]]:
    """Return the brokers chosen for each item, sorted. Raises `ArithmeticError` if there is no solution."""
    if not any(item.need for item in problem.items):
        return [() for _ in problem.items]
    expanded: set[tuple[int, int]] = set()
    while True:
        graph = _Graph(problem, expanded)
        chosen, failed = graph.read(graph.network.solve())
        if not failed:
            return chosen
        expanded |= failed


@dataclass(frozen=True, slots=True)
class Weights:
    """What one step of each goal costs."""

    topic: int
    load: int
    rack: int
    _scale: float

    def move(self, cost: int) -> int:
        """Return what a move of this cost costs here."""
        return max(1, round(cost / self._scale))


def weights_of(problem: Problem) -> Weights:
    """Return the weights for a problem: as fine as the solver's numbers allow."""
    largest = max(item.cost for item in problem.items)
    highest = _TOPIC * _LOAD * _RACK * 2 * (FAR + 1)
    nodes = 8 * len(problem.items) + 2 * len(problem.load) + 100_000
    finest = max(1, min(_FINEST, largest_cost(nodes) // highest))
    topic = _TOPIC * min(largest, finest)
    return Weights(topic, _LOAD * topic, _RACK * _LOAD * topic, max(1.0, largest / finest))


class _Graph:
    """The network of a problem, with what its arcs stand for."""

    def __init__(self, problem: Problem, expanded: set[tuple[int, int]]) -> None:
        self.problem = problem
        self.expanded = expanded
        self.network = FlowNetwork()
        self._shares = shares = Shares(problem)
        self._in_rack = shares.in_rack
        self._weights = weights_of(problem)
        self._most = sum(item.need for item in problem.items)
        self._brokers = [self.network.node() for _ in problem.rack_of]
        self._cells: dict[tuple[int, int], int] = {}
        """A node for each topic and broker that has replicas of it."""
        self._pools: dict[tuple[int, int], int] = {}
        self._direct: list[tuple[int, int, int]] = []
        """Arc, item, broker: the item gets this broker."""
        self._drawn: list[tuple[int, int, tuple[int, int]]] = []
        """Arc, item, pool: replicas of the item that come out of this pool."""
        self._given: list[tuple[int, tuple[int, int], int]] = []
        """Arc, pool, broker: replicas that the pool gives to this broker."""
        self._spilled: list[tuple[int, tuple[int, int]]] = []
        """Arc, pool: replicas beyond the fair share of the topic, to any broker of the rack."""
        self._spills: dict[int, tuple[int, list[tuple[int, int]]]] = {}
        """The node of a rack for those, and its arcs with their brokers."""
        for number, item in enumerate(problem.items):
            self._add_item(number, item)
        self._add_pools()
        self._add_cells()
        self._add_sink()

    def _cell(self, topic: int, broker: int) -> int:
        key = (topic, broker)
        if key not in self._cells:
            self._cells[key] = self.network.node()
        return self._cells[key]

    def _add_item(self, number: int, item: Item) -> None:
        if not item.need:
            return
        network, rack_of = self.network, self.problem.rack_of
        source = network.node(item.need)
        move = self._weights.move(item.cost)
        for rack, costs in self._shares.slots[number].items():
            node = network.node()
            for cost in costs:
                network.arc(source, node, capacity=1, cost=cost * self._weights.rack)
            for broker in item.optional:
                if rack_of[broker] == rack:
                    arc = network.arc(node, self._cell(item.topic, broker), capacity=1)
                    self._direct.append((arc, number, broker))
            if not item.may_move:
                continue
            pool = (item.topic, rack)
            if pool not in self.expanded:
                if pool not in self._pools:
                    self._pools[pool] = network.node()
                arc = network.arc(node, self._pools[pool], capacity=len(costs), cost=move)
                self._drawn.append((arc, number, pool))
                continue
            for broker in self._in_rack[rack]:
                if broker not in item.fixed and broker not in item.optional:
                    arc = network.arc(node, self._cell(item.topic, broker), capacity=1, cost=move)
                    self._direct.append((arc, number, broker))

    def _add_pools(self) -> None:
        """Arcs from pools to brokers: up to the fair share of the topic, and beyond it through a node of the rack."""
        network = self.network
        is_large = sum(len(self._in_rack[rack]) for _, rack in self._pools) > _MANY_ARCS
        for pool, node in self._pools.items():
            topic, rack = pool
            ceiling = bounds(self._shares.levels[rack])[1]
            spill = self._spill(rack)
            arc = network.arc(node, spill, capacity=self._most, cost=self._weights.topic)
            self._spilled.append((arc, pool))
            for broker in self._in_rack[rack]:
                cell = self._cells.get((topic, broker))
                room = self._shares.topic_most[pool] - self.problem.topic_load.get((topic, broker), 0)
                if cell is not None:
                    arc = network.arc(node, cell, capacity=self._most)
                elif room > 0 and not (is_large and self._shares.present[broker] >= ceiling):
                    arc = network.arc(node, self._brokers[broker], capacity=room)
                else:
                    continue
                self._given.append((arc, pool, broker))

    def _spill(self, rack: int) -> int:
        if rack not in self._spills:
            node = self.network.node()
            arcs = [
                (self.network.arc(node, self._brokers[broker], capacity=self._most), broker)
                for broker in self._in_rack[rack]
            ]
            self._spills[rack] = (node, arcs)
        return self._spills[rack][0]

    def _add_cells(self) -> None:
        for (topic, broker), node in self._cells.items():
            share = self._shares.topic_most[topic, self.problem.rack_of[broker]]
            free = share - self.problem.topic_load.get((topic, broker), 0)
            if free > 0:
                self.network.arc(node, self._brokers[broker], capacity=free)
            self.network.arc(node, self._brokers[broker], capacity=self._most, cost=self._weights.topic)

    def _add_sink(self) -> None:
        sink = self.network.node(-self._most)
        for broker, node in enumerate(self._brokers):
            level = self._shares.levels[self.problem.rack_of[broker]]
            for units, cost in load_steps(level, present=self.problem.load[broker], room=self._most):
                self.network.arc(node, sink, capacity=units, cost=(cost + FAR) * self._weights.load)

    def read(self, flow: NDArray[np.int64]) -> tuple[list[tuple[int, ...]], set[tuple[int, int]]]:
        """Return the brokers of each item, and the pools whose replicas cannot be given to different brokers."""
        chosen: list[list[int]] = [[] for _ in self.problem.items]
        for arc, number, broker in self._direct:
            if flow[arc]:
                chosen[number].append(broker)
        drawn: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for arc, number, pool in self._drawn:
            if flow[arc]:
                drawn[pool].append((number, int(flow[arc])))
        slots: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for arc, pool, broker in self._given:
            if flow[arc]:
                slots[pool][broker] = slots[pool].get(broker, 0) + int(flow[arc])
        self._share_spills(flow, slots)
        failed = set()
        for pool, items in drawn.items():
            taken = [{*self.problem.items[number].fixed, *chosen[number]} for number, _ in items]
            brokers = match([count for _, count in items], taken, slots[pool])
            if brokers is None:
                failed.add(pool)
                continue
            for (number, _), given in zip(items, brokers, strict=True):
                chosen[number] += given
        return [tuple(sorted(brokers)) for brokers in chosen], failed

    def _share_spills(self, flow: NDArray[np.int64], slots: dict[tuple[int, int], dict[int, int]]) -> None:
        """Divide what brokers get beyond fair shares among the pools that gave it."""
        left: dict[int, list[tuple[int, int]]] = {
            rack: [(broker, int(flow[arc])) for arc, broker in arcs if flow[arc]]
            for rack, (_, arcs) in self._spills.items()
        }
        for arc, pool in self._spilled:
            amount = int(flow[arc])
            while amount:
                broker, units = left[pool[1]].pop(0)
                used = min(units, amount)
                amount -= used
                slots[pool][broker] = slots[pool].get(broker, 0) + used
                if used < units:
                    left[pool[1]].append((broker, units - used))
