"""Measures a run: sizes of the replicas that move, how fast they grow, and how the cluster takes it.

Comes in: a cluster and the partitions that move. Goes out: sizes, speeds and `Signs`. It only looks.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ottla.admin.all_brokers import ask_each
from ottla.admin.follower_lag import Followed, find_follower_lag
from ottla.admin.sizes import find_sizes
from ottla.admin.topics import TopicDescription
from ottla.errors import ErrorCode, OttlaError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.discovery import MetadataQuery, metadata_request
from ottla.net.metadata import Metadata
from ottla.operations.moves.pacing import Signs
from ottla.operations.moves.progress import Stage
from ottla.operations.moves.reading import Survey
from ottla.operations.moves.stages import View
from ottla.operations.moves.values import Plan

_WINDOW_SECONDS = 20.0
_PROBE_SECONDS = 10.0
_MOST_FOLLOWED = 5_000
"""The partitions whose followers are looked at."""


class ClusterSigns(NamedTuple):
    """How the whole cluster is."""

    load: Signs
    under_minimum: frozenset[TopicPartition]
    """Partitions outside the plan with too few in-sync replicas for producers with acks=all."""


def chosen_to_follow(followed: Collection[Followed], brokers: Collection[int], *, most: int) -> list[Followed]:
    """Return at most `most` partitions that share a broker with the moves: of all topics, the same at each look."""
    concerned = sorted(
        each for each in followed if each.followers and not {each.leader, *each.followers}.isdisjoint(brokers)
    )
    step = -(-len(concerned) // most) or 1
    return concerned[::step]


class Copies:
    """Adds up what targets received. What is left says less: it grows while producers write."""

    def __init__(self) -> None:
        self.total = 0
        self._present: dict[tuple[TopicPartition, int], int] = {}
        self._full: dict[TopicPartition, int] = {}
        self._is_first = True

    def note(self, plan: Plan, view: View, sizes: Mapping[TopicPartition, Mapping[int, int]]) -> None:
        """Count what came since the last call. What was there at the first one is not counted."""
        for move in plan.moves:
            stage = view.stages[move.partition]
            if stage is Stage.MOVING:
                present = sizes.get(move.partition, {})
                self._full[move.partition] = max(present.values(), default=0)
                for broker in move.added:
                    self._reached(move.partition, broker, present.get(broker, 0))
            elif stage is Stage.DONE:
                for broker in move.added:
                    self._reached(move.partition, broker, self._full.get(move.partition, move.size_bytes))
        self._is_first = False

    def _reached(self, partition: TopicPartition, broker: int, size: int) -> None:
        before = self._present.get((partition, broker), 0)
        if size > before:
            self._present[partition, broker] = size
            self.total += 0 if self._is_first else size - before


class Gauge:
    """The measurements of one run."""

    def __init__(self, cluster: Cluster, plan: Plan) -> None:
        self._cluster = cluster
        self._planned = frozenset(move.partition for move in plan.moves)
        self._brokers = frozenset(broker for move in plan.moves for broker in (*move.before, *move.after))
        self.calm = Signs()
        """How the cluster was before the run."""
        self.copies = Copies()
        self._samples: list[tuple[float, int]] = []
        self._least: int | None = None
        self._moving: frozenset[TopicPartition] = frozenset()
        self._changed_at = time.monotonic()
        self._senders: set[int] = set()
        self._marked: tuple[float, int] | None = None

    def begin(self, found: Survey) -> None:
        """Note how the cluster is before anything moves."""
        others = [place for place in found.layout.placements if place.partition not in self._planned]
        thin = sum(len(place.isr) < len(place.replicas) for place in others)
        followed = [_followed(place.partition, place.leader, place.replicas) for place in others]
        self.calm = Signs(thin, self._lag(followed), self._latency())

    def sizes(self, metadata: Metadata, moving: Collection[TopicPartition]) -> dict[TopicPartition, dict[int, int]]:
        """Return the bytes of each replica of the partitions that move."""
        topics = [
            TopicDescription(
                name,
                None,
                False,
                tuple(p for p in topic.partitions if TopicPartition(name, p.index) in moving),
            )
            for name, topic in metadata.topics.items()
            if any(tp.topic == name for tp in moving)
        ]
        if not topics:
            return {}
        found = find_sizes(self._cluster, topics, deadline=self._cluster.deadline(_PROBE_SECONDS))
        self._senders = {partition.leader for topic in topics for partition in topic.partitions}
        return {tp: {copy.broker: copy.size_bytes for copy in copies} for tp, copies in found.copies.items()}

    def speed(self, left: int, moving: Collection[TopicPartition] = ()) -> float:
        """Return the bytes per second of the last seconds, from what is left now of the partitions that move."""
        now = time.monotonic()
        # Less is left than ever, or other partitions move. More is left where producers are faster than the throttle.
        if self._least is None or left < self._least or self._moving != set(moving):
            self._changed_at, self._least, self._moving = now, left, frozenset(moving)
        self._samples.append((now, left))
        while len(self._samples) > 2 and self._samples[1][0] < now - _WINDOW_SECONDS:
            del self._samples[0]
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return max(0.0, (first - last) / (last_at - first_at)) if last_at > first_at else 0.0

    @property
    def seconds_without_progress(self) -> float:
        """How long it has not become less."""
        return time.monotonic() - self._changed_at

    def signs(self, min_in_sync: Mapping[str, int]) -> ClusterSigns:
        """Return how the cluster takes the load since the last call."""
        metadata = self._cluster.metadata(None)
        thin, under, followed = 0, set(), []
        for topic in metadata.topics.values():
            for partition in topic.partitions if topic.error is ErrorCode.none else ():
                tp = TopicPartition(topic.name, partition.index)
                if tp in self._planned:
                    continue
                followed.append(_followed(tp, partition.leader, partition.replicas))
                thin += len(partition.isr) < len(partition.replicas)
                if len(partition.isr) < min(min_in_sync.get(topic.name, 1), len(partition.replicas)):
                    under.add(tp)
        now, copied = time.monotonic(), self.copies.total
        since, before = self._marked or (now, copied)
        self._marked = (now, copied)
        signs = Signs(thin, self._lag(followed), self._latency(), copied - before, now - since, len(self._senders))
        return ClusterSigns(signs, frozenset(under))

    def _lag(self, followed: Collection[Followed]) -> int:
        """Return the records that followers on the brokers of the plan lack. What does not respond has none."""
        chosen = chosen_to_follow(followed, self._brokers, most=_MOST_FOLLOWED)
        try:
            deadline = self._cluster.deadline(_PROBE_SECONDS / 2)
            return sum(find_follower_lag(self._cluster, chosen, deadline=deadline).values())
        except OttlaError:
            return 0  # how late they respond is another sign

    def _latency(self) -> float:
        """Return the seconds until the last broker has answered a small request."""
        started = time.monotonic()
        try:
            deadline = self._cluster.deadline(_PROBE_SECONDS)
            brokers = self._cluster.metadata((), deadline=deadline).brokers.values()
            started = time.monotonic()
            ask_each(
                self._cluster,
                brokers,
                lambda version_of: metadata_request(version_of, MetadataQuery(frozenset())),
                deadline=deadline,
            )
        except OttlaError:
            pass  # as slow as the limit
        return time.monotonic() - started


def _followed(partition: TopicPartition, leader: int, replicas: tuple[int, ...]) -> Followed:
    return Followed(partition, leader, tuple(broker for broker in replicas if broker != leader))
