"""Serves the last snapshot over HTTP: Burrow's interface, metrics for Prometheus, and rows as JSON.

Requests come in, answers go out that are made from memory: no request ever asks Kafka. A client has a deadline for its
whole connection, and the number of open connections is limited; the others are closed at once. Nothing can be changed
through it.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import logging
import shutil
import socket
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from ottla.errors import ConfigError
from ottla.operations.lag import burrow, metrics
from ottla.operations.lag.values import Snapshot

MOST_CONNECTIONS = 64
DEADLINE = 30.0
"""Seconds for a connection: one request and its answer."""
_CHECK_SECONDS = 0.25
_log = logging.getLogger(__name__)


class LagServer:
    """Listens while the block runs. Raises `ConfigError` if the address cannot be listened on.

    `latest` returns the last snapshot, None before the first; `history` the stored looks at a group since a time.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        latest: Callable[[], Snapshot | None],
        cluster: str | None = None,
        bootstrap: Sequence[str] = (),
        family: str = "a",
        history: Callable[[str, float], list[dict[str, Any]]] | None = None,
        deadline: float = DEADLINE,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        try:
            self._server = _Server((host, port), _Handler, deadline=deadline, most=most_connections)
        except OSError as error:
            hint = ": another program listens there" if error.errno == errno.EADDRINUSE else ""
            reason = error.strerror or str(error)
            raise ConfigError(f"cannot listen on {host}:{port}{hint} ({reason}); choose another address") from error
        self._server.site = _Site(latest, cluster, tuple(bootstrap), family, history)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_CHECK_SECONDS,), name="ottla-lag-http", daemon=True
        )

    @property
    def port(self) -> int:
        """The port it listens on, also if 0 was asked for."""
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.close_all()
        self._server.server_close()


class _Site:
    """What is served. Threads share it."""

    def __init__(
        self,
        latest: Callable[[], Snapshot | None],
        cluster: str | None,
        bootstrap: tuple[str, ...],
        family: str,
        history: Callable[[str, float], list[dict[str, Any]]] | None,
    ) -> None:
        self.latest = latest
        self.bootstrap = bootstrap
        self.family = family
        self.history = history
        self._cluster = cluster
        self._lock = threading.Lock()
        self._rendered: tuple[Snapshot, bytes] | None = None

    def name(self, snapshot: Snapshot) -> str:
        """Return the cluster's name: as configured, else its id."""
        return self._cluster or snapshot.cluster or "kafka"

    def metrics(self, snapshot: Snapshot) -> bytes:
        """Return the metrics of a snapshot, compressed; made once, by the first who asks."""
        with self._lock:
            if self._rendered is None or self._rendered[0] is not snapshot:
                self._rendered = (snapshot, self._compressed(snapshot))
            compressed = self._rendered[1]
        age = metrics.render_age(snapshot, cluster=self.name(snapshot), now=time.time())
        return compressed + gzip.compress(age.encode())  # parts of one file, as gzip has them

    def _compressed(self, snapshot: Snapshot) -> bytes:
        target = io.BytesIO()
        with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=1) as file:
            for text in metrics.render(snapshot, cluster=self.name(snapshot), family=self.family):
                file.write(text.encode())
        return target.getvalue()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    # Threads of connections end by their deadline.
    request_queue_size = 128
    allow_reuse_address = True
    site: _Site

    def __init__(self, address: tuple[str, int], handler: type[_Handler], *, deadline: float, most: int) -> None:
        self._deadline = deadline
        self._most = most
        self._open: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, handler)

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
        """Answer from the last snapshot."""
        try:
            self._answer()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is that of the base class
        """Log for those who look for it."""
        _log.debug("%s: %r", self.client_address[0], args)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is wrong with a request as JSON, without repeating any of it."""
        reason = self.responses.get(code, ("error", ""))[0]
        self._json(code, {"error": True, "message": reason, "request": {"url": "", "host": ""}})

    def _answer(self) -> None:
        site, parts = self.server.site, urlsplit(self.path)
        path, snapshot = parts.path, site.latest()
        if path == "/burrow/admin":
            self._send(200, "text/plain", b"GOOD")
        elif path == "/burrow/admin/ready":
            self._send(503 if snapshot is None else 200, "text/plain", b"STARTING" if snapshot is None else b"READY")
        elif snapshot is None:
            self._json(503, {"error": True, "message": "the first poll is not finished", "request": self._request()})
        elif path == "/metrics":
            self._metrics(site.metrics(snapshot))
        elif path.startswith("/v3/"):
            asked = burrow.Asked(snapshot, site.name(snapshot), site.bootstrap, path, socket.gethostname())
            found = burrow.answer(asked)
            self._json(found.status, found.content)
        elif path == "/lag":
            self._rows(snapshot, parse_qs(parts.query))
        elif path == "/history" and site.history is not None:
            self._history(site.history, parse_qs(parts.query))
        elif path == "/":
            self._json(200, {"paths": ["/v3/kafka", "/metrics", "/lag", "/history?group=", "/burrow/admin"]})
        else:
            self._json(404, {"error": True, "message": "invalid request type", "request": self._request()})

    def _request(self) -> dict[str, str]:
        return {"url": urlsplit(self.path).path, "host": socket.gethostname()}

    def _rows(self, snapshot: Snapshot, query: dict[str, list[str]]) -> None:
        groups, topics = query.get("group", ()), query.get("topic", ())
        rows = [
            row.to_json()
            for row in snapshot.rows()
            if (not groups or row.group in groups) and (not topics or row.topic in topics)
        ]
        self._json(200, {"at": round(snapshot.at, 3), "cluster": self.server.site.name(snapshot), "rows": rows})

    def _history(self, read: Callable[[str, float], list[dict[str, Any]]], query: dict[str, list[str]]) -> None:
        name = query.get("group", [""])[0]
        try:
            since = float(query.get("since", ["0"])[0])
        except ValueError:
            name = ""
        if not name:
            message = "use /history?group=NAME&since=SECONDS, in seconds since 1970"
            self._json(400, {"error": True, "message": message, "request": self._request()})
            return
        self._json(200, {"group": name, "looks": read(name, since)})

    def _metrics(self, compressed: bytes) -> None:
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            self._send(200, metrics.CONTENT_TYPE, compressed, encoding="gzip")
            return
        self._head(200, metrics.CONTENT_TYPE)
        if self.command != "HEAD":
            with gzip.GzipFile(fileobj=io.BytesIO(compressed)) as file:
                shutil.copyfileobj(file, self.wfile, 1 << 16)

    def _json(self, status: int, content: Any) -> None:
        self._send(status, "application/json", json.dumps(content).encode())

    def _send(self, status: int, kind: str, body: bytes, *, encoding: str | None = None) -> None:
        self._head(status, kind, size=len(body), encoding=encoding)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, kind: str, *, size: int | None = None, encoding: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if size is not None:
            self.send_header("Content-Length", str(size))
        if encoding is not None:
            self.send_header("Content-Encoding", encoding)
        self.send_header("Connection", "close")
        self.end_headers()
