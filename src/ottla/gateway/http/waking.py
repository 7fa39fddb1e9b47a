"""Wakes tasks of an event loop from the threads that deliver: once for all that are due, not once for each."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any


class Waker:
    """Resolves futures of one loop. `wake` may be called on any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: deque[asyncio.Future[None]] = deque()
        self._is_called = False

    def wake(self, future: asyncio.Future[None]) -> None:
        """Resolve a future soon. One that is cancelled or resolved already is no error."""
        self._due.append(future)
        if not self._is_called:
            self._is_called = True
            try:
                self._loop.call_soon_threadsafe(self._run)
            except RuntimeError:  # the loop has ended: nothing waits any more
                pass

    def _run(self) -> None:
        self._is_called = False  # before looking: what is added from here on calls again
        while self._due:
            future = self._due.popleft()
            if not future.done():
                future.set_result(None)

    async def done(self, delivery: Any, seconds: float) -> bool:
        """Wait until a delivery is done, at most for some seconds. Returns whether it is."""
        if delivery.done:
            return True
        future: asyncio.Future[None] = self._loop.create_future()
        delivery.add_done_callback(lambda _: self.wake(future))
        timer = self._loop.call_later(seconds, _expire, future)
        try:
            await future
        finally:
            timer.cancel()
        return bool(delivery.done)


def _expire(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
