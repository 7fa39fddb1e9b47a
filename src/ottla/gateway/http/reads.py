"""The native routes that read: pages of a partition or a topic. A client keeps its place; the gateway keeps nothing.

Parameters come in; a page goes out as JSON, NDJSON or an Arrow stream, with the cursor that continues behind it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from urllib.parse import quote

import pyarrow as pa

from ottla.gateway.http.bodies import ARROW, JSON
from ottla.gateway.http.native import refuse_unknown
from ottla.gateway.http.problems import Problem
from ottla.gateway.http.reading import FORMS, Reading, Wish, accepted, offset_of, time_of
from ottla.gateway.http.request import Answer, Request
from ottla.gateway.http.rest import parse_partition
from ottla.gateway.http.streams import Streams, stream_kind
from ottla.gateway.reading import places, rendering
from ottla.gateway.reading.frames import EVENTS
from ottla.gateway.reading.log_reader import Place, Taken
from ottla.gateway.reading.pages import Page, When
from ottla.gateway.reading.places import Cursor
from ottla.gateway.reading.rendering import Shape
from ottla.gateway.reading.streams import Source
from ottla.model import TopicPartition
from ottla.wire.decode import SCHEMA

SIZES = ("max_bytes", "max_records", "max_wait_ms", "isolation", "values")
_OF_PARTITION = ("offset", "timestamp", "cursor", "stream", *SIZES)
OF_TOPIC = ("from", "until", "cursor", "stream", *SIZES)
_OF_STREAM = ("until", "cursor", "stream", "max_bytes", "max_records", "isolation", "values")
_OF_TOPIC_STREAM = ("from", *_OF_STREAM)
_OF_PARTITION_STREAM = ("offset", "timestamp", *_OF_STREAM)
STREAM_BYTES = 256 << 10
"""Keys and values between two cursors of a stream, unless the client asks for another size."""


class Reads:
    """Handlers of `/v1` that read."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._streams = Streams(reading)

    async def partition(self, request: Request, topic: str, partition: str) -> Answer:
        """`GET /v1/topics/{topic}/partitions/{partition}/records`, a page or a stream."""
        reading, query = self._reading, request.query
        reading.admit(request, topic)
        kind = stream_kind(request)
        if kind:
            return await self._stream_partition(request, kind, TopicPartition(topic, parse_partition(partition)))
        refuse_unknown(query, _OF_PARTITION)
        kind = accepted(request, *FORMS)
        wish = reading.wish(query)
        tp = TopicPartition(topic, parse_partition(partition))
        at = _start(query)
        await reading.directory.require(topic)
        with ExitStack() as held:
            ticket = await reading.hold(wish.size)
            held.callback(ticket.free)
            place = await self._place(tp, at, wish)

            def render(taken: Taken, cursor: Cursor) -> bytes:
                head = {
                    "topic": topic,
                    "partition": tp.partition,
                    "next": cursor.text(),
                    "next_offset": taken.next_offset,
                    "begin_offset": taken.begin_offset,
                    "end_offset": taken.end_offset,
                }
                return body_of(kind, taken.batches, head, wish.shape)

            page = await reading.pages.of_partition(
                place, wish.size, render, isolation=wish.isolation, wait_seconds=wish.wait_seconds
            )
            reading.count(request, topic, page)
            ticket.resize(len(page.body))
            headers = (*_next(page.cursor, request), (b"ottla-next-offset", b"%d" % page.cursor.offsets[tp.partition]))
            answer = Answer(200, page.body, kind.encode(), headers)
            answer.release = held.pop_all().close
            return answer

    async def _place(self, tp: TopicPartition, at: When | int | Cursor, wish: Wish) -> Place:
        if isinstance(at, int):
            return Place(tp, at)
        if not isinstance(at, Cursor):
            at = await self._reading.pages.begin(tp.topic, at, None, isolation=wish.isolation, only=tp.partition)
        offset = at.offsets.get(tp.partition)
        if offset is None:
            raise Problem(400, f"the cursor has no partition {tp.partition}")
        return Place(tp, offset, at.topic_id)

    async def topic(self, request: Request, topic: str) -> Answer:
        """`GET /v1/topics/{topic}/records`, a page of all partitions, or a stream."""
        reading, query = self._reading, request.query
        reading.admit(request, topic)
        kind = stream_kind(request)
        if kind:
            return await self._stream_topic(request, kind, topic)
        refuse_unknown(query, OF_TOPIC)
        kind = accepted(request, *FORMS)
        wish = reading.wish(query)
        asked = bounds_of(query)
        await reading.directory.require(topic)
        with ExitStack() as held:
            ticket = await reading.hold(wish.size)
            held.callback(ticket.free)
            cursor = await begun(reading, topic, asked, wish)

            def render(batches: Sequence[pa.RecordBatch], before: Cursor, after: Cursor) -> bytes:
                head = {"topic": topic, "next": None if after.is_over else after.text()}
                return body_of(kind, batches, head, wish.shape)

            page = await reading.pages.of_topic(
                topic, cursor, wish.size, render, isolation=wish.isolation, wait_seconds=wish.wait_seconds
            )
            reading.count(request, topic, page)
            ticket.resize(len(page.body))
            answer = Answer(200, page.body, kind.encode(), _next(page.cursor, request) + _missing(page))
            answer.release = held.pop_all().close
            return answer

    async def _stream_topic(self, request: Request, kind: str, topic: str) -> Answer:
        reading, query = self._reading, request.query
        refuse_unknown(query, _OF_TOPIC_STREAM)
        wish = reading.wish(query, size_bytes=STREAM_BYTES, is_stream=True)
        asked = bounds_of(query)
        cursor = last_event(request, kind)
        await reading.directory.require(topic)
        if cursor is None:
            cursor = await begun(reading, topic, asked, wish)
        return await self._streams.open(request, kind, Source(topic, None, wish.size, wish.isolation), cursor, wish)

    async def _stream_partition(self, request: Request, kind: str, tp: TopicPartition) -> Answer:
        reading, query = self._reading, request.query
        refuse_unknown(query, _OF_PARTITION_STREAM)
        wish = reading.wish(query, size_bytes=STREAM_BYTES, is_stream=True)
        start, until = _start(query), query.get("until")
        if isinstance(start, Cursor) and until is not None:
            raise Problem(400, "a cursor has its place and its end: leave out until")
        stop = None if until is None else when(until, "until")
        last = last_event(request, kind)
        await reading.directory.require(tp.topic)
        cursor = await self._cursor(tp, start if last is None else last, stop, wish)
        return await self._streams.open(request, kind, Source(*tp, wish.size, wish.isolation), cursor, wish)

    async def _cursor(self, tp: TopicPartition, start: When | int | Cursor, stop: When | None, wish: Wish) -> Cursor:
        """Return the cursor at which a stream of a partition begins, with its end."""
        place = await self._place(tp, start, wish)
        if isinstance(start, Cursor):
            stops = {tp.partition: start.stops[tp.partition]} if tp.partition in start.stops else {}
            return Cursor(place.topic_id, {tp.partition: place.offset}, stops)
        if stop is None:
            return Cursor(place.topic_id, {tp.partition: place.offset}, {})
        end = await self._reading.pages.begin(tp.topic, stop, None, isolation=wish.isolation, only=tp.partition)
        stops = {tp.partition: max(end.offsets[tp.partition], place.offset)}
        return Cursor(end.topic_id, {tp.partition: place.offset}, stops)


Asked = Cursor | tuple[When, When | None]
"""Where a read of a topic is: at a cursor, or at its beginning, with or without an end."""


def bounds_of(query: Mapping[str, str], *, start: str = "earliest") -> Asked:
    """Return where a read of a topic begins and ends. Raises `Problem`."""
    if "cursor" in query:
        if "from" in query or "until" in query:
            raise Problem(400, "a cursor has its place and its end: leave out from and until")
        return cursor_of(query["cursor"])
    stop = query.get("until")
    return when(query.get("from", start), "from"), None if stop is None else when(stop, "until")


async def begun(reading: Reading, topic: str, asked: Asked, wish: Wish) -> Cursor:
    """Return the cursor at which to read."""
    if isinstance(asked, Cursor):
        return asked
    return await reading.pages.begin(topic, asked[0], asked[1], isolation=wish.isolation)


def when(text: str, name: str) -> When:
    """Return earliest, latest or a time. Raises `Problem`."""
    return text if text in ("earliest", "latest") else time_of(text, name)


def last_event(request: Request, kind: str) -> Cursor | None:
    """Return where a client of events was when its connection ended, None for a new one. Raises `Problem`."""
    text = request.header(b"last-event-id")
    return cursor_of(text) if text and kind == EVENTS else None


def cursor_of(text: str) -> Cursor:
    """Return the cursor of a parameter. Raises `Problem`."""
    try:
        return places.parse(text)
    except ValueError as error:
        raise Problem(400, f"the cursor is not one of this gateway: {error}") from error


def body_of(kind: str, batches: Sequence[pa.RecordBatch], head: Mapping[str, object], shape: Shape) -> bytes:
    """Return records as a content type."""
    if kind == JSON:
        return rendering.as_json(batches, head, shape)
    if kind == ARROW:
        return rendering.as_arrow(batches, SCHEMA)
    return rendering.as_lines(batches, shape)


def _start(query: Mapping[str, str]) -> When | int | Cursor:
    """Return where to read a partition. Raises `Problem`."""
    given = [name for name in ("offset", "timestamp", "cursor") if name in query]
    if len(given) > 1:
        raise Problem(400, f"{' and '.join(given)} are given: one of them is enough")
    if "cursor" in query:
        return cursor_of(query["cursor"])
    if "timestamp" in query:
        return time_of(query["timestamp"], "timestamp")
    text = query.get("offset", "earliest")
    if text in ("earliest", "latest"):
        return text
    return offset_of(query) or 0


def _next(cursor: Cursor, request: Request) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers that continue, for bodies that have no place for it."""
    if cursor.is_over:
        return ()
    text = cursor.text()
    url = f"{quote(request.path)}?cursor={text}"
    return ((b"ottla-next", text.encode()), (b"link", f'<{url}>; rel="next"'.encode()))


def _missing(page: Page) -> tuple[tuple[bytes, bytes], ...]:
    if not page.missing:
        return ()
    return ((b"ottla-missing-partitions", ",".join(map(str, page.missing)).encode()),)
