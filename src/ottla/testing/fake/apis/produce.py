"""Produce: checks a batch as a broker does, then appends it.

It checks the number of batches, format, size, checksum, header and sequence. It stores the records unread, so unlike a
real broker it accepts invalid records with a valid checksum.
"""

from __future__ import annotations

from typing import Any

from ottla.errors import CorruptBatch, ErrorCode
from ottla.testing.fake.apis.metadata import broker
from ottla.testing.fake.context import Context, Hangup
from ottla.testing.fake.log import Refused
from ottla.testing.fake.messages import Tree
from ottla.testing.fake.state import ClusterState, Topic
from ottla.wire.batch import MAGIC_AT, Batch

KEY = 0
VERSIONS = range(3, 14)


def handle(request: Any, state: ClusterState, context: Context) -> Tree | None:
    """Return a response for each partition; none with acks=0, where an error closes the connection."""
    responses = [_topic(state, context, item, acks=request.acks) for item in request.topic_data]
    parts = [part for response in responses for part in response["partition_responses"]]
    if request.acks == 0:
        if any(part["error_code"] for part in parts):
            raise Hangup
        return None
    leaders = {part["current_leader"]["leader_id"] for part in parts if "current_leader" in part}
    endpoints = [broker(state, node) for node in sorted(leaders & state.live)]
    return {"responses": responses, "node_endpoints": endpoints}


def _topic(state: ClusterState, context: Context, item: Any, *, acks: int) -> Tree:
    parts = [_partition(state, context, item, part, acks=acks) for part in item.partition_data]
    name, topic_id = getattr(item, "name", None), getattr(item, "topic_id", None)
    return {"name": name, "topic_id": topic_id, "partition_responses": parts}


def _partition(state: ClusterState, context: Context, item: Any, part: Any, *, acks: int) -> Tree:
    topic = None
    try:
        if acks not in (-1, 0, 1):
            raise Refused(ErrorCode.invalid_required_acks, f"acks={acks}")
        topic = state.topic(item)
        context.check(topic.name, part.index)
        partition = state.led_partition(topic, part.index, broker=context.broker)
        batch = _checked_batch(state, topic, part.records or b"")
        state.check_fencing(batch.header.producer_id, batch.header.producer_epoch)
        offset = partition.log.append(batch, leader_epoch=partition.leader_epoch)
    except Refused as refused:
        response = {
            "index": part.index,
            "error_code": refused.code,
            "base_offset": -1,
            "error_message": refused.message,
        }
        return response | current_leader(state, topic, part.index, refused.code)
    return {
        "index": part.index,
        "error_code": ErrorCode.none,
        "base_offset": offset,
        "log_start_offset": partition.log.start,
    }


def current_leader(state: ClusterState, topic: Topic | None, index: int, code: ErrorCode) -> dict[str, Any]:
    """Return the current leader for errors that send a client there (KIP-951)."""
    stale_leader_codes = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
    if topic is None or code not in stale_leader_codes or index >= len(topic.partitions):
        return {}
    partition = topic.partitions[index]
    return {"current_leader": {"leader_id": partition.leader, "leader_epoch": partition.leader_epoch}}


def _checked_batch(state: ClusterState, topic: Topic, records: bytes) -> Batch:
    batch = _only_batch(records)
    header = batch.header
    limit = int(topic.configs.get("max.message.bytes", state.max_message_bytes))
    if header.base_offset != 0:
        raise Refused(ErrorCode.invalid_record, f"the base offset should be 0, but it is {header.base_offset}")
    if len(batch.data) > limit:
        raise Refused(ErrorCode.message_too_large, f"the batch has {len(batch.data)} bytes, the limit is {limit}")
    try:
        batch.verify()
    except CorruptBatch as exc:
        raise Refused(ErrorCode.corrupt_message, str(exc)) from exc
    if header.is_control or header.count != header.last_offset_delta + 1:
        raise Refused(ErrorCode.invalid_record, f"control batch, or count {header.count} differs from the offsets")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise Refused(ErrorCode.invalid_record, f"producer {header.producer_id} without a sequence")
    return batch


def _only_batch(records: bytes) -> Batch:
    if len(records) > MAGIC_AT and records[MAGIC_AT] != 2:
        raise Refused(ErrorCode.invalid_record, f"message format {records[MAGIC_AT]}; only format 2 is accepted")
    try:
        batch = Batch.parse(records)
    except CorruptBatch as exc:
        raise Refused(ErrorCode.corrupt_message, str(exc)) from exc
    if len(batch.data) != len(records):
        raise Refused(ErrorCode.invalid_record, "exactly one record batch per partition is accepted")
    return batch
