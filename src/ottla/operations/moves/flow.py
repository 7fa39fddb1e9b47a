"""A minimum-cost flow, built arc by arc and solved by OR-tools. The only module that knows the solver.

Comes in: nodes with supplies, arcs with capacities and costs, all whole numbers. Goes out: the flow on each arc, whole
numbers as well, the same for the same input.
"""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from ottla._lazy import explained

_LARGEST = 1 << 61
"""The solver multiplies costs by the number of nodes, and must stay within 64 bits."""


class FlowNetwork:
    """Nodes and arcs of one problem. Supplies must add up to 0."""

    def __init__(self) -> None:
        self.nodes = 0
        self._supplies: dict[int, int] = {}
        self._tails = array("i")
        self._heads = array("i")
        self._capacities = array("q")
        self._costs = array("q")

    @property
    def arcs(self) -> int:
        """How many arcs there are."""
        return len(self._tails)

    def node(self, supply: int = 0) -> int:
        """Add a node, with what it gives, or takes if negative; return it."""
        number = self.nodes
        self.nodes += 1
        if supply:
            self._supplies[number] = supply
        return number

    def arc(self, tail: int, head: int, *, capacity: int, cost: int = 0) -> int:
        """Add an arc and return it."""
        self._tails.append(tail)
        self._heads.append(head)
        self._capacities.append(capacity)
        self._costs.append(cost)
        return len(self._tails) - 1

    def solve(self) -> NDArray[np.int64]:
        """Return the flow on each arc. Raises `ArithmeticError` if there is none, or costs are too large."""
        try:
            from ortools.graph.python import min_cost_flow
        except ModuleNotFoundError as error:
            raise explained("planning moves of replicas", error) from error
        solver = min_cost_flow.SimpleMinCostFlow()
        arcs = solver.add_arcs_with_capacity_and_unit_cost(
            np.frombuffer(self._tails, np.int32),
            np.frombuffer(self._heads, np.int32),
            np.frombuffer(self._capacities, np.int64),
            np.frombuffer(self._costs, np.int64),
        )
        supplies = np.zeros(self.nodes, np.int64)
        for node, amount in self._supplies.items():
            supplies[node] = amount
        solver.set_nodes_supplies(np.arange(self.nodes, dtype=np.int32), supplies)
        status = solver.solve()
        if status != solver.OPTIMAL:
            raise ArithmeticError(f"the solver found no flow: {status}")
        flows: NDArray[np.int64] = solver.flows(arcs)
        return flows


def largest_cost(nodes: int) -> int:
    """Return the largest cost of an arc that the solver accepts with this many nodes."""
    return _LARGEST // (nodes + 2)
