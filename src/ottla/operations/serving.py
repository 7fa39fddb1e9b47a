"""A small HTTP server for metrics, verdicts and lag, from the standard library.

Requests come in, and a function that makes a `Page` of what is already known; pages go out, to GET and HEAD. The
function must not ask a broker: many scrapes at once would ask as many times. A client has a deadline for its whole
connection, and the number of open connections is limited; the others are closed at once. It listens on loopback unless
another address is named, has no login, and nothing can be changed through it.
"""

from __future__ import annotations

import errno
import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from ottla.errors import ConfigError

LOOPBACK = "127.0.0.1"
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
JSON_TYPE = "application/json"
MOST_CONNECTIONS = 64
DEADLINE = 30.0
"""Seconds for a connection: one request and its answer."""
_CHECK_SECONDS = 0.1
_log = logging.getLogger(__name__)


class Request(NamedTuple):
    """What is asked for."""

    path: str
    query: Mapping[str, list[str]]
    accepts_gzip: bool


class Page(NamedTuple):
    """An answer. A body in pieces is made while it is sent, and has no length in the headers."""

    body: str | bytes | Iterable[bytes]
    content_type: str = METRICS_TYPE
    status: int = 200
    encoding: str | None = None


Answer = Callable[[Request], Page]
"""Returns the page for a request. Called from many threads."""
Routes = Mapping[str, Callable[[], Page]]
"""Functions that return a page, by path."""


def routed(routes: Routes) -> Answer:
    """Return what answers from these routes, and says which there are otherwise."""

    def answer(request: Request) -> Page:
        route = routes.get(request.path)
        known = " ".join(sorted(routes))
        return Page(f"there is {known}\n", "text/plain; charset=utf-8", 404) if route is None else route()

    return answer


def json_page(content: Any, status: int = 200) -> Page:
    """Return a page of JSON."""
    return Page(json.dumps(content).encode(), JSON_TYPE, status)


class Server:
    """Listens from its creation on, and answers while its `with` block runs, on threads of its own."""

    def __init__(
        self,
        answer: Answer,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        deadline: float = DEADLINE,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        """Port 0 takes a free one. Raises `ConfigError` if the address cannot be listened on."""
        try:
            self._server = _Server((host, port), answer, deadline=deadline, most=most_connections)
        except (OSError, OverflowError) as error:
            in_use = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            hint = ": another program listens there" if in_use else ""
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            where = f"{_shown(host)}:{port}"
            raise ConfigError(f"cannot listen on {where}{hint} ({reason}); choose another address") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_CHECK_SECONDS,), name="ottla-http", daemon=True
        )

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    @property
    def port(self) -> int:
        """The port it listens on, also if 0 was asked for."""
        return self.address[1]

    @property
    def url(self) -> str:
        """Where it listens, for people."""
        host, port = self.address
        return f"http://{_shown(host)}:{port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.close_all()
        self._server.server_close()


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # Threads of connections end by their deadline.
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], answer: Answer, *, deadline: float, most: int) -> None:
        self.answer = answer
        self._deadline = deadline
        self._most = most
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Refuse a connection while too many are open."""
        with self._lock:
            if len(self._open) >= self._most:
                return False
            self._open[request] = time.monotonic() + self._deadline
        return True

    def shutdown_request(self, request: Any) -> None:
        """Forget a connection when it ends."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """End connections whose deadline has passed, however busily they drip; called several times a second."""
        now = time.monotonic()
        with self._lock:
            late = [request for request, until in self._open.items() if until <= now]
        for request in late:
            _end(request)

    def close_all(self) -> None:
        """End all connections."""
        with self._lock:
            still_open = list(self._open)
        for request in still_open:
            _end(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Note what went wrong with one connection; the others go on."""
        _log.debug("a connection of %s failed", client_address, exc_info=True)

    def server_bind(self) -> None:
        """Bind without looking up the name of the host, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


def _end(request: socket.socket) -> None:
    try:
        request.shutdown(socket.SHUT_RDWR)  # wakes the thread that reads or writes it
    except OSError:
        pass


class _Handler(BaseHTTPRequestHandler):
    """One request, one answer, and the connection ends."""

    server: _Server
    server_version = "ottla"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer from what is known."""
        try:
            self._send(self._page())
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    do_HEAD = do_GET  # noqa: N815 - the name that the standard library calls

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the base class
        """Log for those who look for it."""
        _log.debug("%s: %r", self.client_address[0], args)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is wrong with a request as JSON, without repeating any of it."""
        self._send(_failure(code, self.responses.get(code, ("error", ""))[0]))

    def _page(self) -> Page:
        try:
            parts = urlsplit(self.path)
            request = Request(parts.path, parse_qs(parts.query), _accepts_gzip(self.headers.get("Accept-Encoding", "")))
        except ValueError:  # such as the brackets of an IPv6 address that do not match
            return _failure(400, "Bad Request")
        try:
            return self.server.answer(request)
        except Exception as error:  # one request must not end without an answer
            _log.warning("cannot answer %r: %s", parts.path, error, exc_info=True)
            return _failure(500, type(error).__name__)

    def _send(self, page: Page) -> None:
        body = page.body.encode() if isinstance(page.body, str) else page.body
        self.send_response(page.status)
        self.send_header("Content-Type", page.content_type)
        if isinstance(body, bytes):
            self.send_header("Content-Length", str(len(body)))
        if page.encoding is not None:
            self.send_header("Content-Encoding", page.encoding)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            for piece in (body,) if isinstance(body, bytes) else body:
                self.wfile.write(piece)


def _failure(status: int, message: str) -> Page:
    return json_page({"error": True, "message": message}, status)


def _accepts_gzip(header: str) -> bool:
    """Whether an Accept-Encoding header has gzip, and not with the weight 0."""
    for entry in header.lower().split(","):
        name, _, weight = entry.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.strip().removeprefix("q=").strip("0.") != "" or not weight.strip()
    return False
