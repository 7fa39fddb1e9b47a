"""How many bytes each replica takes on each broker's disks: DescribeLogDirs requests and what the responses mean.

Comes in: topics. Goes out: sizes, and the brokers that did not report them. A broker that is down must not spoil the
rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.admin.all_brokers import ask_each
from ottla.admin.topics import TopicDescription
from ottla.errors import ErrorCode, NetworkError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.connection import VersionOf
from ottla.net.deadline import Deadline
from ottla.wire import messages

DESCRIBE_LOG_DIRS = 35


@dataclass(frozen=True, slots=True)
class ReplicaSize:
    """A replica of a partition on a disk."""

    partition: TopicPartition
    broker: int
    size_bytes: int
    directory: str
    """The log directory on the broker."""
    moving: bool = False
    """Whether it is being filled to replace the replica in another directory of the same broker."""
    move_lag: int = 0
    """The records it still lacks if it is `moving`. How far a follower is behind its leader: `follower_lag`."""


@dataclass(frozen=True, slots=True)
class ReplicaSizes:
    """The replicas of each partition, and why brokers with replicas did not report them."""

    copies: Mapping[TopicPartition, tuple[ReplicaSize, ...]] = field(default_factory=dict)
    away: Mapping[int, str] = field(default_factory=dict)
    """Why brokers did not report, by broker id."""

    def largest(self, partition: TopicPartition) -> int | None:
        """Return the size of the largest replica, None if unknown: the leader may be the broker that is away."""
        return max((replica.size_bytes for replica in self.copies.get(partition, ())), default=None)

    def together(self, partition: TopicPartition) -> int:
        """Return the total size of all reported replicas."""
        return sum(replica.size_bytes for replica in self.copies.get(partition, ()))


def find_sizes(cluster: Cluster, topics: Iterable[TopicDescription], *, deadline: Deadline) -> ReplicaSizes:
    """Ask every broker that has a replica, all at the same time."""
    descriptions = list(topics)
    brokers = cluster.known.brokers
    holders = sorted({node for topic in descriptions for partition in topic.partitions for node in partition.replicas})
    away = {node: "not among the brokers of the cluster at the moment" for node in holders if node not in brokers}
    present = [brokers[node] for node in holders if node in brokers]
    # A broker that does not respond in half of the time is away; the caller's next request needs the other half.
    limit = deadline.sooner(deadline.remaining() / 2)
    responses = ask_each(cluster, present, lambda version_of: _build(version_of, descriptions), deadline=limit)
    replicas: list[ReplicaSize] = []
    for broker, response in responses.items():
        replicas += _replicas(broker.id, response)
        if reason := reason_of(response):
            away[broker.id] = reason
    copies: dict[TopicPartition, tuple[ReplicaSize, ...]] = {}
    for replica in sorted(replicas, key=lambda replica: (replica.partition, replica.broker)):
        copies[replica.partition] = (*copies.get(replica.partition, ()), replica)
    return ReplicaSizes(copies, away)


def _build(version_of: VersionOf, topics: Iterable[TopicDescription]) -> messages.Message:
    """Build a DescribeLogDirs request for these topics."""
    fields = {
        "topics": [{"topic": topic.name, "partitions": [part.index for part in topic.partitions]} for topic in topics]
    }
    message: messages.Message = messages.compose(
        messages.request_type(DESCRIBE_LOG_DIRS, version_of(DESCRIBE_LOG_DIRS)), fields
    )
    return message


def reason_of(response: Any) -> str | None:
    """Return why a broker did not report everything: one failed disk leaves the others readable."""
    if isinstance(response, NetworkError):
        return str(response)
    failed = [result for result in response.results if result.error_code is not ErrorCode.none]
    if failed:
        return ", ".join(f"{result.log_dir}: {result.error_code.name.upper()}" for result in failed)
    code = getattr(response, "error_code", ErrorCode.none)  # since version 3
    return None if code is ErrorCode.none else code.name.upper()


def _replicas(broker: int, response: Any) -> Iterator[ReplicaSize]:
    for result in () if isinstance(response, NetworkError) else response.results:
        for topic in result.topics:
            for row in topic.partitions:
                yield ReplicaSize(
                    TopicPartition(topic.name, int(row.partition_index)),
                    broker,
                    int(row.partition_size),
                    result.log_dir,
                    row.is_future_key,
                    # Of other replicas it would be the distance to the high watermark that the broker itself knows: 0.
                    int(row.offset_lag) if row.is_future_key else 0,
                )
