"""How many bytes each copy of a partition takes on each broker's disks: DescribeLogDirs and what its answers mean.

Topics come in; sizes go out, together with the brokers that could not tell: one that is away does not spoil the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.admin.everywhere import ask_each
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
    """One copy of a partition on a disk."""

    partition: TopicPartition
    broker: int
    size_bytes: int
    offset_lag: int
    """How far it is behind the log's end, in records."""
    directory: str
    moving: bool = False
    """It is being filled, to replace the copy in another directory of the same broker."""


@dataclass(frozen=True, slots=True)
class ReplicaSizes:
    """The copies of each partition that were found, and why brokers that have some did not tell."""

    copies: Mapping[TopicPartition, tuple[ReplicaSize, ...]] = field(default_factory=dict)
    away: Mapping[int, str] = field(default_factory=dict)

    def largest(self, partition: TopicPartition) -> int | None:
        """Bytes of the largest copy, None when nobody told: the leader may just be the one that is away."""
        return max((one.size_bytes for one in self.copies.get(partition, ())), default=None)

    def together(self, partition: TopicPartition) -> int:
        """Bytes of all copies that were told."""
        return sum(one.size_bytes for one in self.copies.get(partition, ()))


def find_sizes(cluster: Cluster, topics: Iterable[TopicDescription], *, deadline: Deadline) -> ReplicaSizes:
    """Asks every broker that has a copy, at the same time."""
    wanted = list(topics)
    brokers = cluster.known.brokers
    holders = sorted({node for topic in wanted for partition in topic.partitions for node in partition.replicas})
    away = {node: "not among the brokers of the cluster at the moment" for node in holders if node not in brokers}
    present = [brokers[node] for node in holders if node in brokers]
    # Whoever does not answer in half of the time is away; the other half is for the caller's next question.
    limit = deadline.sooner(deadline.remaining() / 2)
    answers = ask_each(cluster, present, lambda version_of: _build(version_of, wanted), deadline=limit)
    found: list[ReplicaSize] = []
    for broker, answer in answers.items():
        found += _replicas(broker.id, answer)
        if reason := _reason(answer):
            away[broker.id] = reason
    copies: dict[TopicPartition, tuple[ReplicaSize, ...]] = {}
    for one in sorted(found, key=lambda one: (one.partition, one.broker)):
        copies[one.partition] = (*copies.get(one.partition, ()), one)
    return ReplicaSizes(copies, away)


def _build(version_of: VersionOf, topics: Iterable[TopicDescription]) -> messages.Message:
    fields = {
        "topics": [{"topic": topic.name, "partitions": [part.index for part in topic.partitions]} for topic in topics]
    }
    message: messages.Message = messages.compose(
        messages.request_type(DESCRIBE_LOG_DIRS, version_of(DESCRIBE_LOG_DIRS)), fields
    )
    return message


def _reason(answer: Any) -> str | None:
    """Why a broker did not tell everything: one failed disk leaves the others readable."""
    if isinstance(answer, NetworkError):
        return str(answer)
    failed = [result for result in answer.results if result.error_code is not ErrorCode.none]
    if failed:
        return ", ".join(f"{result.log_dir}: {result.error_code.name.upper()}" for result in failed)
    code = getattr(answer, "error_code", ErrorCode.none)  # since version 3
    return None if code is ErrorCode.none else code.name.upper()


def _replicas(broker: int, answer: Any) -> Iterator[ReplicaSize]:
    for result in () if isinstance(answer, NetworkError) else answer.results:
        for topic in result.topics:
            for row in topic.partitions:
                yield ReplicaSize(
                    TopicPartition(topic.name, int(row.partition_index)),
                    broker,
                    int(row.partition_size),
                    int(row.offset_lag),
                    result.log_dir,
                    row.is_future_key,
                )
