"""Calls functions on an event loop from the threads that deliver: wakes it once for all that are due, not for each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any


class Waker:
    """Calls functions on one loop. `call` may be called on any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._due: deque[Callable[[], None]] = deque()
        self._is_called = False

    def call(self, function: Callable[[], None]) -> None:
        """Call a function on the loop soon."""
        self._due.append(function)
        if not self._is_called:
            self._is_called = True
            try:
                self.loop.call_soon_threadsafe(self._run)
            except RuntimeError:  # the loop has ended: nothing waits any more
                pass

    def _run(self) -> None:
        self._is_called = False  # before looking: what is added from here on calls again
        while self._due:
            self._due.popleft()()

    async def done(self, delivery: Any, seconds: float) -> bool:
        """Wait until a delivery is done, at most for some seconds. Returns whether it is."""
        if delivery.done:
            return True
        future: asyncio.Future[None] = self.loop.create_future()
        delivery.add_done_callback(lambda _: self.call(lambda: _resolve(future)))
        timer = self.loop.call_later(seconds, _resolve, future)
        try:
            await future
        finally:
            timer.cancel()
        return bool(delivery.done)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():  # else it is resolved already, or cancelled
        future.set_result(None)
