"""OffsetCommit: stores a group's offsets, from its members, or from any client if it has none."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.testing.fake.context import Context
from ottla.testing.fake.groups import Committed
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 8
VERSIONS = range(2, 11)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return one result for each partition; an error of the group is repeated in each of them."""
    return {"topics": [_topic(state, context, request, item) for item in request.topics]}


def _topic(state: ClusterState, context: Context, request: Any, item: Any) -> Tree:
    parts = [
        {"partition_index": part.partition_index, "error_code": _commit(state, context, request, item, part)}
        for part in item.partitions
    ]
    return {
        "name": getattr(item, "name", None),
        "topic_id": getattr(item, "topic_id", None),
        "partitions": parts,
    }


def _commit(state: ClusterState, context: Context, request: Any, item: Any, part: Any) -> ErrorCode:
    now = context.now()
    try:
        topic = state.topic(item)
        context.check(topic.name, part.partition_index)
        group = state.group(request.group_id, broker=context.broker)
        group.tick(now)
        group.check_commit(request.member_id, request.generation_id_or_member_epoch, now)
        state.partition(topic, part.partition_index)
    except Refused as refused:
        return refused.code
    epoch = getattr(part, "committed_leader_epoch", -1)
    tp = TopicPartition(topic.name, part.partition_index)
    group.offsets[tp] = Committed(part.committed_offset, epoch, part.committed_metadata)
    return ErrorCode.none
