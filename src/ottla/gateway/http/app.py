"""The application of the HTTP listener: hot routes are matched here, all others by Starlette.

ASGI calls come in. Each is identified, handled and counted, and gets one answer, whatever happens. Handlers get a
`Request` and return an `Answer`; those that stream get ASGI's `send` and are routes of Starlette, too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router

from ottla.errors import OttlaError
from ottla.gateway.access.gate import Gate
from ottla.gateway.faults import log_fault
from ottla.gateway.http.counters import Counters
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.problems import Problem, problem_of
from ottla.gateway.http.request import Answer, ClientGone, Receive, Request, Room, Send, as_problem

_log = logging.getLogger(__name__)
Handler = Callable[..., Awaitable[Answer]]
Streamer = Callable[..., Awaitable[int]]
JSON = b"application/json"


@dataclass(frozen=True, slots=True)
class Path:
    """A route: method, template such as `/v1/topics/{topic}`, and the handler that gets its parameters."""

    method: str
    template: str
    handler: Handler
    summary: str
    content_type: bytes = JSON
    """The content type of its errors."""


@dataclass(frozen=True, slots=True)
class StreamPath:
    """A route whose handler sends the answer itself, while the body comes; it returns the status."""

    method: str
    template: str
    handler: Streamer
    summary: str


@dataclass(frozen=True, slots=True)
class HotPath:
    """A route that is matched before all others: what follows `prefix` is the topic, up to `suffix`."""

    prefix: str
    suffix: str
    path: Path


class App:
    """Serves routes."""

    def __init__(
        self,
        gate: Gate,
        *,
        limits: Limits,
        counters: Counters,
        hot: Iterable[HotPath],
        paths: Iterable[Path | StreamPath],
    ) -> None:
        self._gate = gate
        self._limits = limits
        self._counters = counters
        self._room = Room(limits.body_memory_bytes)
        self._hot = tuple(hot)
        routes = [
            Route(each.template, _Endpoint(self, each), methods=[each.method])
            for each in (*(hot.path for hot in self._hot), *paths)
        ]
        self._router = Router(_merged(routes), redirect_slashes=False)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            return
        if scope["method"] == "POST":
            path = scope["path"]
            for hot in self._hot:
                if path.startswith(hot.prefix) and path.endswith(hot.suffix):
                    topic = path[len(hot.prefix) : len(path) - len(hot.suffix)]
                    if topic and "/" not in topic:
                        await self.answer(hot.path, scope, receive, send, {"topic": topic})
                        return
        scope["app"] = self  # so that Starlette raises its errors
        try:
            await self._router(scope, receive, send)
        except HTTPException as error:
            self._counters.answered("none", error.status_code)
            text = {404: f"no route {scope['method']} {scope['path'][:100]}", 405: "this route has other methods"}
            problem = Problem(error.status_code, text.get(error.status_code, error.detail))
            answer = as_problem(problem)
            answer.headers += tuple(
                (name.lower().encode(), value.encode()) for name, value in (error.headers or {}).items()
            )
            await answer.send(send)

    async def answer(
        self, path: Path | StreamPath, scope: Any, receive: Receive, send: Send, parameters: dict[str, Any]
    ) -> None:
        """Run a handler and send what it returns."""
        request = Request(scope, receive, limits=self._limits, room=self._room)
        try:
            await self._answer(path, request, send, parameters)
        finally:
            request.free()

    async def _answer(self, path: Path | StreamPath, request: Request, send: Send, parameters: dict[str, Any]) -> None:
        content_type = path.content_type if isinstance(path, Path) else JSON
        try:
            request.identity = await self._gate.identify(request.connection, request.headers)
            if isinstance(path, StreamPath):
                status = await path.handler(request, send, **parameters)
                self._counters.answered(path.template, status)
                return
            answer = await path.handler(request, **parameters)
        except Problem as problem:
            answer = self._problem(problem, content_type)
        except ClientGone:
            self._counters.answered(path.template, 499)
            return
        except (OttlaError, TimeoutError) as error:
            answer = self._problem(problem_of(error), content_type)
        except Exception as error:
            answer = self._problem(failure(error, f"a handler of {path.template}"), content_type)
        self._counters.answered(path.template, answer.status)
        await answer.send(send)

    def _problem(self, problem: Problem, content_type: bytes) -> Answer:
        self._counters.refused(problem)
        return as_problem(problem, content_type)


def failure(error: Exception, what: str) -> Problem:
    """Return the answer for an error that is a bug, and log where it was. Not its text, which may have a payload."""
    log_fault(_log, error, f"{what} failed")
    return Problem(500, "an error of the gateway; its log has the reason")


class _Endpoint:
    """A route's ASGI application."""

    def __init__(self, app: App, path: Path | StreamPath) -> None:
        self.paths = {path.method: path}
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        await self._app.answer(self.paths[scope["method"]], scope, receive, send, scope["path_params"])


def _merged(routes: Iterable[Route]) -> list[Route]:
    """Return one route for each template: Starlette takes the first whose template fits, whatever its methods."""
    merged: dict[str, Route] = {}
    for route in routes:
        known = merged.setdefault(route.path, route)
        if known is not route:
            assert known.methods is not None
            known.methods |= route.methods or set()
            known.app.paths |= route.app.paths  # type: ignore[attr-defined]
    for route in merged.values():
        assert route.methods is not None
        if "HEAD" in route.methods and "GET" in route.methods:
            route.methods -= {"HEAD"}
    return list(merged.values())
