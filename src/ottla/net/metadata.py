"""Cluster metadata as plain values: brokers, topics, partitions and their leaders.

Metadata responses come in as kio entities, frozen values go out. `merge` combines a newer response with what was
known. Pure: no sockets, no clocks.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ottla.config import Address
from ottla.errors import ErrorCode

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker as the cluster advertises it."""

    id: int
    host: str
    port: int
    rack: str | None = None

    @property
    def address(self) -> Address:
        """Where to connect."""
        return Address(self.host, self.port)

    def __str__(self) -> str:
        return f"broker {self.id} ({self.address})"


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition: its leader (-1 for none) and its replicas, by broker id."""

    index: int
    leader: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    error: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic with its partitions, sorted by index. With an `error` it may have no partitions."""

    name: str
    id: uuid.UUID | None = None
    partitions: tuple[Partition, ...] = ()
    internal: bool = False
    error: ErrorCode = ErrorCode.none

    def partition(self, index: int) -> Partition | None:
        """Return the partition with this index, or None."""
        if index < len(self.partitions) and self.partitions[index].index == index:
            return self.partitions[index]
        return next((p for p in self.partitions if p.index == index), None)


@dataclass(frozen=True, slots=True)
class Metadata:
    """A snapshot of a cluster. `topics` has those that were asked for, unknown ones with their error."""

    cluster_id: str | None = None
    controller_id: int = -1
    brokers: Mapping[int, Broker] = field(default_factory=lambda: MappingProxyType({}))
    topics: Mapping[str, Topic] = field(default_factory=lambda: MappingProxyType({}))


def from_response(response: Any) -> Metadata:
    """Convert a MetadataResponse of any version."""
    brokers = {
        int(b.node_id): Broker(int(b.node_id), b.host, int(b.port), getattr(b, "rack", None)) for b in response.brokers
    }
    topics = [_topic(t) for t in response.topics if t.name is not None]
    return Metadata(
        cluster_id=getattr(response, "cluster_id", None),
        controller_id=int(getattr(response, "controller_id", -1)),
        brokers=MappingProxyType(brokers),
        topics=MappingProxyType({topic.name: topic for topic in topics}),
    )


def _topic(topic: Any) -> Topic:
    partitions = sorted((_partition(p) for p in topic.partitions), key=lambda p: p.index)
    return Topic(
        name=topic.name,
        id=getattr(topic, "topic_id", None),
        partitions=tuple(partitions),
        internal=bool(getattr(topic, "is_internal", False)),
        error=topic.error_code,
    )


def _partition(partition: Any) -> Partition:
    return Partition(
        index=int(partition.partition_index),
        leader=int(partition.leader_id),
        leader_epoch=int(getattr(partition, "leader_epoch", -1)),
        replicas=tuple(map(int, partition.replica_nodes)),
        isr=tuple(map(int, partition.isr_nodes)),
        offline=tuple(map(int, getattr(partition, "offline_replicas", ()))),
        error=partition.error_code,
    )


def merge(old: Metadata, new: Metadata, *, asked: Collection[str] | None) -> Metadata:
    """Combine what was known with a response for the `asked` topics (None: all of them).

    Brokers and controller come from the response; topics that it was not asked for stay. A partition never goes back
    to an older leader epoch of the same topic id: the broker that answered may lag behind (KIP-320).
    """
    kept = {} if asked is None else {n: t for n, t in old.topics.items() if n not in set(asked)}
    fresh = {name: _newer(old.topics.get(name), topic) for name, topic in new.topics.items()}
    return replace(new, topics=MappingProxyType({**kept, **fresh}))


def with_partition(topic: Topic, new: Partition) -> Topic:
    """Return the topic with `new` in place of the partition with the same index."""
    return replace(topic, partitions=tuple(new if old.index == new.index else old for old in topic.partitions))


def _newer(old: Topic | None, new: Topic) -> Topic:
    if old is None or old.id != new.id or not old.partitions or not new.partitions:
        return new
    partitions = tuple(_newer_partition(old.partition(p.index), p) for p in new.partitions)
    return replace(new, partitions=partitions)


def _newer_partition(old: Partition | None, new: Partition) -> Partition:
    if old is None or new.leader_epoch < 0:
        return new
    return old if old.leader_epoch > new.leader_epoch else new
