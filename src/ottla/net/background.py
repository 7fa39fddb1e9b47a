"""Things that block (connecting, asking for metadata, reading a log) done beside a loop, one thread each.

A function comes in under a key; its result or error goes back to the loop's own thread. Errands are few and rare, and
no two with the same key run at once.
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
"""A spool may hold batches of a thousand partitions, each of which has a log to be read."""


class BackgroundTasks:
    """Runs background and brings back what came of them."""

    def __init__(self, *, wake: Callable[[], None], name: str) -> None:
        self._wake = wake
        self._name = name
        self._running: dict[Hashable, threading.Thread] = {}
        self._queued: dict[Hashable, tuple[Callable[[], None], Callable[[OttlaError], None]]] = {}
        self._back: deque[tuple[Hashable, threading.Thread, Callable[[], None]]] = deque()

    def busy(self, key: Hashable) -> bool:
        """Whether an errand under this key is on its way."""
        return key in self._running or key in self._queued

    def run(
        self,
        key: Hashable,
        errand: Callable[[], T],
        *,
        done: Callable[[T], None],
        failed: Callable[[OttlaError], None],
    ) -> bool:
        """Starts it, or queues it behind others of its kind (the first word of its key), unless one with that key is
        on its way. `done` or `failed` is called by `collect`."""
        if self.busy(key):
            return False

        def go() -> None:
            try:
                result: Any = errand()
                back: Callable[[], None] = lambda: done(result)  # noqa: E731
            except OttlaError as error:
                reason = error
                back = lambda: failed(reason)  # noqa: E731
            except BaseException as error:  # a bug, or a user's function that exits: it must be seen
                _log.exception("%s: %s failed in a way that it should not", self._name, key)
                wrapped = OttlaError(f"unexpected {type(error).__name__}: {error}")
                wrapped.__cause__ = error
                back = lambda: failed(wrapped)  # noqa: E731
            self._back.append((key, threading.current_thread(), back))
            self._wake()

        self._queued[key] = go, failed
        self._start_queued()
        return True

    def _start_queued(self) -> None:
        for key, (go, failed) in list(self._queued.items()):
            if sum(_kind(other) == _kind(key) for other in self._running) >= _MOST_OF_A_KIND:
                continue
            thread = threading.Thread(target=go, name=f"{self._name}-errand", daemon=True)
            self._running[key] = thread
            del self._queued[key]
            try:
                thread.start()
            except RuntimeError as error:  # the system gives no more threads: the loop must not end of that
                refused = OttlaError(f"no thread could be started: {error}")
                self._back.append((key, thread, partial(failed, refused)))

    def collect(self) -> None:
        """Calls back for what is finished; on the thread of the loop."""
        while self._back:
            key, thread, back = self._back[0]
            if self._running.get(key) is not thread:  # forgotten, or it was interrupted here the last time
                self._back.popleft()
                continue
            if thread.ident is not None:
                thread.join()
            del self._running[key]
            self._start_queued()
            self._back.popleft()
            back()

    def forget(self) -> None:
        """Whatever is under way or queued counts no more: nothing is called back for it."""
        self._running.clear()
        self._queued.clear()

    def join(self, deadline: Deadline) -> None:
        """Waits for background that are under way; what they bring is dropped."""
        for thread in list(self._running.values()):
            if thread.ident is not None:
                thread.join(deadline.remaining())


def _kind(key: Hashable) -> object:
    return key[0] if isinstance(key, tuple) else key
