"""Polls on a thread of its own for programs that `await`: what a cancelled wait would have got stays for the next one.

A function that polls comes in; its results go to whoever waits, one after the other. It knows nothing of records.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

_log = logging.getLogger(__name__)
T = TypeVar("T")


class AsyncPoll(Generic[T]):
    """`hurry` makes a poll that is under way return soon."""

    def __init__(self, poll: Callable[[], T], *, hurry: Callable[[], None]) -> None:
        self._poll = poll
        self._hurry = hurry
        self._worker: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None
        self._ahead: Future[T] | None = None

    async def next(self) -> T:
        """What the next poll brings, or the one that a cancelled wait has left."""
        while True:
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="ottla-poll")
            ahead = self._ahead = self._ahead or self._worker.submit(self._run)
            await _end_of(ahead)
            if self._ahead is ahead:  # else another task has it
                self._ahead = None
                return ahead.result()

    def settle(self, timeout: float) -> None:
        """The program does something else: a poll that is under way ends, and what it brought is for later."""
        ahead = self._ahead
        if ahead is None or threading.current_thread() is self._thread:
            return
        if not ahead.done():
            self._hurry()
            if not wait([ahead], timeout).done:
                return
        self._ahead = None
        error = ahead.exception()
        if error is not None:
            _log.warning("nobody waited for this any more: %s", error)

    def close(self) -> None:
        """Ends the thread; nothing may be under way."""
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)

    def _run(self) -> T:
        self._thread = threading.current_thread()
        return self._poll()


async def _end_of(future: Future[T]) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not ended.done():
            ended.set_result(None)

    def call(_: Future[T]) -> None:
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the loop was closed meanwhile: nobody waits any more
            pass

    future.add_done_callback(call)
    await ended
