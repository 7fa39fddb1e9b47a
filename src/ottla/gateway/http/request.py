"""A request as handlers see it, and the answer that they return: two small values over ASGI."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from ottla.gateway.http.decoding import decoded
from ottla.gateway.http.guard import CONNECTION, Connection
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.problems import Problem, unavailable

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_NO_QUERY: Mapping[str, str] = {}
_MOST_PARAMETERS = 32
_PIECE_BYTES = 256 << 10


class ClientGone(Exception):
    """The client closed the connection before its request was complete."""


class Room:
    """The memory that the bodies of all requests share. For one event loop."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0

    def take(self, size_bytes: int) -> None:
        """Take memory. Raises `Problem` 503 if others have it."""
        if self.used_bytes and self.used_bytes + size_bytes > self.most_bytes:
            raise unavailable("the memory for bodies is full", limit="body_memory_bytes")
        self.used_bytes += size_bytes


class Request:
    """One request. Its body is read once."""

    __slots__ = ("_held_bytes", "_receive", "_room", "headers", "identity", "limits", "method", "path", "scope")

    def __init__(self, scope: Any, receive: Receive, *, limits: Limits, room: Room | None = None) -> None:
        self.scope = scope
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.limits = limits
        self.identity = ""
        """Who sends it, once `access` has decided that."""
        self._receive = receive
        self._room = room or Room(limits.body_memory_bytes)
        self._held_bytes = 0

    @property
    def connection(self) -> Connection:
        """The connection that it came on."""
        connection: Connection = self.scope[CONNECTION]
        return connection

    @property
    def query(self) -> Mapping[str, str]:
        """The parameters of the URL. Raises `Problem` for invalid ones."""
        text = self.scope["query_string"]
        if not text:
            return _NO_QUERY
        try:
            pairs = parse_qsl(
                text.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MOST_PARAMETERS
            )
        except ValueError as error:
            raise Problem(400, "the query of the URL is invalid") from error
        if len(dict(pairs)) != len(pairs):
            raise Problem(400, "a parameter of the URL is there twice")
        return dict(pairs)

    def header(self, name: bytes) -> str:
        """Return a header as text, empty if it is missing."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def content_type(self) -> str:
        """The content type without parameters, in lower case."""
        return self.header(b"content-type").partition(";")[0].strip().lower()

    async def body(self) -> bytes:
        """Return the decoded body. Raises `Problem` above a limit, if possible before reading, and `ClientGone`."""
        limit = self.limits.body_bytes
        declared = self.headers.get(b"content-length")
        if declared is not None and (len(declared) > 18 or int(declared) > limit):
            raise _too_large(limit)
        message = await self._receive()
        if message["type"] != "http.request":
            raise ClientGone
        body: bytes = message["body"]
        if message["more_body"]:
            body = await self._rest(body, limit)
        if len(body) > limit:
            raise _too_large(limit)
        encoding = self.headers.get(b"content-encoding")
        if encoding is None:
            return body
        body = decoded(body, encoding.decode("latin-1"), limits=self.limits)
        self._hold(len(body))
        return body

    def free(self) -> None:
        """The request has its answer: the memory of its body is there for others."""
        self._room.used_bytes -= self._held_bytes
        self._held_bytes = 0

    def _hold(self, size_bytes: int) -> None:
        self._room.take(size_bytes)
        self._held_bytes += size_bytes

    async def _rest(self, first: bytes, limit: int) -> bytes:
        parts, size = [first], len(first)
        self._hold(size)
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGone
            parts.append(message["body"])
            size += len(message["body"])
            self._hold(len(message["body"]))
            if size > limit:
                raise _too_large(limit)
            if not message["more_body"]:
                return b"".join(parts)

    async def pieces(self) -> Any:
        """Yield the body piece by piece, as it comes."""
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGone
            if message["body"]:
                yield message["body"]
            if not message["more_body"]:
                return

    async def gone(self) -> None:
        """Return when the client has closed the connection. For requests whose body is read, or not wanted."""
        while (await self._receive())["type"] != "http.disconnect":
            pass


class Answer:
    """Status, headers and body of an answer."""

    __slots__ = ("body", "content_type", "headers", "release", "status")

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        content_type: bytes = b"application/json",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.release: Callable[[], None] | None = None
        """Called when it is sent, or cannot be."""

    async def send(self, send: Send) -> None:
        """Send it."""
        try:
            await self._send(send)
        finally:
            if self.release is not None:
                self.release()

    async def _send(self, send: Send) -> None:
        headers = list(self.headers)
        if self.status != 204:
            headers += [(b"content-type", self.content_type), (b"content-length", b"%d" % len(self.body))]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        # Piece by piece: each waits until the client has taken most of what was sent before.
        for at in range(0, len(self.body) - _PIECE_BYTES, _PIECE_BYTES):
            await send({"type": "http.response.body", "body": self.body[at : at + _PIECE_BYTES], "more_body": True})
        sent = max(0, (len(self.body) - 1) // _PIECE_BYTES) * _PIECE_BYTES
        await send({"type": "http.response.body", "body": self.body[sent:] if sent else self.body})


def as_json(value: object, status: int = 200) -> Answer:
    """Return a value as JSON."""
    return Answer(status, msgspec.json.encode(value))


def as_problem(problem: Problem, content_type: bytes = b"application/json") -> Answer:
    """Return the answer of a problem."""
    headers = tuple(pair for pair in problem.headers() if pair[0] != b"content-type")
    return Answer(problem.status, problem.body(), content_type, headers)


def _too_large(limit: int) -> Problem:
    return Problem(413, f"the body is larger than {limit:,} bytes", limit="body_bytes")
