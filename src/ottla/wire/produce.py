"""The Produce request and response, encoded by hand so that batches are sent without being joined or copied.

Comes in: batches by partition, or the body of a response. Goes out: the body of a request, or a `Produced` per
partition. Versions 9 to 11, for brokers since 3.0. The bytes are the same; from 10 on, a response may name the new
leader.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.model import TopicPartition
from ottla.wire.primitives import NO_TAGS, ByteReader, compact_length, compact_string

API_KEY = 0
LOWEST_VERSION = 9
HIGHEST_VERSION = 11

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
) -> list[bytes | memoryview]:
    """Build the body of a request, in parts to be sent one after another.

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
        small += compact_string(topic) + compact_length(len(partitions))
        for partition, parts in partitions:
            small += _INT32.pack(partition) + compact_length(sum(map(len, parts)))
            body.append(bytes(small))
            body.extend(parts)
            small = bytearray(NO_TAGS)
        small += NO_TAGS
    body.append(bytes(small + NO_TAGS))
    return body


def produce_response(body: memoryview) -> list[Produced]:
    """Parse the response for each partition. Raises `WireError` if it is malformed."""
    reader = ByteReader(body)
    topics = reader.compact_array(_topic, smallest=3)
    reader.int32()  # throttle time: the broker has already delayed the response, or mutes the connection
    reader.skip_tags()
    reader.finish()
    return [partition for topic in topics for partition in topic]


def _topic(reader: ByteReader) -> Iterable[Produced]:
    name = reader.compact_string() or ""
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
