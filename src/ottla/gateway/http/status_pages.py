"""dory's status pages on the port for operations: routes for `gateway/datagram/pages.py`, which makes the pages.

A function that returns a snapshot comes in, routes go out. Nothing is counted or changed here.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.gateway.datagram.pages import PAGE_NAMES, UPDATE_PATH, Snapshot, respond
from ottla.gateway.http.app import Path
from ottla.gateway.http.request import Answer, Request


def status_paths(snapshot: Callable[[], Snapshot]) -> list[Path]:
    """Return the routes of the status pages."""

    async def page(request: Request) -> Answer:
        found = respond(request.method, request.path, snapshot())
        return Answer(found.status, found.body, found.content_type.encode())

    gets = [
        Path("GET", f"/{name}/{form}", page, f"Status of the socket: {name}, {form}")
        for name in PAGE_NAMES
        for form in ("plain", "json")
    ]
    # The producer looks up metadata by itself, on errors and at intervals: scripts that ask for it get dory's answer.
    return [*gets, Path("POST", UPDATE_PATH, page, "Accepted for scripts: metadata is kept up to date without it")]
