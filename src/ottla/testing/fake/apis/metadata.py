"""Metadata: live brokers, topics and leaders; creates missing topics if the cluster does that.

A created topic is available at once: clients need not ask again, as they must with a real broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import CLUSTER_ID, NO_LEADER, ClusterState, Partition, Topic

KEY = 3
VERSIONS = range(14)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return all topics for null (in version 0 for an empty list), otherwise the named ones."""
    wants_all = request.topics is None or (context.version == 0 and not request.topics)
    may_create = getattr(request, "allow_auto_topic_creation", True)
    topics = list(state.topics.values()) if wants_all else request.topics
    return {
        "brokers": [broker(state, node) for node in sorted(state.live)],
        "cluster_id": CLUSTER_ID,
        "controller_id": state.controller,
        "topics": [_topic(state, context, item, may_create=may_create) for item in topics],
    }


def broker(state: ClusterState, node: int) -> Mapping[str, Any]:
    """Return a broker's id and address, under the field names that messages use."""
    address = state.addresses[node]
    return {"node_id": node, "broker_id": node, "host": address.host, "port": address.port, "rack": None}


def _topic(state: ClusterState, context: Context, item: Any, *, may_create: bool) -> Tree:
    try:
        topic = _find(state, item, may_create=may_create)
        context.check(topic.name)
    except Refused as refused:
        # Since version 12 the name is nullable, for topics requested by id.
        name = getattr(item, "name", None)
        no_name = None if context.version >= 12 else ""
        topic_id = getattr(item, "topic_id", None) or getattr(item, "id", None)
        return {"error_code": refused.code, "name": name or no_name, "topic_id": topic_id}
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.id,
        "partitions": [_partition(state, index, partition) for index, partition in enumerate(topic.partitions)],
    }


def _find(state: ClusterState, item: Any, *, may_create: bool) -> Topic:
    if isinstance(item, Topic):
        return item
    missing = item.name is not None and item.name not in state.topics
    auto_create = state.auto_create
    if missing and auto_create is not None and (may_create or auto_create.for_all):
        return state.create_topic(item.name, auto_create.partitions, replicas=auto_create.replicas)
    return state.topic(item)


def _partition(state: ClusterState, index: int, partition: Partition) -> Tree:
    offline = [replica for replica in partition.replicas if replica not in state.live]
    error = ErrorCode.leader_not_available if partition.leader == NO_LEADER else ErrorCode.none
    return {
        "error_code": error,
        "partition_index": index,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": [replica for replica in partition.replicas if replica in state.live],
        "offline_replicas": offline,
    }
