"""Writes tallies to the audit topic, and creates it: compacted, so that it keeps the last tally of each key.

A cluster client and tallies come in; the call returns when all of them are acknowledged by all replicas. A tally may be
written twice when an answer is lost, which changes nothing: readers take one of each key.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from ottla.admin.admin import Admin
from ottla.errors import BrokerError, ConfigError, ErrorCode, OttlaError, WireError
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.net.targets import LeaderOf
from ottla.tally.messages import Message, to_messages
from ottla.tally.values import AUDIT_TOPIC, AuditMessage
from ottla.wire import produce as wire
from ottla.wire.batch import Codec
from ottla.wire.columns import from_list
from ottla.wire.encode import BatchLimits, NewBatch, encode
from ottla.wire.partitioning import partition_of_key

PARTITIONS = 4
_RETENTION_DAYS = 90
_SETTINGS = {
    "cleanup.policy": "compact,delete",
    "retention.ms": str(_RETENTION_DAYS * 86_400_000),
    "segment.ms": str(86_400_000),
}
_CHANNEL = "audit"
_ALL_REPLICAS = -1


def publish(
    cluster: Cluster,
    tallies: Iterable[AuditMessage],
    *,
    topic: str = AUDIT_TOPIC,
    deadline: Deadline | None = None,
) -> int:
    """Write tallies to the audit topic, which must exist (`ensure_topic`). Returns the number of records.

    Raises `BrokerError` if a broker refuses them, and `NoBrokerReachable` or `DeadlineExceeded` when time runs out.
    """
    limit = deadline or Deadline.after(cluster.timeouts.total)
    messages = [message for tally in tallies for message in to_messages(tally)]
    if not messages:
        return 0
    partitions = len(cluster.topic(topic, deadline=limit).partitions)
    by_partition: dict[int, list[Message]] = {}
    for message in messages:
        by_partition.setdefault(partition_of_key(message.key, partitions), []).append(message)
    for partition, group in by_partition.items():
        columns = from_list([(message.key, message.value) for message in group])
        now_ms = int(time.time() * 1000)
        for batch in encode(columns, now_ms=now_ms, codec=Codec.GZIP, limits=BatchLimits(max_bytes=900_000)):
            _send(cluster, TopicPartition(topic, partition), batch, limit)
    return len(messages)


def ensure_topic(cluster: Cluster, topic: str = AUDIT_TOPIC, *, deadline: Deadline | None = None) -> None:
    """Create the audit topic if it does not exist. Raises `ConfigError` if it exists and is not compacted."""
    limit = deadline or Deadline.after(cluster.timeouts.total)
    with Admin(cluster) as admin:
        known = cluster.metadata([topic], deadline=limit).topics.get(topic)
        if known is None or known.error is ErrorCode.unknown_topic_or_partition:
            try:
                admin.create_topic(topic, partitions=PARTITIONS, settings=_SETTINGS, timeout=limit.remaining())
            except BrokerError as error:
                if error.code is not ErrorCode.topic_already_exists:
                    raise
                cluster.invalidate(topic)
        check_compacted(admin, topic, limit)


def check_compacted(admin: Admin, topic: str, limit: Deadline) -> None:
    """Raise `ConfigError` if the topic is not compacted. A user who may not see settings passes."""
    try:
        described = admin.settings([topic], timeout=limit.remaining())
    except BrokerError as error:
        if error.code in (ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed):
            return
        raise
    policy = described[topic].get("cleanup.policy")
    if policy is not None and "compact" not in (policy.value or "compact"):
        raise ConfigError(
            f"topic {topic} has cleanup.policy={policy.value}: an audit topic must be compacted, or tallies that were"
            " replaced count again; set cleanup.policy=compact, or use another topic"
        )


def _send(cluster: Cluster, at: TopicPartition, batch: NewBatch, limit: Deadline) -> None:
    """Write a batch and wait for its acknowledgement, again after errors that pass."""
    attempts = cluster.attempts(f"publishing tallies to {at}", limit)
    while True:
        try:
            _try(cluster, at, batch, attempts.deadline)
            return
        except OttlaError as error:
            if not isinstance(error, BrokerError) or error.row.refresh:
                cluster.doubt(LeaderOf(*at))
            attempts.failed(error)


def _try(cluster: Cluster, at: TopicPartition, batch: NewBatch, limit: Deadline) -> None:
    seconds = cluster.timeouts.request
    broker = cluster.leader(*at, deadline=limit)
    connection = cluster.connection(broker, channel=_CHANNEL, deadline=limit)
    body = wire.produce_request({at: batch.parts()}, acks=_ALL_REPLICAS, timeout_ms=int(seconds * 800))
    version = connection.version(wire.API_KEY, highest=wire.HIGHEST_VERSION)
    pending = connection.submit(wire.API_KEY, version, body, deadline=limit.sooner(seconds))
    answers = wire.produce_response(pending.result())
    if len(answers) != 1 or (answers[0].topic, answers[0].partition) != at:
        raise WireError(f"{broker.address} answered for partitions other than {at}")
    if answers[0].error_code:
        raise BrokerError(answers[0].error_code, f"{at} at {broker.address}", answers[0].message)
