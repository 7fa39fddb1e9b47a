"""OffsetForLeaderEpoch: where an epoch ended, by which a consumer detects that its log was truncated (KIP-320)."""

from __future__ import annotations

from functools import partial
from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.apis.partitions import by_partition
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 23
VERSIONS = range(2, 5)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return an epoch and its end offset for each partition."""
    return by_partition(request, partial(_partition, state, context), name_field="topic")


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
