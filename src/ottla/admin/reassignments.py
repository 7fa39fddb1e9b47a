"""Moving replicas to other brokers: AlterPartitionReassignments, and ElectLeaders, with what the responses mean.

Comes in: partitions with their new replicas, or partitions that are to be led by their preferred replica. Goes out:
requests, and the errors of single partitions as values: one that fails leaves the others as they are. The functions
with a cluster send them; what runs at the moment is in `movement`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import groupby
from typing import Any

from ottla.errors import BrokerError, ErrorCode
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.connection import VersionOf
from ottla.net.deadline import Deadline
from ottla.net.targets import Controller
from ottla.wire import messages

ALTER_PARTITION_REASSIGNMENTS, ELECT_LEADERS = 45, 43
_PREFERRED = 0
_AT_ONCE = 1000
"""Partitions in one request: a controller takes each request as a whole."""
_ELECTED = (ErrorCode.none, ErrorCode.election_not_needed)

Errors = dict[TopicPartition, BrokerError]
"""Why partitions were refused."""


def build_reassign(
    version_of: VersionOf, replicas: Mapping[TopicPartition, Sequence[int] | None], *, seconds: float
) -> messages.Message:
    """Build a request that moves partitions to these brokers; None ends what runs. The broker may take `seconds`."""
    topics = [
        {
            "name": topic,
            "partitions": [
                {"partition_index": tp.partition, "replicas": None if (to := replicas[tp]) is None else tuple(to)}
                for tp in partitions
            ],
        }
        for topic, partitions in groupby(sorted(replicas), key=lambda tp: tp.topic)
    ]
    fields = {"timeout": timedelta(seconds=seconds), "allow_replication_factor_change": True, "topics": topics}
    message: messages.Message = messages.compose(
        messages.request_type(ALTER_PARTITION_REASSIGNMENTS, version_of(ALTER_PARTITION_REASSIGNMENTS)), fields
    )
    return message


def read_reassign(response: Any) -> Errors:
    """Return the partitions that were refused. Raises `BrokerError` if the whole request was."""
    if response.error_code is not ErrorCode.none:
        raise BrokerError(response.error_code, "moving replicas", response.error_message)
    return {
        (tp := TopicPartition(topic.name, int(row.partition_index))): BrokerError(
            row.error_code, f"moving replicas of {tp}", row.error_message
        )
        for topic in response.responses
        for row in topic.partitions
        if row.error_code is not ErrorCode.none
    }


def reassign(
    cluster: Cluster, replicas: Mapping[TopicPartition, Sequence[int] | None], *, deadline: Deadline
) -> Errors:
    """Begin to move partitions to these brokers, or end what runs (None). Returns the partitions that were refused."""
    errors: Errors = {}
    for chunk in _chunks(replicas):
        errors |= cluster.call(
            Controller(),
            partial(
                build_reassign,
                replicas={tp: replicas[tp] for tp in chunk},
                seconds=_broker_seconds(cluster, deadline),
            ),
            check=read_reassign,
            what="moving replicas",
            deadline=deadline,
        )
    return errors


def build_elect(
    version_of: VersionOf, partitions: Collection[TopicPartition] | None, *, seconds: float
) -> messages.Message:
    """Build a request that makes the preferred replicas lead; None means all partitions."""
    topics = None
    if partitions is not None:
        by_topic = groupby(sorted(partitions), key=lambda tp: tp.topic)
        topics = [{"topic": topic, "partitions": tuple(tp.partition for tp in chosen)} for topic, chosen in by_topic]
    fields = {"election_type": _PREFERRED, "topic_partitions": topics, "timeout": timedelta(seconds=seconds)}
    message: messages.Message = messages.compose(
        messages.request_type(ELECT_LEADERS, version_of(ELECT_LEADERS)), fields
    )
    return message


def read_elect(response: Any) -> tuple[list[TopicPartition], Errors]:
    """Return the partitions with another leader than before, and those whose preferred replica cannot lead."""
    if (code := getattr(response, "error_code", ErrorCode.none)) is not ErrorCode.none:
        raise BrokerError(code, "electing leaders")
    elected: list[TopicPartition] = []
    errors: Errors = {}
    for topic in response.replica_election_results:
        for row in topic.partition_result:
            tp = TopicPartition(topic.topic, int(row.partition_id))
            if row.error_code is ErrorCode.none:
                elected.append(tp)
            elif row.error_code not in _ELECTED:
                errors[tp] = BrokerError(row.error_code, f"electing the leader of {tp}", row.error_message)
    return elected, errors


def elect_preferred(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, deadline: Deadline
) -> tuple[list[TopicPartition], Errors]:
    """Make the first replica of each partition its leader. Returns those with a new leader, and those refused."""
    elected: list[TopicPartition] = []
    errors: Errors = {}
    for chunk in _chunks(partitions):
        done, refused = cluster.call(
            Controller(),
            partial(build_elect, partitions=chunk, seconds=_broker_seconds(cluster, deadline)),
            check=read_elect,
            what="electing leaders",
            deadline=deadline,
        )
        elected += done
        errors |= refused
    return elected, errors


def _chunks(partitions: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
    ordered = sorted(partitions)
    for start in range(0, len(ordered), _AT_ONCE):
        yield ordered[start : start + _AT_ONCE]


def _broker_seconds(cluster: Cluster, deadline: Deadline) -> float:
    return max(0.1, 0.8 * min(deadline.remaining(), cluster.timeouts.request))
