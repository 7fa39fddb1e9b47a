"""Producers that nobody closed: what happens to them when the program forks or ends.

Producers come in when they are made and go when they are closed. In a forked child they are useless from the first
send on; at the end of the program they get a last chance to deliver, all at the same time.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from typing import Protocol

from ottla.errors import OttlaError
from ottla.net.deadline import Deadline
from ottla.produce import delivery

_log = logging.getLogger(__name__)
_EXIT_SECONDS = 10.0
"""For all of them together."""


class Closeable(Protocol):
    """A producer, as far as its end is concerned."""

    def hurry(self) -> None:
        """Sends what it has, and waits for nothing."""

    def close(self, timeout: float | None = None) -> None: ...

    def disinherit(self) -> None:
        """In a forked child: what the parent's threads have begun is not ours."""


_alive: weakref.WeakSet[Closeable] = weakref.WeakSet()
_watched_process = 0
"""The child of `multiprocessing` whose end we hear of."""


def begins(producer: Closeable) -> None:
    """It was made."""
    _alive.add(producer)
    _watch_process()


def ends(producer: Closeable) -> None:
    """It was closed."""
    _alive.discard(producer)


def _watch_process() -> None:
    """Children of `multiprocessing` that were forked do not run `atexit`, but finalizers of its own."""
    global _watched_process
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _watched_process == os.getpid():
        return
    from multiprocessing.util import Finalize

    Finalize(None, at_exit, exitpriority=0)
    _watched_process = os.getpid()


def _after_fork() -> None:
    delivery.after_fork()
    for producer in list(_alive):
        producer.disinherit()
    _alive.clear()


def at_exit() -> None:
    """Closes those that are left, under one deadline."""
    deadline = Deadline.after(_EXIT_SECONDS)
    producers = list(_alive)
    for producer in producers:  # so that none waits for another that cannot deliver
        producer.hurry()
    for producer in producers:
        try:
            producer.close(deadline.remaining())
        except OttlaError as error:
            _log.error("at exit, a producer that was not closed: %s", error)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(at_exit)
