"""Finds the broker that a target currently means, from the cache or with one request.

Targets come in, brokers go out. If there is none (yet), it raises `BrokerError` and marks what led to it as stale, so
that the caller's next attempt asks again. It never waits or retries.
"""

from __future__ import annotations

from typing import Any

from ottla.errors import BrokerError, ErrorCode
from ottla.net.deadline import Deadline
from ottla.net.directory import Directory
from ottla.net.discovery import Discovery, MetadataQuery
from ottla.net.metadata import Broker, Topic
from ottla.net.targets import CoordinatorOf, LeaderOf
from ottla.wire import messages

FIND_COORDINATOR = 10


class Resolver:
    """Looks into the directory first, then sends a request through discovery."""

    def __init__(self, *, directory: Directory, discovery: Discovery, request_seconds: float) -> None:
        self._directory = directory
        self._discovery = discovery
        self._request_seconds = request_seconds

    def topic(self, name: str, deadline: Deadline) -> Topic:
        """Return a topic. Raises `BrokerError` if it does not exist or has no partitions yet."""
        topic = self._directory.fresh_topic(name)
        if topic is None:
            topic = self._discovery.look(MetadataQuery(frozenset([name])), deadline).topics.get(name)
        if topic is None or (topic.error is not ErrorCode.none and not topic.partitions):
            self._directory.doubt_topics([name])
            code = ErrorCode.unknown_topic_or_partition if topic is None else topic.error
            raise BrokerError(code, f"topic {name}")
        return topic

    def leader(self, target: LeaderOf, deadline: Deadline) -> Broker:
        """Return the leader of a partition. Raises `BrokerError` if the partition does not exist or has no leader."""
        topic = self.topic(target.topic, deadline)
        partition = topic.partition(target.partition)
        broker = None if partition is None else self._directory.known.brokers.get(partition.leader)
        if broker is not None:
            return broker
        self._directory.doubt_topics([target.topic])
        name = f"{target.topic}-{target.partition}"
        if partition is None:
            count = f"the topic has partitions 0 to {len(topic.partitions) - 1}"
            raise BrokerError(ErrorCode.unknown_topic_or_partition, f"partition {name}", count)
        raise BrokerError(ErrorCode.leader_not_available, f"partition {name}", _replicas(partition.replicas))

    def node(self, node_id: int | None, deadline: Deadline) -> Broker | None:
        """Return the broker with this id, the controller for None; None if the cluster does not list it."""
        if not self._directory.brokers_are_fresh():
            self._discovery.look(MetadataQuery(), deadline)
        known = self._directory.known
        broker = known.brokers.get(known.controller_id if node_id is None else node_id)
        if broker is None:
            self._directory.doubt_brokers()
        return broker

    def coordinator(self, target: CoordinatorOf, deadline: Deadline) -> Broker:
        """Return the coordinator of a group or transactional id. Raises `BrokerError` if there is none."""
        broker = self._directory.coordinator(target.kind, target.key)
        if broker is None:
            connection = self._discovery.any_connection(deadline)
            fields = {"key": target.key, "key_type": target.kind.value, "coordinator_keys": (target.key,)}
            message = messages.compose(
                messages.request_type(FIND_COORDINATOR, connection.version(FIND_COORDINATOR)), fields
            )
            response = connection.request(message, deadline=deadline.sooner(self._request_seconds))
            broker = _coordinator_in(response, target)
            self._directory.coordinates(target.kind, target.key, broker=broker)
        return broker


def _coordinator_in(response: Any, target: CoordinatorOf) -> Broker:
    """Read a FindCoordinator response; from version 4 on (KIP-699) it is a list."""
    coordinators = getattr(response, "coordinators", (response,))
    if not coordinators:
        raise BrokerError(ErrorCode.coordinator_not_available, str(target), "the response names no coordinator")
    coordinator = coordinators[0]
    if coordinator.error_code is not ErrorCode.none:
        raise BrokerError(coordinator.error_code, str(target), getattr(coordinator, "error_message", None))
    return Broker(int(coordinator.node_id), coordinator.host, int(coordinator.port))


def _replicas(ids: tuple[int, ...]) -> str:
    return f"its replicas are on {', '.join(map(str, ids)) or 'no broker'}"
