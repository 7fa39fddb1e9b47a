"""OffsetForLeaderEpoch: where an epoch ended, by which a consumer finds out that its log was cut (KIP-320)."""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 23
VERSIONS = range(2, 5)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """One epoch and offset for each partition."""
    return {"topics": [_topic(state, context, item) for item in request.topics]}


def _topic(state: ClusterState, context: Context, item: Any) -> Tree:
    return {
        "topic": item.topic,
        "partitions": [_partition(state, context, item, part) for part in item.partitions],
    }


def _partition(state: ClusterState, context: Context, item: Any, part: Any) -> Tree:
    try:
        topic = state.topic(item)
        context.check(topic.name, part.partition)
        partition = state.led_partition(topic, part.partition, broker=context.broker)
        partition.check_epoch(part.current_leader_epoch)
    except Refused as refused:
        return {"error_code": refused.code, "partition": part.partition}
    epoch, end = partition.epoch_end(part.leader_epoch)
    return {
        "error_code": ErrorCode.none,
        "partition": part.partition,
        "leader_epoch": epoch,
        "end_offset": end,
    }
