"""The topic of the probe: a partition for each broker, with its only replica there, kept that way as brokers come.

Comes in: a cluster. Goes out: the partition of each broker. A partition cannot move by itself: with a single replica
its leader is that broker or none, so what happens to the partition happens to the broker. Records are bounded by
retention. The decision is pure (`homes_of`, `missing`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from ottla.admin.admin import Admin
from ottla.admin.movement import topic_settings
from ottla.admin.topics import CREATE_PARTITIONS, NewTopic, check_add_partitions
from ottla.errors import BrokerError, ConfigError, ErrorCode
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.metadata import Topic
from ottla.net.targets import Controller
from ottla.operations.health.snapshot import PROBE_TOPIC
from ottla.wire import messages

SETTINGS = {
    "cleanup.policy": "delete",
    "retention.ms": "600000",
    "segment.ms": "60000",
    "retention.bytes": str(1 << 20),
    "segment.bytes": str(1 << 20),
    "min.insync.replicas": "1",
    "compression.type": "producer",
}
"""Ten minutes of records, at most about two megabytes in each partition."""
SIGNATURE = ("segment.ms", "retention.bytes", "segment.bytes", "compression.type")
"""Settings by which a topic is known to be a probe's: no other has all of these values."""


def homes_of(topic: Topic | None) -> dict[int, int]:
    """Return the partition of each broker: the first whose only replica it has."""
    homes: dict[int, int] = {}
    for partition in () if topic is None else topic.partitions:
        if len(partition.replicas) == 1:
            homes.setdefault(partition.replicas[0], partition.index)
    return homes


def missing(topic: Topic | None, brokers: Collection[int]) -> list[int]:
    """Return the brokers that have no partition yet."""
    return sorted({*brokers} - {*homes_of(topic)})


def ensure(cluster: Cluster, *, topic: str = PROBE_TOPIC, deadline: Deadline) -> tuple[Topic, frozenset[int]]:
    """Create the topic, or the partitions of brokers that have none. Returns it, and the brokers that are up.

    Raises `ConfigError` for a topic of that name that no probe created, and as `Cluster.call` does.
    """
    metadata = cluster.metadata([topic], deadline=deadline)
    known = metadata.topics.get(topic)
    if known is None or known.error is ErrorCode.unknown_topic_or_partition:
        _create(cluster, topic, sorted(metadata.brokers), deadline)
    else:
        _refuse_foreign(cluster, known, deadline)
        new = missing(known, metadata.brokers)
        if not new:
            return known, frozenset(metadata.brokers)
        _add(cluster, known, new, deadline)
    metadata = cluster.metadata([topic], deadline=deadline)
    return metadata.topics[topic], frozenset(metadata.brokers)


def _refuse_foreign(cluster: Cluster, topic: Topic, deadline: Deadline) -> None:
    """Raise `ConfigError` for a topic that no probe created: records and partitions would be added to it."""
    found = topic_settings(cluster, [topic.name], only=SIGNATURE, deadline=deadline).get(topic.name)
    if found is None and topic.name == PROBE_TOPIC:
        return  # the user may not see settings
    if found is None or any(found.get(name) != SETTINGS[name] for name in SIGNATURE):
        raise ConfigError(f"topic {topic.name} exists and is not the probe's: choose another name for it")


def _create(cluster: Cluster, topic: str, brokers: Collection[int], deadline: Deadline) -> None:
    new = NewTopic(name=topic, settings=SETTINGS, assignments=[[number] for number in brokers])
    with Admin(cluster) as admin:
        try:
            admin.create_topics([new], timeout=deadline.remaining())
        except BrokerError as error:
            if error.code is not ErrorCode.topic_already_exists:  # another probe was faster
                raise


def _add(cluster: Cluster, topic: Topic, brokers: Collection[int], deadline: Deadline) -> None:
    """Add a partition on each of these brokers. One that another probe has just added is found at the next look."""
    fields: Mapping[str, Any] = {
        "topics": [
            {
                "name": topic.name,
                "count": len(topic.partitions) + len(brokers),
                "assignments": [{"broker_ids": (number,)} for number in brokers],
            }
        ],
        "timeout": timedelta(seconds=max(0.1, 0.8 * deadline.remaining())),
        "validate_only": False,
    }
    cluster.call(
        Controller(),
        lambda version_of: messages.compose(
            messages.request_type(CREATE_PARTITIONS, version_of(CREATE_PARTITIONS)), fields
        ),
        check=lambda response: check_add_partitions(response, accept=ErrorCode.invalid_partitions),
        what=f"adding partitions to topic {topic.name}",
        deadline=deadline,
    )


def remove(cluster: Cluster, *, topic: str = PROBE_TOPIC, deadline: Deadline) -> None:
    """Delete the topic with its records."""
    with Admin(cluster) as admin:
        try:
            admin.delete_topics([topic], timeout=deadline.remaining())
        except BrokerError as error:
            if error.code is not ErrorCode.unknown_topic_or_partition:
                raise
