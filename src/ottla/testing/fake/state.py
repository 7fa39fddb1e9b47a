"""The state of the fake cluster: brokers, topics, leaders, producer ids, groups.

Pure: no sockets, no threads, no clock. The caller holds the lock. `Refused` carries the error code of a real broker.
"""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ottla.config import Address
from ottla.errors import ErrorCode
from ottla.testing.fake.groups import Group
from ottla.testing.fake.log import PartitionLog, Refused

NO_LEADER = -1
MAX_MESSAGE_BYTES = 1_048_588  # message.max.bytes of a real broker
CLUSTER_ID = "ottla-fake-cluster-001"
_LAST_EPOCH = 32_766  # Short.MAX_VALUE - 1: after it, a transactional id gets a new producer id.
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TOPIC_IDS = uuid.UUID("5e1d4f5a-0d57-4b0e-9a57-3f1f0d6f0a01")


@dataclass(frozen=True, slots=True)
class AutoCreate:
    """The properties of a topic that is created automatically; `replicas` None is the default.

    Real brokers do not create topics for clients that decline it in their request, as Ottla's clients do by default.
    With `for_all`, the fake creates topics for those too.
    """

    partitions: int = 1
    replicas: int | None = None
    for_all: bool = False


@dataclass(slots=True)
class Partition:
    """One partition: its replicas, its leader, and its log (shared by all replicas)."""

    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    log: PartitionLog = field(default_factory=PartitionLog)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return where an epoch ends. The current one counts from its election, even before it wrote anything."""
        return (epoch, self.log.end) if epoch == self.leader_epoch else self.log.epoch_end(epoch)

    def check_epoch(self, claimed: int) -> None:
        """Raise `Refused` if the client's leader epoch is older or newer (KIP-320); -1 means none."""
        if 0 <= claimed < self.leader_epoch:
            raise Refused(ErrorCode.fenced_leader_epoch)
        if claimed > self.leader_epoch:
            raise Refused(ErrorCode.unknown_leader_epoch)

    def lead(self, broker: int) -> None:
        """Make `broker` the leader, in a new epoch if it changes."""
        if broker != self.leader:
            self.leader = broker
            self.leader_epoch += 1


@dataclass(slots=True)
class Topic:
    """A topic with its partitions and the settings it was created with."""

    name: str
    id: uuid.UUID
    partitions: list[Partition]
    configs: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class TransactionalId:
    """The producer id behind a transactional id, and its newest epoch."""

    producer_id: int
    epoch: int = 0


@dataclass(slots=True)
class FetchSession:
    """What a broker remembers about a reader (KIP-227)."""

    epoch: int
    """The epoch of the next request."""
    parts: dict[tuple[Any, int], tuple[Any, Any]]
    """By topic (as the request named it) and partition: the topic and the partition of the latest request."""
    high_watermarks: dict[tuple[Any, int], int]
    """The high watermarks that were sent last."""


class ClusterState:
    """Everything that the brokers of one fake cluster share."""

    def __init__(self, brokers: int, *, auto_create: AutoCreate | None, max_message_bytes: int) -> None:
        self.brokers = tuple(range(1, brokers + 1))
        self.addresses: dict[int, Address] = {}
        self.live: set[int] = set()
        self.auto_create = auto_create
        self.max_message_bytes = max_message_bytes
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.transactional: dict[str, TransactionalId] = {}
        self.fetch_sessions: dict[tuple[int, int], FetchSession] = {}
        """By broker and session id."""
        self._topic_count = self._fetch_session_count = 0
        self._next_producer_id = 1000

    # -- brokers and leaders

    @property
    def controller(self) -> int:
        """The live broker with the lowest id; -1 if all are down."""
        return min(self.live, default=NO_LEADER)

    def broker_up(self, broker: int) -> None:
        """Bring the broker up; it leads the partitions that had no leader."""
        self.live.add(broker)
        for partition in self._partitions():
            if partition.leader == NO_LEADER and broker in partition.replicas:
                partition.lead(broker)

    def new_fetch_session(self, broker: int) -> int:
        """Create a fetch session and return its id."""
        self._fetch_session_count += 1
        self.fetch_sessions[broker, self._fetch_session_count] = FetchSession(1, {}, {})
        return self._fetch_session_count

    def broker_down(self, broker: int) -> None:
        """Take the broker down and drop its sessions; the next live replica takes over its partitions."""
        self.live.discard(broker)
        self.fetch_sessions = {key: session for key, session in self.fetch_sessions.items() if key[0] != broker}
        for partition in self._partitions():
            if partition.leader == broker:
                partition.lead(next((r for r in partition.replicas if r in self.live), NO_LEADER))

    def _partitions(self) -> Iterable[Partition]:
        return (partition for topic in self.topics.values() for partition in topic.partitions)

    def coordinator(self, key: str) -> int:
        """Return the broker that coordinates a group or a transactional id; -1 if all are down."""
        ranked = sorted(self.live)
        return ranked[zlib.crc32(key.encode()) % len(ranked)] if ranked else NO_LEADER

    # -- topics

    def topic(self, reference: Any) -> Topic:
        """Return the topic that a part of a request names, by name or in newer versions by id.

        Raises `Refused` if it does not exist.
        """
        topic_id = getattr(reference, "topic_id", None)
        if topic_id is not None:
            for topic in self.topics.values():
                if topic.id == topic_id:
                    return topic
            raise Refused(ErrorCode.unknown_topic_id, f"no topic has the id {topic_id}")
        name = getattr(reference, "name", None) or getattr(reference, "topic", None) or ""
        return self.topic_named(name)

    def topic_named(self, name: str) -> Topic:
        """Return the topic with this name. Raises `Refused` if it does not exist."""
        if name not in self.topics:
            raise Refused(ErrorCode.unknown_topic_or_partition, f"topic {name!r} does not exist")
        return self.topics[name]

    def partition(self, topic: Topic, index: int) -> Partition:
        """Return a partition of the topic, whichever broker leads it. Raises `Refused` if it does not exist."""
        if not 0 <= index < len(topic.partitions):
            raise Refused(ErrorCode.unknown_topic_or_partition, f"topic {topic.name!r} has no partition {index}")
        return topic.partitions[index]

    def led_partition(self, topic: Topic, index: int, *, broker: int) -> Partition:
        """Return a partition of the topic that `broker` leads. Raises `Refused` if it does not."""
        partition = self.partition(topic, index)
        if partition.leader != broker:
            raise Refused(ErrorCode.not_leader_or_follower, f"broker {broker} does not lead {topic.name}-{index}")
        return partition

    def create_topic(
        self,
        name: str,
        partitions: int,
        *,
        replicas: int | None = None,
        assignment: list[tuple[int, ...]] | None = None,
        configs: dict[str, str] | None = None,
    ) -> Topic:
        """Create a topic; `assignment` names the replicas of each partition, the leader first.

        Raises `Refused` as `check_new_topic` does.
        """
        self.check_new_topic(name, partitions, replicas=replicas, assignment=assignment)
        placement = assignment or self._place(range(partitions), replicas)
        self._topic_count += 1
        # Derived, not random, so that runs are reproducible. A topic that is created again gets another id.
        topic_id = uuid.uuid5(_TOPIC_IDS, f"{self._topic_count}/{name}")
        self.topics[name] = Topic(name, topic_id, [self._new_partition(r) for r in placement], configs or {})
        return self.topics[name]

    def check_new_topic(
        self, name: str, partitions: int, *, replicas: int | None, assignment: list[tuple[int, ...]] | None
    ) -> None:
        """Raise `Refused` for what a real broker refuses: invalid names and counts, missing brokers."""
        if not _LEGAL_NAME.fullmatch(name) or name in (".", ".."):
            raise Refused(ErrorCode.invalid_topic_exception, f"topic name {name!r} is illegal")
        if name in self.topics:
            raise Refused(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
        if any(broker not in self.brokers for placement in assignment or () for broker in placement):
            raise Refused(ErrorCode.invalid_replica_assignment, f"brokers are {self.brokers}, got {assignment}")
        if not assignment and partitions < 1:
            raise Refused(ErrorCode.invalid_partitions, f"a topic needs at least 1 partition, got {partitions}")
        if replicas is not None and not 1 <= replicas <= len(self.brokers):
            raise Refused(ErrorCode.invalid_replication_factor, f"{replicas} replicas on {len(self.brokers)} brokers")

    def add_partitions(self, topic: Topic, count: int) -> None:
        """Grow the topic to `count` partitions. Raises `Refused` if it has as many already."""
        if count <= len(topic.partitions):
            raise Refused(
                ErrorCode.invalid_partitions, f"{topic.name!r} already has {len(topic.partitions)} partitions"
            )
        new = range(len(topic.partitions), count)
        topic.partitions += [self._new_partition(r) for r in self._place(new, len(topic.partitions[0].replicas))]

    def _place(self, indexes: Iterable[int], replicas: int | None) -> list[tuple[int, ...]]:
        n = len(self.brokers)
        factor = min(3, n) if replicas is None else replicas
        return [tuple(self.brokers[(self._topic_count + i + r) % n] for r in range(factor)) for i in indexes]

    def _new_partition(self, replicas: tuple[int, ...]) -> Partition:
        # Before the start no broker is live; then the first replica will lead.
        leader = next((r for r in replicas if r in self.live), NO_LEADER if self.live else replicas[0])
        return Partition(replicas, leader)

    # -- producers and groups

    def new_producer_id(self) -> int:
        """Return an unused producer id."""
        self._next_producer_id += 1
        return self._next_producer_id

    def take_over(self, transactional_id: str, *, producer_id: int, epoch: int) -> TransactionalId:
        """Start a producer with this transactional id: the epoch rises, and older producers are fenced.

        Raises `Refused` if the producer is fenced itself.
        """
        transactional = self.transactional.get(transactional_id)
        if transactional is None or transactional.epoch >= _LAST_EPOCH:
            transactional = self.transactional[transactional_id] = TransactionalId(self.new_producer_id())
            return transactional
        if producer_id >= 0 and (producer_id, epoch) != (transactional.producer_id, transactional.epoch):
            raise Refused(ErrorCode.producer_fenced, f"{transactional_id!r} was taken over by another producer")
        transactional.epoch += 1
        return transactional

    def check_fencing(self, producer_id: int, epoch: int) -> None:
        """Raise `Refused` for the epoch of a producer whose transactional id was taken over."""
        newest = next((t.epoch for t in self.transactional.values() if t.producer_id == producer_id), epoch)
        if epoch < newest:
            raise Refused(ErrorCode.invalid_producer_epoch, f"epoch {epoch} of producer {producer_id} is fenced")

    def group(self, group_id: str, *, broker: int) -> Group:
        """Return the group, created if new. Raises `Refused` if `broker` does not coordinate it."""
        if self.coordinator(group_id) != broker:
            raise Refused(ErrorCode.not_coordinator)
        return self.groups.setdefault(group_id, Group(group_id))
