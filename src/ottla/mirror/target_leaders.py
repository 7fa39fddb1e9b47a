"""The leaders of the target partitions of a mirror: which broker to write to, and when to look it up again.

Targets and metadata come in; leaders go out, and targets whose topic has another id by now. The forwarder's loop runs
the lookups.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.loop import Loop
from ottla.net.metadata import Metadata
from ottla.net.refresh import MetadataRefresh

UNKNOWN = -1


class TargetLeaders:
    """Only for the loop's thread."""

    def __init__(self, cluster: Cluster, loop: Loop[object]) -> None:
        self._cluster = cluster
        self._loop = loop
        timeouts = cluster.timeouts
        self._refresh = MetadataRefresh(
            cluster.retry, loop.chance, longest=timeouts.request, refresh_seconds=timeouts.metadata_age
        )
        self._leaders: dict[TopicPartition, int] = {}
        self._targets: dict[TopicPartition, None] = {}
        self._topics: frozenset[str] = frozenset()

    def add(self, targets: Iterable[TopicPartition]) -> None:
        """Look after these partitions, too."""
        for target in targets:
            self._targets[target] = None
            self._learn_leader(target, self._cluster.known)
        self._topics = frozenset(target.topic for target in self._targets)

    def of(self, target: TopicPartition) -> int:
        """Return the leader, or `UNKNOWN`."""
        return self._leaders.get(target, UNKNOWN)

    def moved(self, target: TopicPartition, *, leader: int, epoch: int) -> bool:
        """Record the leader that a broker named in an answer (KIP-951). Returns False if it must be looked up."""
        is_known = self._cluster.leader_moved(*target, leader=leader, epoch=epoch)
        if is_known:
            self._leaders[target] = leader
        return is_known

    def doubt(self, target: TopicPartition) -> None:
        """Look the leader up again before the next request."""
        self._leaders.pop(target, None)
        self._refresh.doubt(target.topic)

    def doubt_led_by(self, broker: int) -> None:
        """Look up again what this broker leads: it is away."""
        for target in [target for target, leader in self._leaders.items() if leader == broker]:
            self.doubt(target)

    def turn(self, now: float) -> dict[str, UUID | None]:
        """Take the results of lookups and start what is due. Returns the ids of the topics that were looked up."""
        ids: dict[str, UUID | None] = {}
        for result in self._loop.lookups.done():
            if result.metadata is not None:
                self._learn(result.metadata, now)
                ids.update({name: topic.id for name, topic in result.metadata.topics.items()})
            elif result.error is not None:
                self._refresh.failed(result.lookup, result.error, now)
        if (lookup := self._refresh.due(now, self._topics, refreshed=self._topics)) is not None:
            self._loop.lookups.run(lookup)
        return ids

    def next_at(self) -> float:
        """Return when the next lookup is due."""
        return self._refresh.next_at(self._topics)

    def _learn(self, metadata: Metadata, now: float) -> None:
        self._refresh.learned(now)
        missing = {
            target.topic
            for target in self._targets
            if target.topic in metadata.topics and not self._learn_leader(target, metadata)
        }
        if missing:
            self._refresh.look_again(missing, now)

    def _learn_leader(self, target: TopicPartition, metadata: Metadata) -> bool:
        topic = metadata.topics.get(target.topic)
        partition = None if topic is None else topic.partition(target.partition)
        if partition is None or partition.leader < 0:
            self.doubt(target)
            return False
        self._leaders[target] = partition.leader
        return True
