"""What moves replicas in a cluster, and what slows that down: running reassignments and replication throttles.

Comes in: a cluster. Goes out: `Reassignment` values, the rates of brokers and the throttled replicas of topics. It only
looks; it must not change anything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from ottla.admin.all_brokers import ask_each
from ottla.admin.settings import DESCRIBE_CONFIGS
from ottla.errors import BrokerError, ErrorCode, NetworkError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.connection import VersionOf
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker
from ottla.net.targets import AnyBroker, Target
from ottla.wire import messages

LIST_PARTITION_REASSIGNMENTS = 46
_BROKER, _TOPIC = 4, 2
_OWN = 2
"""The source of a setting that was given to this broker while it ran; others are defaults, or of its file."""
RATES = (
    "leader.replication.throttled.rate",
    "follower.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
)
"""Settings of a broker that limit how fast replicas are copied."""
THROTTLED = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
"""Settings of a topic that say to which replicas the limits apply."""
_TOPICS_AT_ONCE = 500
_ANY = AnyBroker()


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition whose replicas move."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    """All of them: those that stay, those that come and those that go."""
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


def running_reassignments(cluster: Cluster, *, via: Target = _ANY, deadline: Deadline) -> tuple[Reassignment, ...]:
    """Return every partition whose replicas move at the moment. Raises as `Cluster.call` does."""

    def check(response: Any) -> tuple[Reassignment, ...]:
        if response.error_code is not ErrorCode.none:
            raise BrokerError(response.error_code, "listing reassignments", response.error_message)
        return tuple(
            Reassignment(
                TopicPartition(topic.name, int(row.partition_index)),
                tuple(map(int, row.replicas)),
                tuple(map(int, row.adding_replicas)),
                tuple(map(int, row.removing_replicas)),
            )
            for topic in response.topics
            for row in topic.partitions
        )

    fields = {"timeout": timedelta(seconds=max(0.1, 0.8 * deadline.remaining())), "topics": None}
    return cluster.call(
        via,
        lambda version_of: messages.compose(
            messages.request_type(LIST_PARTITION_REASSIGNMENTS, version_of(LIST_PARTITION_REASSIGNMENTS)), fields
        ),
        check=check,
        what="listing reassignments",
        deadline=deadline,
    )


def broker_settings(
    cluster: Cluster, brokers: Iterable[Broker], *, only: Collection[str], deadline: Deadline, own_only: bool = False
) -> dict[int, dict[str, str]]:
    """Return these settings of each broker, where they have a value. A broker that does not answer is absent.

    With `own_only`, defaults of all brokers are left out.
    """
    responses: dict[int, Any] = {}
    for broker in brokers:  # each knows its own settings only
        row = {"resource_type": _BROKER, "resource_name": str(broker.id), "configuration_keys": tuple(only)}
        build = partial(_describe, resources=[row])
        responses[broker.id] = ask_each(cluster, [broker], build, deadline=deadline)[broker]
    return {
        number: {
            row.name: row.value
            for row in response.results[0].configs
            if row.value is not None and (not own_only or int(row.config_source) == _OWN)
        }
        for number, response in responses.items()
        if not isinstance(response, NetworkError) and response.results[0].error_code is ErrorCode.none
    }


def topic_settings(
    cluster: Cluster, topics: Collection[str], *, only: Collection[str], via: Target = _ANY, deadline: Deadline
) -> dict[str, dict[str, str]]:
    """Return these settings of many topics. A topic that is gone, or hidden from the user, is absent."""
    names = list(topics)
    found: dict[str, dict[str, str]] = {}
    for start in range(0, len(names), _TOPICS_AT_ONCE):
        rows = [
            {"resource_type": _TOPIC, "resource_name": name, "configuration_keys": tuple(only)}
            for name in names[start : start + _TOPICS_AT_ONCE]
        ]
        response = cluster.call(
            via,
            partial(_describe, resources=rows),
            check=lambda response: response,
            what="describing settings of topics",
            deadline=deadline,
        )
        found.update(_by_name(response))
    return found


def _by_name(response: Any) -> Mapping[str, dict[str, str]]:
    return {
        result.resource_name: {row.name: row.value for row in result.configs if row.value is not None}
        for result in response.results
        if result.error_code is ErrorCode.none
    }


def _describe(version_of: VersionOf, resources: list[dict[str, Any]]) -> messages.Message:
    fields = {"resources": resources, "include_synonyms": False, "include_documentation": False}
    message: messages.Message = messages.compose(
        messages.request_type(DESCRIBE_CONFIGS, version_of(DESCRIBE_CONFIGS)), fields
    )
    return message
