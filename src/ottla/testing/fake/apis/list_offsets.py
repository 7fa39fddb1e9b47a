"""ListOffsets: where a log starts and ends, and which offset belongs to a time.

Looking up a time decodes the one batch that holds the answer.
"""

from __future__ import annotations

from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.context import Context
from ottla.testing.fake.log import PartitionLog, Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.records import timestamps
from ottla.testing.fake.state import ClusterState

KEY = 2
VERSIONS = range(1, 12)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5


def handle(request: Any, state: ClusterState, context: Context) -> Tree:
    """One offset for each partition; -1 when no record is as new as the time asked for."""
    return {"topics": [_topic(state, context, item) for item in request.topics]}


def _topic(state: ClusterState, context: Context, item: Any) -> Tree:
    return {
        "name": item.name,
        "partitions": [_partition(state, context, item, part) for part in item.partitions],
    }


def _partition(state: ClusterState, context: Context, item: Any, part: Any) -> Tree:
    try:
        topic = state.topic(item)
        context.check(topic.name, part.partition_index)
        partition = state.led_partition(topic, part.partition_index, broker=context.broker)
        partition.check_epoch(getattr(part, "current_leader_epoch", -1))
    except Refused as refused:
        return {"partition_index": part.partition_index, "error_code": refused.code}
    offset, timestamp = find(partition.log, part.timestamp)
    epoch = partition.leader_epoch if part.timestamp == LATEST else partition.log.epoch_of(offset)
    return {
        "partition_index": part.partition_index,
        "error_code": ErrorCode.none,
        "offset": offset,
        "timestamp": timestamp,
        "leader_epoch": epoch,
    }


def find(log: PartitionLog, wanted: int) -> tuple[int, int]:
    """Offset and timestamp (milliseconds, -1 for none) for a time in milliseconds or one of Kafka's negative marks."""
    if wanted == LATEST:
        return log.end, -1
    if wanted in (EARLIEST, EARLIEST_LOCAL):
        return log.start, -1
    if wanted == LATEST_TIERED or not log.batches:
        return -1, -1
    if wanted == MAX_TIMESTAMP:
        newest = max(log.batches, key=lambda stored: stored.header.max_timestamp)
        return max(timestamps(newest.data), key=lambda pair: (pair[1], -pair[0]))
    for stored in log.batches:
        if stored.header.max_timestamp >= wanted:
            for offset, timestamp in timestamps(stored.data):
                if timestamp >= wanted and offset >= log.start:
                    return offset, timestamp
    return -1, -1
