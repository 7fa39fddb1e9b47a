"""What is to be placed, and how even it can become: slots in racks, fair shares, and the least that must move.

Comes in: items and brokers. Goes out: `Shares`, which `placing` builds its network from, and a lower bound that does
not depend on that network. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ottla.operations.moves.steps import bounds, fair_levels


@dataclass(frozen=True, slots=True)
class Item:
    """A partition of which some replicas are to be placed."""

    topic: int
    need: int
    """How many brokers to choose."""
    fixed: tuple[int, ...] = ()
    """Brokers that have a replica whatever is chosen."""
    optional: tuple[int, ...] = ()
    """Brokers that have a replica now: choosing one of them moves nothing."""
    cost: int = 1
    """The cost of choosing any other broker."""
    may_move: bool = True
    """Whether other brokers may be chosen at all."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Items, and the brokers to choose from. Brokers are numbers from 0, as in `rack_of`."""

    rack_of: Sequence[int]
    items: Sequence[Item]
    load: Sequence[int]
    """Replicas that each broker has whatever is chosen."""
    topic_load: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """The same by topic and broker."""


class Shares:
    """The fair shares of brokers and topics in a problem. Raises `ArithmeticError` if brokers are too few."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.in_rack: list[list[int]] = [[] for _ in range(max(problem.rack_of) + 1)]
        for broker, rack in enumerate(problem.rack_of):
            self.in_rack[rack].append(broker)
        self.present = list(problem.load)
        """The replicas of each broker if everything that may stay does."""
        for item in problem.items:
            for broker in item.optional:
                self.present[broker] += 1
        self.slots = [self._slots_of(item) for item in problem.items]
        """For each item and rack: what a first, second, ... further replica there costs."""
        self.levels = self._broker_levels()
        """The fair load of a broker in each rack."""
        self.topic_most = self._topic_shares()
        """How many replicas of a topic a broker of a rack should have at most."""

    def _slots_of(self, item: Item) -> dict[int, list[int]]:
        """Return the slots of an item by rack; no more than the most even distribution needs."""
        rack_of = self._problem.rack_of
        fixed: dict[int, int] = defaultdict(int)
        for broker in item.fixed:
            fixed[rack_of[broker]] += 1
        if item.may_move:
            room = {rack: len(brokers) - fixed[rack] for rack, brokers in enumerate(self.in_rack)}
        else:
            room = dict.fromkeys(range(len(self.in_rack)), 0)
            for broker in item.optional:
                room[rack_of[broker]] += 1
        if sum(room.values()) < item.need:
            raise ArithmeticError("there are fewer brokers than replicas")
        height = 1
        while sum(min(max(0, height - fixed[rack]), free) for rack, free in room.items()) < item.need:
            height += 1
        return {
            rack: list(range(fixed[rack], min(height, fixed[rack] + free)))
            for rack, free in room.items()
            if min(height - fixed[rack], free) > 0
        }

    def _broker_levels(self) -> list[float]:
        problem = self._problem
        total = sum(problem.load) + sum(item.need for item in problem.items)
        most = [sum(problem.load[broker] for broker in brokers) for brokers in self.in_rack]
        for slots in self.slots:
            for rack, costs in slots.items():
                most[rack] += len(costs)
        return fair_levels(total, brokers=[len(brokers) for brokers in self.in_rack], most=most)

    def _topic_shares(self) -> dict[tuple[int, int], int]:
        problem = self._problem
        counts = [len(brokers) for brokers in self.in_rack]
        total: dict[int, int] = defaultdict(int)
        most: dict[int, list[int]] = defaultdict(lambda: [0] * len(counts))
        for (topic, broker), load in problem.topic_load.items():
            total[topic] += load
            most[topic][problem.rack_of[broker]] += load
        for item, slots in zip(problem.items, self.slots, strict=True):
            total[item.topic] += item.need
            for rack, costs in slots.items():
                most[item.topic][rack] += len(costs)
        return {
            (topic, rack): max(1, bounds(level)[1])
            for topic, replicas in total.items()
            for rack, level in enumerate(fair_levels(replicas, brokers=counts, most=most[topic]))
        }


def least_moves(problem: Problem) -> int:
    """Return how many replicas must move, at least, for all loads to become fair: what brokers have too many of.

    What a broker or a topic has beyond its share must leave, and what a broker lacks must come. Where racks or topics
    stand in each other's way, more must move, or loads stay uneven.
    """
    shares = Shares(problem)
    missing = sum(max(0, item.need - len(item.optional)) for item in problem.items)
    if not any(item.optional and item.may_move for item in problem.items):
        return missing
    limits = [bounds(shares.levels[rack]) for rack in problem.rack_of]
    above = sum(max(0, load - ceiling) for load, (_, ceiling) in zip(shares.present, limits, strict=True))
    below = sum(max(0, floor - load) for load, (floor, _) in zip(shares.present, limits, strict=True))
    cells: dict[tuple[int, int], int] = defaultdict(int, problem.topic_load)
    for item in problem.items:
        for broker in item.optional:
            cells[item.topic, broker] += 1
    piled = sum(
        max(0, load - shares.topic_most[topic, problem.rack_of[broker]]) for (topic, broker), load in cells.items()
    )
    return max(missing + above, missing + piled, below)
