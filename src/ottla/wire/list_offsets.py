"""The ListOffsets request and response, encoded by hand: a client may ask for tens of thousands of partitions at once.

Comes in: partitions by topic, or the body of a response. Goes out: the body of a request, or rows. Version 6 is the
first with compact lengths; every broker since 3.0 has version 7.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.model import Isolation
from ottla.wire.primitives import NO_TAGS, ByteReader, compact_length, compact_string

API_KEY = 2
LOWEST_VERSION = 6
_WITH_TIMEOUT = 10
_HEAD = struct.Struct(">ib")
_ASKED = struct.Struct(">iiqB")
"""Partition, leader epoch, timestamp, and no tags."""
_LISTED = struct.Struct(">ihqqi")
_TIMEOUT = struct.Struct(">i")
CONSUMER = -1
ANY_REPLICA = -2
"""Asks the broker for the end of its own log, whether it leads the partition or follows."""


class Listed(NamedTuple):
    """The response for one partition."""

    topic: str
    partition: int
    error_code: int
    timestamp: int
    """In milliseconds since 1970; -1 for none."""
    offset: int
    leader_epoch: int


def list_request(
    topics: Mapping[str, Sequence[tuple[int, int]]],
    *,
    version: int,
    timestamp: int,
    isolation: Isolation,
    timeout_ms: int,
    replica: int = CONSUMER,
) -> bytes:
    """Build the body of a request for partitions, each with its leader epoch (-1: unknown), at one timestamp."""
    body = bytearray(_HEAD.pack(replica, isolation))
    body += compact_length(len(topics))
    for name, partitions in topics.items():
        body += compact_string(name)
        body += compact_length(len(partitions))
        for index, epoch in partitions:
            body += _ASKED.pack(index, epoch, timestamp, 0)
        body += NO_TAGS
    if version >= _WITH_TIMEOUT:
        body += _TIMEOUT.pack(timeout_ms)
    return bytes(body + NO_TAGS)


def list_response(body: memoryview) -> list[Listed]:
    """Return the rows of a response. Raises `WireError` if it is malformed."""
    reader = ByteReader(body)
    reader.int32()  # throttle time
    topics = reader.compact_array(_topic, smallest=3)
    reader.skip_tags()
    reader.finish()
    return [row for rows in topics for row in rows]


def _topic(reader: ByteReader) -> list[Listed]:
    name = reader.compact_string() or ""
    rows = reader.compact_array(lambda entry: _partition(entry, name), smallest=_LISTED.size + 1)
    reader.skip_tags()
    return rows


def _partition(reader: ByteReader, name: str) -> Listed:
    row = Listed(name, *reader.unpack(_LISTED))
    reader.skip_tags()
    return row
