"""Streams of records to clients of HTTP: server-sent events, or lines of JSON, until one side ends them.

A cursor comes in; the answer that goes out never ends by itself, unless the read is bounded. A client that takes
nothing holds one page and is dropped by the guard; one that reads more than its rate waits. What goes wrong once the
head has been sent is the last thing in the stream. Handlers choose the cursor, `reading.streams` reads.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import ExitStack
from functools import partial

from ottla.gateway.http.app import failure
from ottla.gateway.http.bodies import NDJSON
from ottla.gateway.http.problems import Problem, check_share, unavailable
from ottla.gateway.http.reading import FORMS, Reading, Wish, accepted
from ottla.gateway.http.request import Answer, Request, Send
from ottla.gateway.reading.frames import EVENTS, Events, Frames, Lines
from ottla.gateway.reading.places import Cursor
from ottla.gateway.reading.streams import STOP, Follower, Part, Source, Stopped

_PIECE_BYTES = 64 << 10
_LAST_SECONDS = 1.0
"""How long a client has at a stop to take what is being sent to it."""
_GONE = "client"
_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would collect the answer first
)


def stream_kind(request: Request) -> str:
    """Return the content type of the stream that a client wants; empty if it wants a page. Raises `Problem`."""
    wanted = request.query.get("stream")
    if wanted not in (None, "true", "false"):
        raise Problem(400, f"stream is {wanted[:50]!r}; accepted are true and false")
    if wanted == "true":
        kind = accepted(request, *NDJSON, EVENTS)
    elif wanted is None:
        kind = accepted(request, *FORMS, EVENTS)
    else:
        kind = ""
    if kind != EVENTS and wanted != "true":
        return ""
    if request.scope.get("http_version") == "1.0":
        raise Problem(505, "a stream needs HTTP/1.1; for nginx, set proxy_http_version 1.1")
    return kind


class Streams:
    """All streams of a gateway. For one event loop."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    async def open(self, request: Request, kind: str, source: Source, cursor: Cursor, wish: Wish) -> Answer:
        """Return the answer of a stream behind a cursor. Its first read is done: what fails now has a status."""
        reading = self._reading
        if cursor.is_over and request.header(b"last-event-id"):
            return Answer(204)  # a client of events would connect again and again
        frames: Frames = Events(wish.shape) if kind == EVENTS else Lines(wish.shape)
        with ExitStack() as held:
            end = self._begin(request, held)
            follower = Follower(reading.pages, source, cursor, frames=frames, hold=reading.hold, end=end)
            try:
                part = await follower.read()
            except Stopped:
                raise _stopping() from None
            if part is not None:
                held.callback(part.ticket.free)
            start = Cursor(follower.cursor.topic_id, cursor.offsets, cursor.stops)
            answer = _Stream(self._reading, request, kind, frames.begin(start), (follower, frames, part))
            answer.release = held.pop_all().close
            return answer

    def _begin(self, request: Request, held: ExitStack) -> asyncio.Future[str]:
        """Count a stream, and return what is done when it is to end. Raises `Problem` if there are too many."""
        reading = self._reading
        if reading.is_stopping:
            raise _stopping()
        if len(reading.ends) >= reading.limits.streams:
            raise unavailable(f"{reading.limits.streams} streams are open", limit="streams")
        check_share(reading.ends.values(), request.identity, reading.limits.streams, "streams")
        end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        lost = partial(_finish, end)
        reading.ends[end] = request.identity
        request.connection.on_lost.add(lost)
        held.callback(reading.ends.pop, end, None)
        held.callback(request.connection.on_lost.discard, lost)
        return end


class _Stream(Answer):
    """An answer that goes on."""

    __slots__ = ("_end", "_follower", "_frames", "_part", "_reading", "_request")

    def __init__(
        self,
        reading: Reading,
        request: Request,
        kind: str,
        begin: bytes,
        parts: tuple[Follower, Frames, Part | None],
    ) -> None:
        super().__init__(200, begin, f"{kind}; charset=utf-8".encode() if kind == EVENTS else kind.encode(), _HEADERS)
        self._reading = reading
        self._request = request
        self._follower, self._frames, self._part = parts
        self._end = self._follower.end

    async def _send(self, send: Send) -> None:
        headers = [(b"content-type", self.content_type), *self.headers]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._write(send, self.body)
        try:
            why = await self._follow(send)
        except Exception as error:
            problem = error if isinstance(error, Problem) else failure(error, "a stream")
            if problem.limit:
                self._reading.counters.hit(problem.limit)
            await self._write(send, self._frames.failed(problem))
            why = "error"
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        self._reading.counters.ended(why)

    async def _follow(self, send: Send) -> str:
        """Send records until the stream ends. Returns why it did. Raises `Problem`."""
        follower, limits = self._follower, self._reading.limits
        part, self._part = self._part, None
        while not self._end.done():
            if part is not None:
                await self._send_part(send, part)
            if follower.cursor.is_over:
                await self._write(send, self._frames.over(follower.cursor))
                return "until"
            part = await follower.next(limits.heartbeat_seconds)
            if part is None and not self._end.done() and not follower.cursor.is_over:
                await self._write(send, self._frames.beat(follower.cursor, follower.reason))
        if part is not None:
            part.ticket.free()
        return self._end.result()

    async def _send_part(self, send: Send, part: Part) -> None:
        """Send records, and wait as long as the rate of the client wants."""
        page, ticket = part
        try:
            for start in range(0, len(page.body), _PIECE_BYTES):
                await self._write(send, page.body[start : start + _PIECE_BYTES])
        finally:
            ticket.free()
        until = time.monotonic() + self._reading.count(self._request, self._follower.topic, page)
        while (left := until - time.monotonic()) > 0 and not self._end.done():
            await self._follower.pause(min(left, self._reading.limits.heartbeat_seconds))
            if until > time.monotonic() and not self._end.done():
                await self._write(send, self._frames.beat(self._follower.cursor, "the rate of this client is reached"))

    async def _write(self, send: Send, body: bytes) -> None:
        """Send bytes. At a stop a client that does not take them soon is cut off."""
        writing = asyncio.ensure_future(send({"type": "http.response.body", "body": body, "more_body": True}))
        try:
            await asyncio.wait((writing, self._end), return_when=asyncio.FIRST_COMPLETED)
            if not writing.done() and self._end.result() == STOP:
                await asyncio.wait((writing,), timeout=_LAST_SECONDS)
                if not writing.done():
                    self._request.connection.abort()
            await writing
        finally:
            writing.cancel()


def _finish(end: asyncio.Future[str]) -> None:
    if not end.done():
        end.set_result(_GONE)


def _stopping() -> Problem:
    return unavailable("the gateway is stopping")
