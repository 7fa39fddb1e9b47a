"""Polls on a background thread for programs that `await`.

A blocking poll function comes in; awaiting tasks get its results, one each. If a task is cancelled, the result it was
waiting for goes to the next task, so that no records are lost. Other blocking calls of the same object take turns with
the polls, so that tasks of one event loop may iterate, commit and close side by side. This module knows nothing about
records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from ottla.net.awaiting import ended, on_thread

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_log = logging.getLogger(__name__)
T = TypeVar("T")
R = TypeVar("R")


class AsyncPoll(Generic[T]):
    """Runs `poll` on one thread. A running poll that is woken by `wake` returns soon if it finds `is_hurried`."""

    def __init__(self, poll: Callable[[], T], *, wake: Callable[[], None]) -> None:
        self._poll = poll
        self.is_hurried = False
        self._wake = wake
        self._worker: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None
        self._future: Future[T] | None = None
        self._is_closed = False
        self._turns: dict[Future[None], AbstractEventLoop] = {}
        """Of the polls that tasks wait for and of other calls, in their order. The first one runs."""

    async def next(self) -> T | None:
        """Return the result of the next poll, or of one that a cancelled task left behind; None after `close`.

        Raises whatever the poll raises.
        """
        async with self._turn():
            while not self._is_closed:
                if self._worker is None:
                    self._worker = ThreadPoolExecutor(1, thread_name_prefix="ottla-poll")
                future = self._future
                if future is None:
                    self.is_hurried = len(self._turns) > 1
                    future = self._future = self._worker.submit(self._run)
                await ended(future)
                if self._future is future:  # Otherwise a call such as seek() came first: poll again.
                    self._future = None
                    return future.result()
            return None

    async def between(self, call: Callable[[], R], *, is_certain: bool = False) -> R:
        """Run another blocking call on a thread, between two polls. Raises what it raises.

        A task that is cancelled waits for the end of a call that has begun, and of one that `is_certain` anyway.
        """
        async with self._turn(is_certain=is_certain):
            return await on_thread(call)

    @asynccontextmanager
    async def _turn(self, *, is_certain: bool = False) -> AsyncIterator[None]:
        from asyncio import CancelledError, get_running_loop

        cancelled: CancelledError | None = None
        turn: Future[None] = Future()
        # A task of a loop that was closed under it never goes on.
        self._turns = {each: loop for each, loop in self._turns.items() if not loop.is_closed()}
        self._turns[turn] = get_running_loop()
        try:
            self._hurry()
            while (first := next(iter(self._turns))) is not turn:
                try:
                    await ended(first)
                except CancelledError as error:
                    if not is_certain:
                        raise
                    cancelled = error
            yield
        finally:
            self._turns.pop(turn, None)
            turn.set_result(None)
        if cancelled is not None:
            raise cancelled

    def _hurry(self) -> None:
        future = self._future
        if future is not None and not future.done():
            self.is_hurried = True
            self._wake()

    def settle(self, timeout: float) -> None:
        """Stop a running poll before another call. The next poll returns the records that it got."""
        future = self._future
        if future is None or threading.current_thread() is self._thread:
            return
        if not future.done():
            self._hurry()
            if not wait([future], timeout).done:
                return
        self._future = None
        error = future.exception()
        if error is not None:
            _log.warning("a background poll failed after its task was cancelled: %s", error)

    def close(self) -> None:
        """Stop the thread. No poll may be running."""
        self._is_closed = True
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)

    def _run(self) -> T:
        self._thread = threading.current_thread()
        return self._poll()
