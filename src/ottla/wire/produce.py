"""The Produce request and response, encoded by hand so that batches are sent without being joined or copied.

Comes in: batches by partition, or the body of a response. Goes out: the body of a request, or a `Produced` per
partition. Versions 9 to 11, for brokers since 3.0. The bytes are the same; from 10 on, a response may name the new
leader. Version 13 has the ids of topics in place of their names: a topic that was created again takes nothing that was
meant for the one before it.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.model import TopicPartition
from ottla.wire.primitives import NO_TAGS, ByteReader, compact_length, compact_string

API_KEY = 0
LOWEST_VERSION = 9
HIGHEST_VERSION = 11
BY_ID = 13
"""For callers that know the ids of topics."""

_ACKS_TIMEOUT = struct.Struct(">hi")
_INT32 = struct.Struct(">i")
_PRODUCED = struct.Struct(">ihqqq")


class Leader(NamedTuple):
    """The leader that a broker names if it is not the leader itself (KIP-951)."""

    id: int
    epoch: int


class Produced(NamedTuple):
    """The broker's response for one partition. `append_time` is milliseconds, -1 if the producer's times are kept."""

    topic: str
    partition: int
    error_code: int
    """0 for success; see `ottla.codes`."""
    base_offset: int
    """The offset of the batch's first record; -1 after an error."""
    append_time: int
    log_start_offset: int
    message: str | None
    """The broker's explanation of the error, if any."""
    record_errors: tuple[tuple[int, str | None], ...]
    """Index in the batch and reason, for each record that made the broker reject the batch."""
    leader: Leader | None
    """The new leader, if this broker is not the leader any more."""


def produce_request(
    batches: Mapping[TopicPartition, list[bytes | memoryview]],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
    topic_ids: Mapping[str, uuid.UUID] | None = None,
) -> list[bytes | memoryview]:
    """Build the body of a request, in parts to be sent one after another. With `topic_ids` it is of version `BY_ID`.

    `batches` has the parts of exactly one batch per partition (`NewBatch.parts()`): brokers reject more.
    """
    by_topic: dict[str, list[tuple[int, list[bytes | memoryview]]]] = {}
    for (topic, partition), parts in batches.items():
        by_topic.setdefault(topic, []).append((partition, parts))
    body: list[bytes | memoryview] = []
    # Small fields collect in `small`; batches are appended as they are, between two of its parts.
    small = bytearray(compact_string(transactional_id) + _ACKS_TIMEOUT.pack(acks, timeout_ms))
    small += compact_length(len(by_topic))
    for topic, partitions in by_topic.items():
        small += compact_string(topic) if topic_ids is None else topic_ids[topic].bytes
        small += compact_length(len(partitions))
        for partition, parts in partitions:
            small += _INT32.pack(partition) + compact_length(sum(map(len, parts)))
            body.append(bytes(small))
            body.extend(parts)
            small = bytearray(NO_TAGS)
        small += NO_TAGS
    body.append(bytes(small + NO_TAGS))
    return body


def produce_response(body: memoryview, *, topic_ids: Mapping[str, uuid.UUID] | None = None) -> list[Produced]:
    """Parse the response for each partition. Raises `WireError` if it is malformed.

    With `topic_ids`, those of the request, it is of version `BY_ID`.
    """
    reader = ByteReader(body)
    names = None if topic_ids is None else {topic_id: topic for topic, topic_id in topic_ids.items()}
    topics = reader.compact_array(lambda entry: _topic(entry, names), smallest=3)
    reader.int32()  # throttle time: the broker has already delayed the response, or mutes the connection
    reader.skip_tags()
    reader.finish()
    return [partition for topic in topics for partition in topic]


def _topic(reader: ByteReader, names: Mapping[uuid.UUID, str] | None) -> Iterable[Produced]:
    name = reader.compact_string() or "" if names is None else names.get(reader.uuid(), "")
    partitions = reader.compact_array(lambda entry: _partition(entry, name), smallest=33)
    reader.skip_tags()
    return partitions


def _partition(reader: ByteReader, topic: str) -> Produced:
    partition, error_code, base_offset, append_time, log_start_offset = reader.unpack(_PRODUCED)
    record_errors = tuple(reader.compact_array(_record_error, smallest=6))
    message = reader.compact_string()
    leader = None
    for tag, content in reader.tags():
        if tag == 0:
            leader = Leader(content.int32(), content.int32())
    return Produced(
        topic,
        partition,
        error_code,
        base_offset,
        append_time,
        log_start_offset,
        message,
        record_errors,
        leader,
    )


def _record_error(reader: ByteReader) -> tuple[int, str | None]:
    error = reader.int32(), reader.compact_string()
    reader.skip_tags()
    return error
