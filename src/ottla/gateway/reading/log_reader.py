"""Reads a stretch of one partition: one request to its leader, decoded, cut to size. Blocks: for threads of readers.

A place, limits and a deadline come in; Arrow batches and the next offset go out. There is at least one record if the
log has any at or after the place, however large. An offset that the log does not have is a `Problem` that says what it
has instead; nothing is skipped silently. It keeps no position and knows no client.
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.errors import BrokerError, CorruptBatch, ErrorCode, OttlaError
from ottla.fetch import losses
from ottla.fetch.cursor import END_OF_LOG, Cursor, OutOfRange, Piece, ResponseMemory
from ottla.fetch.log_extent import find_extent
from ottla.fetch.options import OnLost
from ottla.gateway.http.problems import deleted, past_end, replaced, unknown_partition, unknown_topic
from ottla.model import Isolation, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.metadata import Topic
from ottla.net.targets import LeaderOf
from ottla.wire import fetch
from ottla.wire.decode import Decoder
from ottla.wire.scan import scan

_SCANNED_BYTES = 1 << 12
"""From this size on one kernel call is cheaper than walking the batches."""
_CHUNK_BYTES = 1 << 20
_LEAST_BYTES = 1 << 10
_REPLACED_SECONDS = 1.0
"""How long another id must be seen: brokers learn of a new topic one after another."""
_NAP = 0.05
_IDENTITY = frozenset(
    {ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id, ErrorCode.unknown_topic_or_partition}
)
_numbers = itertools.count(1)


class Place(NamedTuple):
    """Where to read."""

    partition: TopicPartition
    offset: int
    topic_id: UUID | None = None
    """The topic that the offset belongs to; None for the one that has the name now."""
    stop: int = END_OF_LOG


class Size(NamedTuple):
    """How much to read at most; one record is always read."""

    bytes: int
    rows: int


@dataclass(slots=True)
class Taken:
    """What was read."""

    partition: TopicPartition
    topic_id: UUID | None
    next_offset: int
    begin_offset: int = 0
    """Where the log begins."""
    end_offset: int = 0
    """Where what can be read ends now."""
    rows: int = 0
    size_bytes: int = 0
    batches: list[pa.RecordBatch] = field(default_factory=list)


class LogReader:
    """Reads with one cluster client. Threads may share it: each has a connection to each broker."""

    def __init__(self, cluster: Cluster, *, max_batch_bytes: int) -> None:
        self.cluster = cluster
        self._max_batch_bytes = max_batch_bytes
        self._local = threading.local()

    def topic(self, name: str, *, topic_id: UUID | None, deadline: Deadline) -> Topic:
        """Return a topic as the brokers have it now. Raises `Problem` if there is none, or one with another id."""
        since = time.monotonic()
        while True:
            topic = self.cluster.metadata([name], deadline=deadline).topics.get(name)
            if topic is not None and topic.error is ErrorCode.none:
                if topic_id is None or topic.id is None or topic.id == topic_id:
                    return topic
                if time.monotonic() - since >= _REPLACED_SECONDS:
                    raise replaced(name)
            elif topic is not None and topic.error is ErrorCode.topic_authorization_failed:
                raise BrokerError(topic.error, f"reading topic {name}")
            elif time.monotonic() - since >= _REPLACED_SECONDS:
                raise unknown_topic(name)
            time.sleep(_NAP)

    def take(self, place: Place, size: Size, *, isolation: Isolation, deadline: Deadline) -> Taken:
        """Read once, again until there is a record or the end of the log. Raises `Problem` and `OttlaError`."""
        tp = place.partition
        cursor = Cursor(tp, place.offset, place.stop, topic_id=place.topic_id)
        taken = Taken(tp, place.topic_id, place.offset)
        attempts = self.cluster.attempts(f"reading {tp}", deadline)
        while True:
            try:
                is_over = self._step(cursor, place, taken, size, isolation=isolation, deadline=deadline)
            except CorruptBatch:
                if taken.rows:
                    return taken  # what comes before it is sound; the next read reports it
                raise
            except OttlaError as error:
                self._examine(error, place, deadline)
                attempts.failed(error)
                continue
            if is_over or taken.rows or deadline.expired():
                return taken

    def _step(
        self,
        cursor: Cursor,
        place: Place,
        taken: Taken,
        size: Size,
        *,
        isolation: Isolation,
        deadline: Deadline,
    ) -> bool:
        """Send one request and add what comes. Returns whether nothing more can be read now."""
        tp = cursor.tp
        if cursor.is_over:
            return True
        known = self._partition_of(tp, deadline)
        if cursor.topic_id is None or place.topic_id is None:
            cursor.topic_id = known.id
        elif known.id != place.topic_id:
            # Fetch goes by id, and rules by name: the id of a client's cursor must not lead to another topic.
            self.cluster.forget([tp.topic])
            self.topic(tp.topic, topic_id=place.topic_id, deadline=deadline)
        taken.topic_id = cursor.topic_id
        fetched, body = self._fetch(cursor, size, isolation, deadline)
        scanned = scan(body, [fetched.span])[0] if len(body) >= _SCANNED_BYTES and len(fetched.records) else None
        committed_only = isolation is Isolation.READ_COMMITTED
        item = cursor.take(fetched, ResponseMemory(0), time.monotonic(), committed_only=committed_only, scanned=scanned)
        if isinstance(item, OutOfRange):
            self._check_extent(cursor)
            time.sleep(min(_NAP, deadline.remaining()))  # the log has it by now: another leader, or a new record
            return deadline.expired()
        if isinstance(item, BrokerError | CorruptBatch):
            raise item
        end = fetched.last_stable_offset if committed_only else fetched.high_watermark
        taken.begin_offset, taken.end_offset = max(0, fetched.log_start_offset), max(end, 0)
        if not isinstance(item, Piece):
            return True
        self._decode(item, taken, size)
        if not taken.rows:
            taken.next_offset = min(item.next_offset, item.stop)
        return taken.next_offset >= min(end, place.stop)

    def _partition_of(self, tp: TopicPartition, deadline: Deadline) -> Topic:
        """Return the topic, from memory unless it has no such partition there."""
        topic = self.cluster.topic(tp.topic, deadline=deadline)
        if topic.partition(tp.partition) is None:
            topic = self.topic(tp.topic, topic_id=None, deadline=deadline)
            if topic.partition(tp.partition) is None:
                raise unknown_partition(*tp)
        return topic

    def _fetch(
        self, cursor: Cursor, size: Size, isolation: Isolation, deadline: Deadline
    ) -> tuple[fetch.Fetched, memoryview]:
        broker = self.cluster.leader(*cursor.tp, deadline=deadline)
        connection = self.cluster.connection(broker, channel=self._channel(), deadline=deadline)
        version = connection.version(fetch.API_KEY, highest=fetch.HIGHEST_VERSION)
        if cursor.topic_id is None:
            version = fetch.LOWEST_VERSION
        most = max(size.bytes, _LEAST_BYTES)
        request = fetch.fetch_request(
            [cursor.fetch_partition(most)],
            version=version,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=most,
            isolation=isolation,
        )
        limit = deadline.sooner(self.cluster.timeouts.request)
        body = connection.submit(fetch.API_KEY, version, request, deadline=limit).result()
        answer = fetch.fetch_response(body, version=version)
        what = f"reading {cursor.tp} at offset {cursor.position}"
        if answer.error_code:
            raise BrokerError(answer.error_code, what)
        if not answer.partitions:
            raise BrokerError(ErrorCode.unknown_server_error, what, "not in the response")
        return answer.partitions[0], body

    def _decode(self, piece: Piece, taken: Taken, size: Size) -> None:
        decoder = self._decoder()
        tp = piece.cursor.tp
        for decoded in decoder.decode(
            piece.batches, topic=tp.topic, partition=tp.partition, start=piece.start, stop=piece.stop
        ):
            records = decoded.records
            ends = np.cumsum(row_bytes(records)) + taken.size_bytes
            kept = min(int(np.searchsorted(ends, size.bytes, "right")), size.rows - taken.rows)
            kept = max(kept, 0 if taken.rows else 1)
            if kept:
                taken.batches.append(records.slice(0, kept))
                taken.rows += kept
                taken.size_bytes = int(ends[kept - 1])
            if kept < len(records):
                if kept:
                    taken.next_offset = records.column("offset")[kept - 1].as_py() + 1
                return
            taken.next_offset = decoded.next_offset
        taken.next_offset = max(taken.next_offset, min(piece.next_offset, piece.stop))

    def _check_extent(self, cursor: Cursor) -> None:
        """Raise the `Problem` of an offset that the log does not have."""
        extent = find_extent(self.cluster, cursor.tp, isolation=Isolation.READ_UNCOMMITTED)
        loss = losses.outside(Cursor(cursor.tp, cursor.position), extent, OnLost.ERROR)
        if loss is not None:
            make = deleted if cursor.position < extent.first else past_end
            raise make(str(cursor.tp), cursor.position, begin=extent.first, end=extent.last)

    def _examine(self, error: OttlaError, place: Place, deadline: Deadline) -> None:
        """Find out what an error means for the place, and which leader to doubt. Raises `Problem`."""
        if isinstance(error, BrokerError) and error.code in _IDENTITY:
            self.cluster.forget([place.partition.topic])
            topic = self.topic(place.partition.topic, topic_id=place.topic_id, deadline=deadline)
            if topic.partition(place.partition.partition) is None:
                raise unknown_partition(*place.partition)
        if not isinstance(error, BrokerError) or error.row.refresh:
            self.cluster.doubt(LeaderOf(*place.partition))

    def _channel(self) -> str:
        channel: str | None = getattr(self._local, "channel", None)
        if channel is None:
            channel = self._local.channel = f"gateway-read-{next(_numbers)}"
        return channel

    def _decoder(self) -> Decoder:
        decoder: Decoder | None = getattr(self._local, "decoder", None)
        if decoder is None:
            decoder = Decoder(max_batch_bytes=self._max_batch_bytes, chunk_bytes=_CHUNK_BYTES)
            self._local.decoder = decoder
        return decoder


def row_bytes(records: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return about what each record takes: key, value, and an even share of the headers."""
    sizes = np.full(len(records), records.column("headers").nbytes // max(1, len(records)), np.int64)
    for name in ("key", "value"):
        column = records.column(name)
        if column.null_count < len(column):
            sizes += pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    return sizes
