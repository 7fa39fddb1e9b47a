"""The log directories of brokers: how large and how full each disk is, and what lies on it (DescribeLogDirs).

Comes in: brokers. Goes out: `LogDir` values by broker, and why brokers did not report theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ottla.admin.all_brokers import ask_each
from ottla.admin.sizes import DESCRIBE_LOG_DIRS, reason_of
from ottla.errors import ErrorCode, NetworkError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker
from ottla.wire import messages


@dataclass(frozen=True, slots=True)
class LogDir:
    """A log directory of a broker. Sizes of the disk are None before Kafka 3.3 (KIP-827)."""

    broker: int
    path: str
    replicas: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The bytes of each replica in it."""
    total_bytes: int | None = None
    """The size of the disk that it is on."""
    usable_bytes: int | None = None
    """What the broker may still write to that disk."""
    error: str | None = None
    """Why the broker cannot use it: KAFKA_STORAGE_ERROR after the disk failed."""

    @property
    def replica_bytes(self) -> int:
        """The bytes of all replicas."""
        return sum(self.replicas.values())

    @property
    def used(self) -> float | None:
        """The share of the disk that is in use, also by other programs; None if unknown."""
        if not self.total_bytes or self.usable_bytes is None:
            return None
        return 1 - self.usable_bytes / self.total_bytes


@dataclass(frozen=True, slots=True)
class LogDirs:
    """The log directories of each broker, and why others did not report theirs."""

    dirs: Mapping[int, tuple[LogDir, ...]] = field(default_factory=dict)
    away: Mapping[int, str] = field(default_factory=dict)


def find_log_dirs(cluster: Cluster, brokers: Iterable[Broker], *, deadline: Deadline) -> LogDirs:
    """Ask these brokers, all at the same time."""
    responses = ask_each(
        cluster,
        brokers,
        # No topics stand for all of them.
        lambda version_of: messages.compose(
            messages.request_type(DESCRIBE_LOG_DIRS, version_of(DESCRIBE_LOG_DIRS)), {"topics": None}
        ),
        deadline=deadline,
    )
    away = {
        broker.id: reason
        for broker, response in responses.items()
        if (isinstance(response, NetworkError) or not response.results) and (reason := reason_of(response))
    }
    dirs = {
        broker.id: tuple(_log_dir(broker.id, result) for result in response.results)
        for broker, response in responses.items()
        if broker.id not in away
    }
    return LogDirs(dirs, away)


def _log_dir(broker: int, result: Any) -> LogDir:
    total, usable = int(getattr(result, "total_bytes", -1)), int(getattr(result, "usable_bytes", -1))
    return LogDir(
        broker,
        result.log_dir,
        {
            TopicPartition(topic.name, int(row.partition_index)): int(row.partition_size)
            for topic in result.topics
            for row in topic.partitions
        },
        total if total >= 0 else None,
        usable if usable >= 0 else None,
        None if result.error_code is ErrorCode.none else result.error_code.name.upper(),
    )
