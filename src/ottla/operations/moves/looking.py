"""Looks at the cluster for a run: before it begins, and then again and again, where each partition is.

Comes in: a cluster and a plan. Goes out: a survey with what is in the way, or a `View`. It only looks. Brokers learn at
different moments that a move has ended: for a while, what one says may contradict what another one does.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from ottla.admin.movement import Reassignment, running_reassignments
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.metadata import Metadata
from ottla.operations.moves.checks import are_ending, obstacles, with_ended
from ottla.operations.moves.reading import Survey, survey
from ottla.operations.moves.stages import View, view_of
from ottla.operations.moves.values import Plan

_SETTLING_SECONDS = 20.0
"""How long brokers may take to learn that a move has ended."""


class Readiness(NamedTuple):
    """What a run finds before it begins."""

    found: Survey
    running: tuple[Reassignment, ...]
    reasons: list[str]
    """Why it must not begin."""


def readiness(cluster: Cluster, plan: Plan, *, interval: float) -> Readiness:
    """Return whether a plan may run, once brokers agree on moves that just ended. Raises as `Cluster.call` does."""
    until = time.monotonic() + _SETTLING_SECONDS
    while True:
        deadline = cluster.deadline()
        earlier = running_reassignments(cluster, deadline=deadline)
        found = survey(cluster, deadline=deadline)
        running = with_ended(plan, earlier, running_reassignments(cluster, deadline=deadline))
        reasons = obstacles(plan, found, running)
        if not reasons or time.monotonic() >= until or not are_ending(plan, found, running):
            return Readiness(found, running, reasons)
        time.sleep(interval)


class Looker:
    """Looks at the partitions of one plan. `min_in_sync` has min.insync.replicas of each topic."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        self._cluster = cluster
        self._plan = plan
        self._topics = {move.partition.topic for move in plan.moves}
        self.min_in_sync: Mapping[str, int] = {}
        self._ending_since: dict[TopicPartition, float] = {}

    def look(self) -> tuple[View, Metadata]:
        """Return where each partition is. Raises as `Cluster.call` does."""
        deadline = self._cluster.deadline()
        running = running_reassignments(self._cluster, deadline=deadline)
        metadata = self._cluster.metadata(self._topics, deadline=deadline)
        view = view_of(self._plan, metadata, running, min_in_sync=self.min_in_sync)
        now = time.monotonic()
        self._ending_since = {tp: self._ending_since.get(tp, now) for tp in view.ending}
        settled = {tp for tp, since in self._ending_since.items() if now - since >= _SETTLING_SECONDS}
        if settled:  # no move leaves old and new replicas for so long: another program wants both
            view = view_of(self._plan, metadata, running, min_in_sync=self.min_in_sync, settled=settled)
        return view, metadata
