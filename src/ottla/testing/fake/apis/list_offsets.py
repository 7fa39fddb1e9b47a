"""ListOffsets: where a log starts and ends, and the offset for a time.

A lookup by time decodes the one batch that contains the result.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ottla.errors import ErrorCode
from ottla.testing.fake.apis.partitions import by_partition
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
    """Return one offset for each partition; -1 if no record is as new as the requested time."""
    return by_partition(request, partial(_partition, state, context))


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


def find(log: PartitionLog, time: int) -> tuple[int, int]:
    """Return offset and timestamp (ms, -1 for none) for a time in ms or one of Kafka's negative constants."""
    if time == LATEST:
        return log.end, -1
    if time in (EARLIEST, EARLIEST_LOCAL):
        return log.start, -1
    if time == LATEST_TIERED or not log.batches:
        return -1, -1
    if time == MAX_TIMESTAMP:
        newest = max(log.batches, key=lambda stored: stored.header.max_timestamp)
        return max(timestamps(newest.data), key=lambda pair: (pair[1], -pair[0]))
    for stored in log.batches:
        if stored.header.max_timestamp >= time:
            for offset, timestamp in timestamps(stored.data):
                if timestamp >= time and offset >= log.start:
                    return offset, timestamp
    return -1, -1
