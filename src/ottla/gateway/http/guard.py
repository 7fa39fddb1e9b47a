"""uvicorn's HTTP protocol with what it lacks: deadlines, limits for heads and connections, and strictness.

Bytes of a client come in. Requests that keep within the limits go to the application; all others end here, each with
an answer that names the limit. It knows no route. A request may have one framing only, so that no proxy in front reads
another request out of the same bytes.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from ottla.gateway.http.limits import Limits
from ottla.gateway.http.one_write import OneWrite
from ottla.gateway.http.problems import Problem

_LAST_CHANCE_SECONDS = 1.0
"""What a connection without a request gets when the listener stops: closing it at once would reset a request that is
on its way."""
CONNECTION = "ottla.connection"
"""Where a request's scope has its `Connection`."""
_ONCE = frozenset(
    {
        *(b"host", b"content-length", b"transfer-encoding", b"content-type", b"content-encoding", b"authorization"),
        b"idempotency-key",
    }
)
"""Headers that a request must not have twice."""
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BAD_VALUE = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
_SPACE_IN_URL = re.compile(rb"[\x00-\x20\x7f-\xff]")


@dataclass(slots=True)
class Connection:
    """What is known of the client at the other end, for as long as it is connected."""

    address: str
    certificate: str = ""
    """The name in its certificate, if it has shown one."""
    credentials: dict[bytes, Any] = field(default_factory=dict)
    """Who it is by the credentials that it sends; kept by `access`."""
    stream: Callable[[bool], None] = lambda is_open: None
    """Tells the guard that the body of this request comes slowly on purpose, and when that is over: in between, its
    handler has the deadlines."""
    abort: Callable[[], None] = lambda: None
    """Ends it at once, whatever is still to be sent."""
    is_lost: bool = False
    """Whether it has ended."""
    on_lost: set[Callable[[], None]] = field(default_factory=set)
    """Called when it has ended. A request behind this one must not hide that, as it does from uvicorn."""


class Guard(HttpToolsProtocol):
    """One connection. `guarded` makes a class of it that has its limits."""

    limits = Limits()
    count: Callable[[str], None] = staticmethod(lambda name: None)
    """Called with the name of a limit that was hit."""
    is_draining: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, config: Config, server_state: ServerState, app_state: dict[str, Any], _loop: Any = None) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None
        self._refusal: Problem | None = None
        self._is_ended = False
        """Whether what still comes in is ignored."""
        self._is_in_head = False
        self._head_bytes = 0
        self._seen: set[bytes] = set()
        self._host = b""
        self._discarded = 0
        self._connection = Connection("")

    # A connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Arm the first deadline; refuse the connection if there are too many."""
        super().connection_made(transport)
        self.transport = OneWrite(transport, self.loop)
        address = self.client[0] if self.client else "unix"
        self._connection = Connection(
            address, _certificate_name(transport), stream=self._expect_stream, abort=transport.abort
        )
        if len(self.connections) > self.limits.connections:
            self._refuse(Problem(503, "too many connections", code=50301, limit="connections", retry_after=1))
            return
        self._arm(self.limits.head_seconds, "head_seconds")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget all deadlines."""
        self._disarm()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
        super().connection_lost(exc)
        self._connection.is_lost = True
        for call in list(self._connection.on_lost):
            call()

    def shutdown(self) -> None:
        """End after the request under way; a connection that has sent none yet may be about to: it gets a moment."""
        cycle: Any = self.cycle
        if cycle is None and not self._is_ended:
            self._disarm()
            self._timer = self.loop.call_later(_LAST_CHANCE_SECONDS, self.transport.close)
            return
        super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Parse, and turn what is wrong into an answer."""
        if self._is_ended:
            self._discard(len(data))
            return
        self._unset_keepalive_if_required()
        cycle: Any = self.cycle  # None before the first request
        if self._timer is None and (cycle is None or not cycle.more_body):
            self._arm(self.limits.head_seconds, "head_seconds")  # also for bytes that begin no request
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(Problem(400, "Upgrade is not supported: use HTTP/1.1"))
        except httptools.HttpParserError:
            refusal, self._refusal = self._refusal, None
            self._refuse(refusal or Problem(400, "this is not HTTP/1.1"))

    def pause_writing(self) -> None:
        """Give the client a limited time to read what was sent to it."""
        super().pause_writing()
        if self._answer_timer is None:
            self._answer_timer = self.loop.call_later(self.limits.answer_seconds, self._abort)

    def resume_writing(self) -> None:
        """The client reads."""
        super().resume_writing()
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    # The parser's events

    def on_message_begin(self) -> None:
        """Begin to count the head."""
        super().on_message_begin()
        scope: Any = self.scope  # its type has no place for extensions
        scope[CONNECTION] = self._connection
        self._is_in_head = True
        self._head_bytes = self._discarded = 0
        self._seen.clear()
        self._host = b""

    def on_url(self, url: bytes) -> None:
        """Count the request line."""
        self._count_head(len(url))
        if _SPACE_IN_URL.search(url):
            self._stop(Problem(400, "the request line has characters that a URL cannot have"))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count and check a header."""
        if not self._is_in_head:  # a trailer: nothing needs one
            self._stop(Problem(400, "trailers are not supported"))
        self._count_head(len(name) + len(value) + 4)
        name = name.lower()
        if len(self.headers) >= self.limits.head_lines:
            self._stop(Problem(431, f"more than {self.limits.head_lines} headers", limit="head_lines"))
        if not _NAME.fullmatch(name) or _BAD_VALUE.search(value):
            self._stop(Problem(400, "a header has characters that it cannot have"))
        if name in _ONCE:
            if name in self._seen:
                self._stop(Problem(400, f"the header {name.decode()} is there twice"))
            self._seen.add(name)
            if name == b"host":
                self._host = value
            elif name == b"transfer-encoding" and value.strip().lower() != b"chunked":
                self._stop(Problem(400, "the only transfer encoding is chunked"))
            elif name == b"content-length" and not value.isdigit():
                self._stop(Problem(400, "the content length is not a number"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Check the head as a whole; the deadline of the body begins."""
        version = self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._stop(Problem(505, f"HTTP {version} is not supported: use HTTP/1.1"))
        if (version == "1.1" or self._host) and not _HOST.fullmatch(self._host):
            self._stop(Problem(400, "the request needs one valid Host header"))
        if b"transfer-encoding" in self._seen and (version == "1.0" or b"content-length" in self._seen):
            self._stop(Problem(400, "the request has two framings of its body"))
        if self.parser.should_upgrade():
            self._stop(Problem(400, "Upgrade is not supported: use HTTP/1.1"))
        if not self.url.startswith(b"/"):
            self._stop(Problem(400, "the request line needs a path"))
        if len(self.pipeline) >= self.limits.pipelined:
            self._stop(Problem(429, f"more than {self.limits.pipelined} requests wait", limit="pipelined"))
        self._is_in_head = False
        self._disarm()
        super().on_headers_complete()
        if self.is_draining():
            self.cycle.keep_alive = False
        self._arm(self.limits.body_seconds, "body_seconds")

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body; drop it if the answer is there already."""
        if self.cycle.response_complete:
            self._discard(len(body))
            return
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._disarm()
        super().on_message_complete()

    # Refusing

    def _count_head(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > self.limits.head_bytes:
            self._stop(
                Problem(431, f"the request's head is larger than {self.limits.head_bytes:,} bytes", limit="head_bytes")
            )

    def _stop(self, problem: Problem) -> None:
        """End the request from inside the parser, which turns any exception into its own."""
        self._refusal = problem
        raise problem

    def _refuse(self, problem: Problem) -> None:
        """Answer with the problem and close, after the answer that is under way, if there is one."""
        if problem.limit:
            self.count(problem.limit)
        self._disarm()
        self._is_ended = True
        cycle: Any = self.cycle
        if cycle is not None and not cycle.response_complete and not (cycle.more_body and not self._is_in_head):
            cycle.keep_alive = False  # an earlier request of this connection: it gets its answer, and then it ends
            return
        if cycle is not None and not cycle.response_complete:  # its body is what is wrong
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started or self.pipeline:
                self.transport.close()
                return
        self._write(problem)

    def _write(self, problem: Problem) -> None:
        body = problem.body()
        headers = problem.headers()
        lines = [b"HTTP/1.1 %d %s\r\n" % (problem.status, HTTPStatus(problem.status).phrase.encode())]
        lines += [b"%s: %s\r\n" % pair for pair in headers if pair[0] != b"connection"]
        lines.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        if not self.transport.is_closing():
            self.transport.write(b"".join(lines) + body)
            self.transport.close()

    def _discard(self, size: int) -> None:
        """Drop what comes after the answer; a close at once would reset the connection before the client has read."""
        self._discarded += size
        if self._discarded > self.limits.body_bytes:
            self.transport.close()

    # Deadlines

    def _arm(self, seconds: float, limit: str) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(seconds, self._expire, limit)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expect_stream(self, is_open: bool) -> None:
        cycle: Any = self.cycle
        if self.pipeline or not cycle.more_body:
            return  # the body is there, and a deadline is that of the next request
        self._disarm()
        if not is_open:
            self._arm(self.limits.body_seconds, "body_seconds")

    def _expire(self, limit: str) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle
        if cycle is not None and cycle.response_complete and cycle.more_body:
            self.count(limit)
            self.transport.close()
            return
        what = "head" if limit == "head_seconds" else "body"
        self._refuse(Problem(408, f"the {what} of the request came too slowly", limit=limit))

    def _abort(self) -> None:
        self._answer_timer = None
        self.count("answer_seconds")
        self.transport.abort()


def guarded(
    limits: Limits, *, count: Callable[[str], None], is_draining: Callable[[], bool] = lambda: False
) -> type[Guard]:
    """Return the class of protocol for a listener with these limits."""
    return type(
        "_Guard",
        (Guard,),
        {"limits": limits, "count": staticmethod(count), "is_draining": staticmethod(is_draining)},
    )


def _certificate_name(transport: asyncio.Transport) -> str:
    """The common name of the client's certificate, which the handshake has verified; else its first DNS name."""
    tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
    certificate: Any = None if tls is None else tls.getpeercert()
    if not certificate:
        return ""
    for pairs in certificate.get("subject", ()):
        for name, value in pairs:
            if name == "commonName":
                return str(value)
    alternatives: Any = certificate.get("subjectAltName", ())
    return next((str(value) for kind, value in alternatives if kind == "DNS"), "")
