"""What is served of lag over HTTP: Burrow's interface, metrics for Prometheus, and rows as JSON.

Requests come in, pages go out that are made from the last snapshot in memory: no request ever asks Kafka. Sockets are
the business of `operations.serving`.
"""

from __future__ import annotations

import gzip
import io
import json
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ottla.errors import OttlaError
from ottla.operations.lag import burrow, metrics
from ottla.operations.lag.values import Snapshot
from ottla.operations.serving import (
    DEADLINE,
    JSON_TYPE,
    METRICS_TYPE,
    MOST_CONNECTIONS,
    Page,
    Request,
    Server,
    json_page,
)

_PIECE = 1 << 16
_ROWS_AT_ONCE = 500
_log = logging.getLogger(__name__)


class LagServer(Server):
    """Listens on `host` and `port` from its creation on, and answers while the block runs.

    `family` chooses the names of metrics, `most_connections` may be open at a time. `latest` returns the last snapshot,
    None before the first; `history` the stored looks at a group since a time. Raises `ConfigError` if the address
    cannot be listened on.
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
        site = _Site(latest, cluster, tuple(bootstrap), family, history)
        super().__init__(site.answer, host=host, port=port, deadline=deadline, most_connections=most_connections)


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
        self._latest = latest
        self._bootstrap = bootstrap
        self._family = family
        self._read_history = history
        self._cluster = cluster
        self._lock = threading.Lock()
        self._rendered: tuple[Snapshot, bytes] | None = None

    def answer(self, request: Request) -> Page:
        """Answer from the last snapshot."""
        path, snapshot = request.path, self._latest()
        if path == "/burrow/admin":
            return Page("GOOD", "text/plain")
        if path == "/burrow/admin/ready":
            return Page("STARTING", "text/plain", 503) if snapshot is None else Page("READY", "text/plain")
        if snapshot is None:
            return _failure(request, 503, "the first poll is not finished")
        if path == "/metrics":
            return self._metrics(snapshot, is_packed=request.accepts_gzip)
        if path.startswith("/v3/"):
            asked = burrow.Asked(snapshot, self._name(snapshot), self._bootstrap, path, socket.gethostname())
            found = burrow.answer(asked)
            return json_page(found.content, found.status)
        if path == "/lag":
            return Page(self._rows(snapshot, request.query), JSON_TYPE)
        if path == "/history" and self._read_history is not None:
            return self._history(self._read_history, request)
        if path == "/":
            return json_page({"paths": ["/v3/kafka", "/metrics", "/lag", "/history?group=", "/burrow/admin"]})
        return _failure(request, 404, "invalid request type")

    def _name(self, snapshot: Snapshot) -> str:
        """Return the cluster's name: as configured, else its id."""
        return self._cluster or snapshot.cluster or "kafka"

    def _rows(self, snapshot: Snapshot, query: Mapping[str, list[str]]) -> Iterator[bytes]:
        """Yield JSON in pieces: many clients may ask for all rows at once."""
        groups, topics = query.get("group", ()), query.get("topic", ())
        head = json.dumps({"at": round(snapshot.at, 3), "cluster": self._name(snapshot)})
        yield f'{head[:-1]}, "rows": ['.encode()
        piece: list[str] = []
        separator = ""
        for row in snapshot.rows():
            if (not groups or row.group in groups) and (not topics or row.topic in topics):
                piece.append(separator + json.dumps(row.to_json()))
                separator = ", "
            if len(piece) >= _ROWS_AT_ONCE:
                yield "".join(piece).encode()
                piece.clear()
        yield "".join([*piece, "]}"]).encode()

    def _history(self, read: Callable[[str, float], list[dict[str, Any]]], request: Request) -> Page:
        name = request.query.get("group", [""])[0]
        try:
            since = float(request.query.get("since", ["0"])[0])
        except ValueError:
            since = math.nan
        if not name or math.isnan(since):
            return _failure(request, 400, "use /history?group=NAME&since=SECONDS, in seconds since 1970")
        try:
            looks = read(name, since)
        except OttlaError as error:
            _log.warning("%s", error)
            return _failure(request, 503, "the history cannot be read")
        return json_page({"group": name, "looks": looks})

    def _metrics(self, snapshot: Snapshot, *, is_packed: bool) -> Page:
        """Return the metrics of a snapshot; made once, by the first who asks, and kept compressed."""
        with self._lock:
            if self._rendered is None or self._rendered[0] is not snapshot:
                self._rendered = (snapshot, self._compressed(snapshot))
            compressed = self._rendered[1]
        age = metrics.render_age(snapshot, cluster=self._name(snapshot), now=time.time())
        packed = compressed + gzip.compress(age.encode())  # parts of one file, as gzip has them
        return Page(packed, METRICS_TYPE, encoding="gzip") if is_packed else Page(_unpacked(packed), METRICS_TYPE)

    def _compressed(self, snapshot: Snapshot) -> bytes:
        target = io.BytesIO()
        with gzip.GzipFile(fileobj=target, mode="wb", compresslevel=1) as file:
            for text in metrics.render(snapshot, cluster=self._name(snapshot), family=self._family):
                file.write(text.encode())
        return target.getvalue()


def _unpacked(packed: bytes) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
        while piece := file.read(_PIECE):
            yield piece


def _failure(request: Request, status: int, message: str) -> Page:
    content = {"error": True, "message": message, "request": {"url": request.path, "host": socket.gethostname()}}
    return json_page(content, status)
