"""Polls on a background thread for programs that `await`.

A blocking poll function comes in; awaiting tasks get its results, one each. If a task is cancelled, the result it was
waiting for goes to the next task, so that no records are lost. This module knows nothing about records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from ottla.net.awaiting import ended

_log = logging.getLogger(__name__)
T = TypeVar("T")


class AsyncPoll(Generic[T]):
    """Runs `poll` on one thread. `hurry` makes a running poll return soon."""

    def __init__(self, poll: Callable[[], T], *, hurry: Callable[[], None]) -> None:
        self._poll = poll
        self._hurry = hurry
        self._worker: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None
        self._future: Future[T] | None = None

    async def next(self) -> T:
        """Return the result of the next poll, or of one that a cancelled task left behind.

        Raises whatever the poll raises.
        """
        while True:
            if self._worker is None:
                self._worker = ThreadPoolExecutor(1, thread_name_prefix="ottla-poll")
            future = self._future = self._future or self._worker.submit(self._run)
            await ended(future)
            if self._future is future:  # Otherwise another task took this result.
                self._future = None
                return future.result()

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
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)

    def _run(self) -> T:
        self._thread = threading.current_thread()
        return self._poll()
