"""The Fetch request and response, encoded by hand: record batches come out as views of the response, not decoded.

Comes in: what to fetch, or the body of a response. Goes out: the body of a request, or a `FetchAnswer`. Version 12
names topics (every broker since 3.0). Version 13 uses topic ids, which reveal that a topic was deleted and created
again. `fetch/session.py` explains sessions.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.errors import InputError
from ottla.model import Isolation
from ottla.wire.primitives import NO_TAGS, ByteReader, compact_length, compact_string
from ottla.wire.produce import Leader

API_KEY = 1
LOWEST_VERSION = 12
HIGHEST_VERSION = 13
BY_ID = 13
"""From this version on topics have ids instead of names."""

_HEAD = struct.Struct(">iiiibii")
_PARTITION = struct.Struct(">iiqiqi")
_FETCHED = struct.Struct(">ihqqq")
_CONSUMER = -1
NO_SESSION = (0, -1)
"""Tells the broker not to keep a session."""
_UNKNOWN = -1


class FetchPartition(NamedTuple):
    """What to fetch from one partition. `leader_epoch` is the leader epoch the reader knows, -1 for unknown.

    `last_epoch` is the leader epoch of the record before `offset`, -1 for unknown. If the log has other records there
    by now, the response says where it diverges (KIP-595).
    """

    topic: str
    partition: int
    offset: int
    max_bytes: int
    """The broker returns at least one whole batch, even if that is larger."""
    leader_epoch: int = _UNKNOWN
    topic_id: uuid.UUID | None = None
    last_epoch: int = _UNKNOWN


class Forgotten(NamedTuple):
    """A partition to remove from a session."""

    topic: str
    partition: int
    topic_id: uuid.UUID | None = None


class Diverging(NamedTuple):
    """The log diverged from what was read: the records of `epoch` end at `end_offset`."""

    epoch: int
    end_offset: int


class Aborted(NamedTuple):
    """An aborted transaction, whose data begins at `first_offset`."""

    producer_id: int
    first_offset: int


class Fetched(NamedTuple):
    """The broker's response for one partition. `records` may end with a partial batch."""

    topic: str | uuid.UUID
    """The topic's name, or its id if the request was by id."""
    partition: int
    error_code: int
    high_watermark: int
    """The end of what consumers may read without transactions."""
    last_stable_offset: int
    """The end of what readers of committed data may read: the first open transaction."""
    log_start_offset: int
    aborted: tuple[Aborted, ...]
    """The aborted transactions in these records, for readers of committed data."""
    preferred_replica: int
    """The replica to fetch from instead (KIP-392); -1 for none."""
    records: memoryview
    leader: Leader | None
    """The new leader, if this broker is not the leader any more (KIP-951)."""
    diverging: Diverging | None = None
    records_end: int = 0
    """Where the records end in the response."""

    @property
    def span(self) -> tuple[int, int]:
        """Where the records lie in the response."""
        return self.records_end - len(self.records), self.records_end


class FetchAnswer(NamedTuple):
    """A whole response. `error_code` applies to the request as a whole."""

    error_code: int
    partitions: list[Fetched]
    session_id: int = 0
    """The id of the broker's session, for the next request; 0 if it keeps none."""


def fetch_request(
    partitions: Sequence[FetchPartition],
    *,
    version: int,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    rack: str = "",
    session: tuple[int, int] = NO_SESSION,
    forgotten: Iterable[Forgotten] = (),
) -> list[bytes | memoryview]:
    """Build the body of a request. `session` is an id and an epoch. Raises `InputError` if a topic id is missing."""
    by_topic: dict[bytes, list[FetchPartition]] = {}
    for entry in partitions:
        by_topic.setdefault(_identity(entry, version), []).append(entry)
    body = bytearray(_HEAD.pack(_CONSUMER, max_wait_ms, min_bytes, max_bytes, isolation, *session))
    body += compact_length(len(by_topic))
    for identity, entries in by_topic.items():
        body += identity + compact_length(len(entries))
        for entry in entries:
            body += _PARTITION.pack(
                entry.partition, entry.leader_epoch, entry.offset, entry.last_epoch, _UNKNOWN, entry.max_bytes
            )
            body += NO_TAGS
        body += NO_TAGS
    dropped: dict[bytes, list[int]] = {}
    for removed in forgotten:
        dropped.setdefault(_identity(removed, version), []).append(removed.partition)
    body += compact_length(len(dropped))
    for identity, numbers in dropped.items():
        body += identity + compact_length(len(numbers)) + struct.pack(f">{len(numbers)}i", *numbers) + NO_TAGS
    body += compact_string(rack) + NO_TAGS
    return [bytes(body)]


def _identity(entry: FetchPartition | Forgotten, version: int) -> bytes:
    if version < BY_ID:
        return compact_string(entry.topic)
    if entry.topic_id is None:
        raise InputError(f"Fetch version {version} needs the id of topic {entry.topic}")
    return entry.topic_id.bytes


def fetch_response(body: memoryview, *, version: int) -> FetchAnswer:
    """Parse what the broker has for each partition. Records are views of `body`. Raises `WireError` if malformed."""
    reader = ByteReader(body)
    reader.int32()  # throttle time
    error_code = reader.int16()
    session_id = reader.int32()
    topics = reader.compact_array(lambda entry: _topic(entry, version), smallest=3)
    reader.skip_tags()
    reader.finish()
    return FetchAnswer(error_code, [partition for topic in topics for partition in topic], session_id)


def _topic(reader: ByteReader, version: int) -> list[Fetched]:
    topic = reader.uuid() if version >= BY_ID else reader.compact_string() or ""
    partitions = reader.compact_array(lambda entry: _partition(entry, topic), smallest=37)
    reader.skip_tags()
    return partitions


def _partition(reader: ByteReader, topic: str | uuid.UUID) -> Fetched:
    partition, error_code, high_watermark, last_stable, log_start = reader.unpack(_FETCHED)
    aborted = tuple(reader.compact_array(_aborted, smallest=17))
    preferred_replica = reader.int32()
    records = reader.compact_bytes()
    records_end = reader.position
    leader = diverging = None
    for tag, content in reader.tags():
        if tag == 0:
            diverging = Diverging(content.int32(), content.int64())
        elif tag == 1:
            leader = Leader(content.int32(), content.int32())
    return Fetched(
        topic,
        partition,
        error_code,
        high_watermark,
        last_stable,
        log_start,
        aborted,
        preferred_replica,
        memoryview(b"") if records is None else records,
        leader,
        diverging,
        records_end,
    )


def _aborted(reader: ByteReader) -> Aborted:
    entry = Aborted(reader.int64(), reader.int64())
    reader.skip_tags()
    return entry
