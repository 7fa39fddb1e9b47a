"""Measures a run: sizes of the replicas that move, how fast they grow, and how the cluster takes it.

Comes in: a cluster and the partitions that move. Goes out: sizes, speeds and `Signs`. It only looks.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ottla.admin.all_brokers import ask_each
from ottla.admin.sizes import find_sizes
from ottla.admin.topics import TopicDescription
from ottla.errors import ErrorCode, OttlaError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.discovery import MetadataQuery, metadata_request
from ottla.net.metadata import Metadata
from ottla.operations.moves.pacing import Signs
from ottla.operations.moves.reading import Survey

_WINDOW_SECONDS = 20.0
_PROBE_SECONDS = 10.0


class ClusterSigns(NamedTuple):
    """How the whole cluster is."""

    load: Signs
    under_minimum: frozenset[TopicPartition]
    """Partitions outside the plan with too few in-sync replicas for producers with acks=all."""


class Gauge:
    """The measurements of one run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.calm = Signs()
        """How the cluster was before the run."""
        self._samples: list[tuple[float, int]] = []
        self._changed_at = time.monotonic()
        self._lag = 0
        self._senders: set[int] = set()
        self._marked: tuple[float, int] | None = None

    def begin(self, found: Survey) -> None:
        """Note how the cluster is before anything moves."""
        thin = sum(len(place.isr) < len(place.replicas) for place in found.layout.placements)
        self.calm = Signs(thin, latency=self._latency())

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
            self._lag = 0
            return {}
        found = find_sizes(self._cluster, topics, deadline=self._cluster.deadline(_PROBE_SECONDS))
        in_sync = {
            (TopicPartition(topic.name, partition.index), broker)
            for topic in topics
            for partition in topic.partitions
            for broker in partition.isr
        }
        self._senders = {partition.leader for topic in topics for partition in topic.partitions}
        self._lag = sum(
            copy.offset_lag
            for tp, copies in found.copies.items()
            for copy in copies
            if (tp, copy.broker) in in_sync and copy.offset_lag > 0
        )
        return {tp: {copy.broker: copy.size_bytes for copy in copies} for tp, copies in found.copies.items()}

    def speed(self, left: int) -> float:
        """Return the bytes per second of the last seconds, from what is left now."""
        now = time.monotonic()
        if not self._samples or self._samples[-1][1] != left:
            self._changed_at = now
        self._samples.append((now, left))
        while len(self._samples) > 2 and self._samples[1][0] < now - _WINDOW_SECONDS:
            del self._samples[0]
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return max(0.0, (first - last) / (last_at - first_at)) if last_at > first_at else 0.0

    @property
    def seconds_without_progress(self) -> float:
        """How long nothing was copied."""
        return time.monotonic() - self._changed_at

    def signs(self, planned: Collection[TopicPartition], min_in_sync: Mapping[str, int]) -> ClusterSigns:
        """Return how the cluster takes the load since the last call."""
        metadata = self._cluster.metadata(None)
        thin, under = 0, set()
        for topic in metadata.topics.values():
            for partition in topic.partitions if topic.error is ErrorCode.none else ():
                tp = TopicPartition(topic.name, partition.index)
                if tp in planned:
                    continue
                thin += len(partition.isr) < len(partition.replicas)
                if len(partition.isr) < min(min_in_sync.get(topic.name, 1), len(partition.replicas)):
                    under.add(tp)
        now, left = self._samples[-1] if self._samples else (time.monotonic(), 0)
        since, before = self._marked or (now, left)
        self._marked = (now, left)
        signs = Signs(thin, self._lag, self._latency(), before - left, now - since, len(self._senders))
        return ClusterSigns(signs, frozenset(under))

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
