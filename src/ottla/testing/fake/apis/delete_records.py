"""DeleteRecords: moves the start of a log, which is how a test gets offsets that are out of range."""

from __future__ import annotations

from functools import partial
from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.apis.partitions import by_partition
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState

KEY = 21
VERSIONS = range(3)


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """Return the new start of each partition."""
    return by_partition(request, partial(_partition, state, context))


def _partition(state: ClusterState, context: Context, item: Any, part: Any) -> Tree:
    try:
        topic = state.topic(item)
        context.check(topic.name, part.partition_index)
        partition = state.led_partition(topic, part.partition_index, broker=context.broker)
        start = partition.log.delete_before(part.offset)
    except Refused as refused:
        return {"partition_index": part.partition_index, "low_watermark": -1, "error_code": refused.code}
    return {"partition_index": part.partition_index, "low_watermark": start, "error_code": ErrorCode.none}
