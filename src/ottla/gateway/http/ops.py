"""The second listener: health, readiness, metrics and the OpenAPI page. Without login, so it belongs on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from ottla.gateway.access.gate import Gate
from ottla.gateway.http.app import App, Path
from ottla.gateway.http.counters import Counters
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.request import Answer, Request, as_json

_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


class Ops:
    """Handlers of the second listener."""

    def __init__(
        self,
        *,
        counters: Counters,
        readiness: Callable[[], Mapping[str, str]],
        gauges: Callable[[], Mapping[str, float]],
        events: Callable[[], bytes],
        openapi: Mapping[str, Any],
    ) -> None:
        self._counters = counters
        self._readiness = readiness
        self._gauges = gauges
        self._events = events
        self._openapi = msgspec.json.encode(openapi)

    async def health(self, request: Request) -> Answer:
        """`GET /health`: the process answers."""
        return as_json({"status": "ok"})

    async def ready(self, request: Request) -> Answer:
        """`GET /ready`: 200 if it takes records, else 503 with what is missing."""
        missing = dict(self._readiness())
        return as_json({"status": "not ready" if missing else "ready", "missing": missing}, 503 if missing else 200)

    async def metrics(self, request: Request) -> Answer:
        """`GET /metrics`, for Prometheus."""
        return Answer(200, self._counters.text(self._gauges()).encode() + self._events(), _METRICS)

    async def openapi(self, request: Request) -> Answer:
        """`GET /openapi.json`."""
        return Answer(200, self._openapi)


def make_ops_app(ops: Ops, gate: Gate, *, limits: Limits, extra: Iterable[Path] = ()) -> App:
    """Return the application of the second listener. Status pages of other listeners are `extra`."""
    paths = [
        Path("GET", "/health", ops.health, "Whether the process answers"),
        Path("GET", "/healthz", ops.health, "The same"),
        Path("GET", "/ready", ops.ready, "Whether it takes records"),
        Path("GET", "/readyz", ops.ready, "The same"),
        Path("GET", "/metrics", ops.metrics, "Metrics for Prometheus"),
        Path("GET", "/openapi.json", ops.openapi, "This page"),
        *extra,
    ]
    return App(gate, limits=limits, counters=Counters(), hot=[], paths=paths)
