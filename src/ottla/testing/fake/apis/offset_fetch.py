"""OffsetFetch: returns what a group committed, for some partitions or all; several groups since version 8."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.testing.fake.context import Context
from ottla.testing.fake.groups import Committed, Group
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState, Topic

KEY = 9
VERSIONS = range(1, 11)

_NOTHING = Committed(-1, -1, "")


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return the committed offsets, -1 where nothing is committed."""
    groups = getattr(request, "groups", None)
    if groups is None:
        return _group(state, context, request)
    return {"groups": [_group(state, context, item) for item in groups]}


def _group(state: ClusterState, context: Context, request: Any) -> Tree:
    try:
        context.check()
        group = state.group(request.group_id, broker=context.broker)
    except Refused as refused:
        # Version 1 has no error code besides those of the partitions.
        topics = [_refused(item, refused.code) for item in request.topics or ()]
        return {"group_id": request.group_id, "error_code": refused.code, "topics": topics}
    if request.topics is None:
        topics = [_all_partitions(state, context, group, name) for name in sorted({tp.topic for tp in group.offsets})]
    else:
        topics = [_topic(state, context, group, item) for item in request.topics]
    return {"group_id": request.group_id, "error_code": ErrorCode.none, "topics": topics}


def _all_partitions(state: ClusterState, context: Context, group: Group, name: str) -> Tree:
    indexes = sorted(tp.partition for tp in group.offsets if tp.topic == name)
    return _tree(context, group, state.topic_named(name), indexes)


def _topic(state: ClusterState, context: Context, group: Group, item: Any) -> Tree:
    try:
        return _tree(context, group, state.topic(item), item.partition_indexes)
    except Refused as refused:
        # By name, an unknown topic just has no offsets; by id it is an error.
        by_id = getattr(item, "topic_id", None) is not None
        return _refused(item, refused.code if by_id else ErrorCode.none)


def _tree(context: Context, group: Group, topic: Topic, indexes: Any) -> Tree:
    parts = [_committed(context, group, TopicPartition(topic.name, index)) for index in indexes]
    return {"name": topic.name, "topic_id": topic.id, "partitions": parts}


def _committed(context: Context, group: Group, tp: TopicPartition) -> Tree:
    try:
        context.check(tp.topic, tp.partition)
    except Refused as refused:
        return _partition(tp.partition, _NOTHING, refused.code)
    return _partition(tp.partition, group.offsets.get(tp, _NOTHING), ErrorCode.none)


def _refused(item: Any, code: ErrorCode) -> Tree:
    parts = [_partition(index, _NOTHING, code) for index in item.partition_indexes]
    return {
        "name": getattr(item, "name", None),
        "topic_id": getattr(item, "topic_id", None),
        "partitions": parts,
    }


def _partition(index: int, committed: Committed, code: ErrorCode) -> Tree:
    return {
        "partition_index": index,
        "committed_offset": committed.offset,
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata,
        "error_code": code,
    }
