"""Metadata: live brokers, topics, leaders; creates topics that are asked for if the cluster does that.

A created topic is there at once: clients need not ask again as they do with a real broker.
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
    """All topics for null (version 0: for an empty list), else those that are named."""
    everything = request.topics is None or (context.version == 0 and not request.topics)
    create = getattr(request, "allow_auto_topic_creation", True)
    wanted = list(state.topics.values()) if everything else request.topics
    return {
        "brokers": [broker(state, node) for node in sorted(state.live)],
        "cluster_id": CLUSTER_ID,
        "controller_id": state.controller,
        "topics": [_topic(state, context, item, may_create=create) for item in wanted],
    }


def broker(state: ClusterState, node: int) -> Mapping[str, Any]:
    """One broker's id and address, under the names that the messages use."""
    address = state.addresses[node]
    return {"node_id": node, "broker_id": node, "host": address.host, "port": address.port, "rack": None}


def _topic(state: ClusterState, context: Context, item: Any, *, may_create: bool) -> Tree:
    try:
        topic = _find(state, item, may_create=may_create)
        context.check(topic.name)
    except Refused as refused:
        # Version 12 made the name nullable, for topics that were asked for by id.
        name = getattr(item, "name", None)
        nameless = None if context.version >= 12 else ""
        topic_id = getattr(item, "topic_id", None) or getattr(item, "id", None)
        return {"error_code": refused.code, "name": name or nameless, "topic_id": topic_id}
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
    wanted = state.auto_create
    if missing and wanted is not None and (may_create or wanted.for_all):
        return state.create_topic(item.name, wanted.partitions, replicas=wanted.replicas)
    return state.topic(item)


def _partition(state: ClusterState, index: int, partition: Partition) -> Tree:
    away = [replica for replica in partition.replicas if replica not in state.live]
    error = ErrorCode.leader_not_available if partition.leader == NO_LEADER else ErrorCode.none
    return {
        "error_code": error,
        "partition_index": index,
        "leader_id": partition.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": [replica for replica in partition.replicas if replica in state.live],
        "offline_replicas": away,
    }
