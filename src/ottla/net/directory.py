"""The metadata cache of a client: brokers, topics and coordinators, with their age.

Metadata responses come in, cached values go out. Whatever an error puts in doubt is marked stale, so that the next
use looks it up again. It is thread-safe and never sends a request.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from dataclasses import replace
from types import MappingProxyType

from ottla.errors import ConnectFailed, ErrorCode
from ottla.net.metadata import Broker, Metadata, Topic, merge, with_partition
from ottla.net.targets import CoordinatorKind

_STALE = float("-inf")


class Directory:
    """The cache of one cluster client. Entries older than `age` seconds count as unknown."""

    def __init__(self, *, age: float) -> None:
        self._age = age
        self._lock = threading.RLock()  # reentrant: a signal handler may interrupt a call of its own thread
        self._known = Metadata()
        self._brokers_seen = _STALE
        self._seen: dict[str, float] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], Broker] = {}

    @property
    def known(self) -> Metadata:
        """Everything in the cache, stale or not."""
        return self._known

    def learn(self, new: Metadata, *, asked: Collection[str] | None, source: object) -> Metadata:
        """Merge the response of the broker at `source` and return what is now known of the topics asked for.

        Raises `ConnectFailed` if the broker belongs to another cluster.
        """
        now = time.monotonic()
        with self._lock:
            cluster_id = self._known.cluster_id
            if cluster_id is not None and new.cluster_id not in (None, cluster_id):
                reason = f"belongs to cluster {new.cluster_id}, but this client is connected to cluster {cluster_id}"
                raise ConnectFailed(source, f"{reason}: check the bootstrap addresses, or create a new client")
            self._known = merge(self._known, new, asked=asked)
            self._brokers_seen = now
            for name in new.topics:
                self._seen[name] = now
            topics = {name: self._known.topics[name] for name in new.topics}
            return replace(self._known, topics=MappingProxyType(topics))

    def leader_moved(self, name: str, index: int, *, leader: int, epoch: int) -> bool:
        """Record a new leader that a broker named (KIP-951). Returns whether it is now the known leader."""
        with self._lock:
            topic = self._known.topics.get(name)
            partition = None if topic is None else topic.partition(index)
            if topic is None or partition is None or epoch < 0:
                return False
            if epoch <= partition.leader_epoch:
                return (leader, epoch) == (partition.leader, partition.leader_epoch)
            if leader not in self._known.brokers:
                return False
            moved = replace(partition, leader=leader, leader_epoch=epoch, error=ErrorCode.none)
            topics = {**self._known.topics, name: with_partition(topic, moved)}
            self._known = replace(self._known, topics=MappingProxyType(topics))
            return True

    def brokers_are_fresh(self) -> bool:
        """Whether brokers and controller are known and fresh."""
        return time.monotonic() - self._brokers_seen < self._age

    def fresh_topic(self, name: str) -> Topic | None:
        """Return the topic, or None if it is unknown or stale."""
        with self._lock:
            if time.monotonic() - self._seen.get(name, _STALE) >= self._age:
                return None
            return self._known.topics.get(name)

    def doubt_topics(self, names: Collection[str]) -> None:
        """Mark the topics as stale, but keep their leader epochs."""
        with self._lock:
            for name in names:
                self._seen.pop(name, None)

    def forget_topics(self, names: Collection[str]) -> None:
        """Drop everything about topics that are no longer used."""
        with self._lock:
            topics = {name: topic for name, topic in self._known.topics.items() if name not in names}
            self._known = replace(self._known, topics=MappingProxyType(topics))
            for name in names:
                self._seen.pop(name, None)

    def doubt_led_by(self, broker_id: int) -> None:
        """Mark everything about a failing broker as stale: its partitions may have moved, and it may be gone."""
        with self._lock:
            names = [
                name
                for name, topic in self._known.topics.items()
                if any(partition.leader == broker_id for partition in topic.partitions)
            ]
        self.doubt_topics(names)
        self.doubt_brokers()

    def doubt_brokers(self) -> None:
        """Mark brokers and controller as stale."""
        self._brokers_seen = _STALE

    def coordinator(self, kind: CoordinatorKind, key: str) -> Broker | None:
        """Return the coordinator of `key`, or None if it is unknown."""
        with self._lock:
            return self._coordinators.get((kind, key))

    def coordinates(self, kind: CoordinatorKind, key: str, *, broker: Broker | None) -> None:
        """Set the coordinator of `key`, or drop it with `broker=None`."""
        with self._lock:
            self._coordinators.pop((kind, key), None)
            if broker is not None:
                self._coordinators[kind, key] = broker
