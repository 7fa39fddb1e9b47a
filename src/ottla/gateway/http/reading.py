"""What all routes that read have in common: parameters, permission, rates, memory, and the counters.

A request comes in; a checked `Wish` goes out, and answers are made and sent within the memory that all readers share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from ottla.gateway.access.gate import Gate
from ottla.gateway.access.rules import Verb
from ottla.gateway.http.bodies import ARROW, JSON, NDJSON, read_time
from ottla.gateway.http.counters import Counters
from ottla.gateway.http.directory import Directory
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.problems import Problem
from ottla.gateway.http.request import Request
from ottla.gateway.reading.log_reader import Size
from ottla.gateway.reading.pages import Page, Pages
from ottla.gateway.reading.readers import Ticket
from ottla.gateway.reading.rendering import Shape
from ottla.gateway.reading.streams import STOP
from ottla.model import Isolation

_SMALLEST = 1
_LARGEST_OFFSET = (1 << 63) - 2
"""The next number stands for the end of a log."""
_OVERHEAD = 3
"""An answer and what it is made of take about this many times the size of its records."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client wants to read."""

    size: Size
    wait_seconds: float
    isolation: Isolation
    shape: Shape


class Reading:
    """Everything that handlers need to read. For one event loop."""

    def __init__(self, pages: Pages, directory: Directory, gate: Gate, *, limits: Limits, counters: Counters) -> None:
        self.pages = pages
        self.directory = directory
        self.gate = gate
        self.limits = limits
        self.counters = counters
        self.ends: dict[asyncio.Future[str], str] = {}
        """Streams that are open, and whose: each ends when its future is done."""
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_stopping(self) -> bool:
        """Whether streams and waits are to end."""
        return self.pages.news.is_ended

    def stop(self) -> None:
        """End streams and waits soon. Any thread may call it."""
        if self._loop is None:  # nothing has been read yet
            self.pages.news.is_ended = True
            return
        try:
            self._loop.call_soon_threadsafe(self._end)
        except RuntimeError:  # the loop has ended
            pass

    def _end(self) -> None:
        self.pages.news.end()
        for end in self.ends:
            if not end.done():
                end.set_result(STOP)

    def close(self) -> None:
        """End all threads."""
        self.pages.news.close()
        self.pages.readers.close()
        self.pages.log.cluster.close()

    def admit(self, request: Request, topic: str) -> None:
        """Raise `Problem` unless the client may read the topic, and has a request left."""
        self.gate.check(request.identity, Verb.CONSUME, topic)
        self.charge(request)

    def charge(self, request: Request) -> None:
        """Raise `Problem` unless the client has a request left."""
        self._loop = self._loop or asyncio.get_running_loop()
        self.gate.charge(request.connection, request.identity, 0)

    async def hold(self, size: Size) -> Ticket:
        """Hold the memory of an answer. Raises `Problem` 503."""
        return await self.pages.readers.memory.hold(size.bytes * _OVERHEAD)

    def count(self, request: Request, topic: str, page: Page) -> float:
        """Count what was read, also against the rate of the client. Returns after how long it may read again."""
        return self.count_bytes(request, topic, page.rows, page.size_bytes)

    def count_bytes(self, request: Request, topic: str, rows: int, size_bytes: int) -> float:
        """Count records of a topic that go to a client. Returns after how long it may read again."""
        self.counters.read(topic, rows, size_bytes)
        return self.gate.spend(request.connection, request.identity, size_bytes)

    def wish(self, query: Mapping[str, str], *, size_bytes: int = 0, is_stream: bool = False) -> Wish:
        """Return what the parameters say. A stream gets no larger pieces than usual. Raises `Problem`."""
        limits = self.limits
        most_bytes = "read_bytes" if is_stream else "read_most_bytes"
        most = whole(query, "max_bytes", getattr(limits, most_bytes), limit=most_bytes)
        rows = whole(query, "max_records", limits.records, limit="records")
        wait = whole(query, "max_wait_ms", int(limits.read_wait_seconds * 1000), least=0, limit="read_wait_seconds")
        return Wish(
            Size(most or min(size_bytes or limits.read_bytes, limits.read_bytes), rows or limits.read_records),
            (wait or 0) / 1000,
            isolation_of(query),
            shape_of(query),
        )


def whole(query: Mapping[str, str], name: str, most: int, *, least: int = _SMALLEST, limit: str = "") -> int | None:
    """Return a parameter that is a whole number, None if it is missing. Raises `Problem`."""
    text = query.get(name)
    if text is None:
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 19:
        raise Problem(400, f"{name} is {text[:50]!r}: write a whole number")
    number = int(text)
    if not least <= number <= most:
        raise Problem(400, f"{name} is {number:,}; accepted are {least:,} to {most:,}", limit=limit)
    return number


def offset_of(query: Mapping[str, str], name: str = "offset") -> int | None:
    """Return an offset, None if it is missing. Raises `Problem`."""
    return whole(query, name, _LARGEST_OFFSET, least=0)


def isolation_of(query: Mapping[str, str]) -> Isolation:
    """Return which records of transactions a client sees. Raises `Problem`."""
    text = query.get("isolation", "read_committed")
    if text not in ("read_committed", "read_uncommitted"):
        raise Problem(400, f"isolation is {text[:50]!r}; accepted are read_committed and read_uncommitted")
    return Isolation[text.upper()]


def shape_of(query: Mapping[str, str]) -> Shape:
    """Return how values are shown. Raises `Problem`."""
    text = query.get("values", "json")
    try:
        return Shape(text)
    except ValueError as error:
        raise Problem(
            400, f"values is {text[:50]!r}; accepted are {', '.join(each.value for each in Shape)}"
        ) from error


def time_of(text: str, name: str) -> datetime:
    """Return a time: seconds since 1970, or ISO 8601 with a zone. Raises `Problem`."""
    try:
        seconds = read_time(float(text), name)
    except ValueError:
        seconds = read_time(text[:50], name)
    return datetime.fromtimestamp(seconds, UTC)


def accepted(request: Request, *kinds: str) -> str:
    """Return the first of the content types that the client accepts. Raises `Problem` 406."""
    header = request.header(b"accept").lower()
    if not header:
        return kinds[0]
    ranges = [part.partition(";") for part in header.split(",")[:50]]
    wanted = [kind.strip() for kind, _, rest in ranges if rest.replace(" ", "") not in ("q=0", "q=0.0")]
    for want in wanted:
        for kind in kinds:
            if want in (kind, "*/*", "application/*" if kind.startswith("application/") else "text/*"):
                return kind
    raise Problem(406, f"none of {header[:100]!r} is served here; accepted are {', '.join(kinds)}", code=40601)


FORMS = (JSON, NDJSON[0], NDJSON[1], NDJSON[2], ARROW)
"""What a page can be, by content type."""
