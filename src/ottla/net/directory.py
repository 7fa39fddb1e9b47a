"""What a client remembers of its cluster: metadata with its age, and who coordinates what.

Answers come in, lookups go out; whatever an error has put in doubt is marked stale and asked for again. It is
safe to share between threads and never asks a broker itself.
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
    """The memory of one cluster client; entries older than `age` seconds count as unknown."""

    def __init__(self, *, age: float) -> None:
        self._age = age
        self._lock = threading.RLock()  # a signal handler may come in the middle of a call of its thread
        self._known = Metadata()
        self._brokers_seen = _STALE
        self._seen: dict[str, float] = {}
        self._coordinators: dict[tuple[CoordinatorKind, str], Broker] = {}

    @property
    def known(self) -> Metadata:
        """Everything that is known, stale or not."""
        return self._known

    def learn(self, new: Metadata, *, asked: Collection[str] | None, source: object) -> Metadata:
        """Takes in what the broker at `source` answered; what is known now of the topics asked for."""
        now = time.monotonic()
        with self._lock:
            before = self._known.cluster_id
            if before is not None and new.cluster_id not in (None, before):
                reason = f"belongs to cluster {new.cluster_id}, but this client is connected to cluster {before}"
                raise ConnectFailed(source, f"{reason}: check the bootstrap addresses, or make a new client")
            self._known = merge(self._known, new, asked=asked)
            self._brokers_seen = now
            for name in new.topics:
                self._seen[name] = now
            topics = {name: self._known.topics[name] for name in new.topics}
            return replace(self._known, topics=MappingProxyType(topics))

    def leader_moved(self, name: str, index: int, *, leader: int, epoch: int) -> bool:
        """Takes in a new leader that a broker named (KIP-951); whether it is the one that is known now."""
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
        """Whether brokers and controller are known and not too old."""
        return time.monotonic() - self._brokers_seen < self._age

    def fresh_topic(self, name: str) -> Topic | None:
        """The topic, unless it is unknown, stale or had an error."""
        with self._lock:
            if time.monotonic() - self._seen.get(name, _STALE) >= self._age:
                return None
            return self._known.topics.get(name)

    def doubt_topics(self, names: Collection[str]) -> None:
        """The topics must be asked for again; their leader epochs are remembered."""
        with self._lock:
            for name in names:
                self._seen.pop(name, None)

    def forget_topics(self, names: Collection[str]) -> None:
        """The topics are not used any more: nothing is remembered of them."""
        with self._lock:
            topics = {name: topic for name, topic in self._known.topics.items() if name not in names}
            self._known = replace(self._known, topics=MappingProxyType(topics))
            for name in names:
                self._seen.pop(name, None)

    def doubt_led_by(self, broker_id: int) -> None:
        """The broker is in trouble: what it leads may have moved, and it may be gone itself."""
        with self._lock:
            led = [n for n, t in self._known.topics.items() if any(p.leader == broker_id for p in t.partitions)]
        self.doubt_topics(led)
        self.doubt_brokers()

    def doubt_brokers(self) -> None:
        """Brokers and controller must be asked for again."""
        self._brokers_seen = _STALE

    def coordinator(self, kind: CoordinatorKind, key: str) -> Broker | None:
        """Who coordinates `key`, if that is known."""
        with self._lock:
            return self._coordinators.get((kind, key))

    def coordinates(self, kind: CoordinatorKind, key: str, *, broker: Broker | None) -> None:
        """`broker` coordinates `key`; None when that is in doubt."""
        with self._lock:
            self._coordinators.pop((kind, key), None)
            if broker is not None:
                self._coordinators[kind, key] = broker
