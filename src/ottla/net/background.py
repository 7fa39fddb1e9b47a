"""Runs blocking work (connecting, metadata requests, reading a log) for a loop, one thread per task.

A function comes in under a key, and its result or error goes back to the loop's own thread. Tasks are few and rare, and
no two with the same key run at the same time. The loop itself never blocks on a task.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

from ottla.errors import OttlaError
from ottla.net.deadline import Deadline

_log = logging.getLogger(__name__)
T = TypeVar("T")
_MOST_OF_A_KIND = 8
"""Bounds the threads: a spool may hold batches of a thousand partitions, each with a log to read."""


class BackgroundTasks:
    """Runs tasks in threads and delivers their results to the loop."""

    def __init__(self, *, wake: Callable[[], None], name: str) -> None:
        """`wake` is called from a task's thread when its result is ready to be collected."""
        self._wake = wake
        self._name = name
        self._running: dict[Hashable, threading.Thread] = {}
        self._queued: dict[Hashable, tuple[Callable[[], None], Callable[[OttlaError], None]]] = {}
        self._finished: deque[tuple[Hashable, threading.Thread, Callable[[], None]]] = deque()

    def busy(self, key: Hashable) -> bool:
        """Whether a task with this key is running or queued."""
        return key in self._running or key in self._queued

    def run(
        self,
        key: Hashable,
        task: Callable[[], T],
        *,
        done: Callable[[T], None],
        failed: Callable[[OttlaError], None],
    ) -> bool:
        """Start the task, or queue it behind others of its kind (the first element of its key).

        Returns False, and does nothing, if a task with that key is running or queued. `collect` calls `done` or
        `failed`.
        """
        if self.busy(key):
            return False

        def work() -> None:
            try:
                result: Any = task()
                deliver: Callable[[], None] = lambda: done(result)  # noqa: E731
            except OttlaError as error:
                reason = error
                deliver = lambda: failed(reason)  # noqa: E731
            except BaseException as error:  # a bug, or a user's function that exits: report it
                _log.exception("%s: background task %s failed unexpectedly; this is a bug", self._name, key)
                wrapped = OttlaError(f"unexpected {type(error).__name__}: {error}")
                wrapped.__cause__ = error
                deliver = lambda: failed(wrapped)  # noqa: E731
            self._finished.append((key, threading.current_thread(), deliver))
            self._wake()

        self._queued[key] = work, failed
        self._start_queued()
        return True

    def _start_queued(self) -> None:
        for key, (work, failed) in list(self._queued.items()):
            if sum(_kind(other) == _kind(key) for other in self._running) >= _MOST_OF_A_KIND:
                continue
            thread = threading.Thread(target=work, name=f"{self._name}-task", daemon=True)
            self._running[key] = thread
            del self._queued[key]
            try:
                thread.start()
            except RuntimeError as error:  # the system is out of threads: that must not end the loop
                refused = OttlaError(f"cannot start a thread: {error}")
                self._finished.append((key, thread, partial(failed, refused)))

    def collect(self) -> None:
        """Call `done` or `failed` of the finished tasks. Only for the loop's thread."""
        while self._finished:
            key, thread, deliver = self._finished[0]
            if self._running.get(key) is not thread:  # forgotten, or Ctrl-C interrupted this method the last time
                self._finished.popleft()
                continue
            if thread.ident is not None:
                thread.join()
            del self._running[key]
            self._start_queued()
            self._finished.popleft()
            deliver()

    def forget(self) -> None:
        """Drop everything that is running or queued: neither `done` nor `failed` is called for it."""
        self._running.clear()
        self._queued.clear()

    def join(self, deadline: Deadline) -> None:
        """Wait for the running tasks and drop their results."""
        for thread in list(self._running.values()):
            if thread.ident is not None:
                thread.join(deadline.remaining())


def _kind(key: Hashable) -> object:
    return key[0] if isinstance(key, tuple) else key
