"""Reads a topic or a partition on and on: each step returns what came, or that nothing came for a while.

A cursor comes in; rendered pages with the cursors behind them go out, each with the memory that it holds. While nothing
comes it holds neither a thread nor memory, and waits in `News`. Brokers that are away are waited for; what no waiting
cures is a `Problem`. It knows no HTTP and no client.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

import pyarrow as pa

from ottla.errors import OttlaError
from ottla.fetch.cursor import END_OF_LOG
from ottla.gateway.http.problems import Problem, problem_of
from ottla.gateway.reading.frames import Frames
from ottla.gateway.reading.log_reader import Place, Size, Taken
from ottla.gateway.reading.pages import Page, Pages, waited_for
from ottla.gateway.reading.places import Cursor
from ottla.gateway.reading.readers import Ticket
from ottla.model import Isolation, TopicPartition

T = TypeVar("T")
LOOK_SECONDS = 15.0
"""How often a stream looks at the topic itself: it may have more partitions, or be another one of the same name."""
_SHORTEST_NAP, _LONGEST_NAP = 0.1, 2.0
_UNAVAILABLE = 503
STOP = "stop"
"""What ends a stream in the middle of a read: the gateway stops."""
Hold = Callable[[Size], Awaitable[Ticket]]


class Source(NamedTuple):
    """What a stream reads."""

    topic: str
    partition: int | None
    """None for all of them."""
    size: Size
    """Of one page."""
    isolation: Isolation


class Part(NamedTuple):
    """Records on their way to a client. The memory is free once the ticket is."""

    page: Page
    ticket: Ticket


class Stopped(Exception):
    """The stream was ended from outside in the middle of a read."""


class Follower:
    """One stream. For one event loop."""

    def __init__(
        self, pages: Pages, source: Source, cursor: Cursor, *, frames: Frames, hold: Hold, end: asyncio.Future[str]
    ) -> None:
        """`end` is done when the stream is to end; then a wait ends, and a read whose client is still there."""
        self.cursor = cursor
        self.reason = ""
        """Why nothing comes, if there is a reason besides that there is nothing."""
        self._pages = pages
        self._source = source
        self._frames = frames
        self._hold = hold
        self.end = end
        self._has_more = True
        self._failures = 0
        self._retry_at = 0.0
        self._look_at = 0.0

    @property
    def topic(self) -> str:
        """The topic that it reads."""
        return self._source.topic

    async def read(self) -> Part | None:
        """Read once. None if there is no record. Raises `Problem` and `OttlaError`."""
        ticket = await self._unless_ended(self._hold(self._source.size))
        try:
            page = await self._unless_ended(self._read())
            ticket.resize(len(page.body))
        except BaseException:
            ticket.free()
            raise
        self._has_more = page.has_more and page.cursor != self.cursor
        self.cursor = page.cursor
        self.reason = f"no leader of partition {', '.join(map(str, page.missing))} answers" if page.missing else ""
        self._failures = 0
        self._look_at = time.monotonic() + LOOK_SECONDS
        if page.rows:
            return Part(page, ticket)
        ticket.free()
        return None

    async def next(self, seconds: float) -> Part | None:
        """Return what comes next, None if nothing comes within some seconds, or the stream is to end.

        Raises `Problem` if the stream cannot go on.
        """
        until = time.monotonic() + seconds
        while not self.end.done() and not self.cursor.is_over:
            if not self._has_more and not await self._wait(until):
                return None
            try:
                part = await self.read()
            except (Problem, OttlaError, TimeoutError) as error:
                self._note(error)
                continue
            except Stopped:
                return None
            if part is not None:
                return part
        return None

    async def pause(self, seconds: float) -> None:
        """Wait, unless the stream is to end."""
        await asyncio.wait((self.end,), timeout=max(0.0, seconds))

    async def _wait(self, until: float) -> bool:
        """Wait until it is time to read. Returns whether it is."""
        now = time.monotonic()
        if self._failures:
            await self.pause(min(until, self._retry_at) - now)
            return self._retry_at <= until and not self.end.done()
        places = waited_for(self._source.topic, self.cursor)
        waiting = asyncio.ensure_future(
            self._pages.news.wait(places, self._source.isolation, min(until, self._look_at) - now)
        )
        try:
            await asyncio.wait((waiting, self.end), return_when=asyncio.FIRST_COMPLETED)
            has_news = waiting.done() and waiting.result()
        finally:
            waiting.cancel()
        return not self.end.done() and (has_news or time.monotonic() >= self._look_at)

    def _note(self, error: Exception) -> None:
        """Note why nothing can be read now. Raises `Problem` if waiting does not help."""
        problem = problem_of(error)
        if problem.status != _UNAVAILABLE and not isinstance(error, TimeoutError):
            raise problem from error
        self.reason = problem.text
        self._has_more = False
        self._failures += 1
        self._retry_at = time.monotonic() + min(_LONGEST_NAP, _SHORTEST_NAP * 2.0 ** min(self._failures, 10))

    async def _read(self) -> Page:
        topic, partition, size, isolation = self._source
        frames = self._frames
        if partition is None:

            def render(batches: Sequence[pa.RecordBatch], before: Cursor, after: Cursor) -> bytes:
                return frames.records(batches, before, after) if batches else b""

            return await self._pages.of_topic(topic, self.cursor, size, render, isolation=isolation, wait_seconds=0.0)
        before = self.cursor

        def render_partition(taken: Taken, after: Cursor) -> bytes:
            return frames.records(taken.batches, before, after) if taken.batches else b""

        stop = before.stops.get(partition, END_OF_LOG)
        place = Place(TopicPartition(topic, partition), before.offsets[partition], before.topic_id, stop)
        return await self._pages.of_partition(place, size, render_partition, isolation=isolation, wait_seconds=0.0)

    async def _unless_ended(self, work: Awaitable[T]) -> T:
        """Wait for a read. One whose client has gone is waited for, too: it has the thread in any case."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self.end), return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and self.end.result() == STOP:
                raise Stopped
            return await task
        finally:
            task.cancel()
