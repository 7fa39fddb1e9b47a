"""Producers that were not closed: what happens to them when the program forks or ends.

Producers are registered when they are made and unregistered when they are closed. In a forked child they raise from the
first send on. At the end of the program they get a last chance to deliver, all at the same time.
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
"""For all producers together."""


class Closeable(Protocol):
    """A producer, as this module sees it."""

    def hurry(self) -> None:
        """Send everything now without waiting."""

    def close(self, timeout: float | None = None) -> None: ...

    def disinherit(self) -> None:
        """Forget what the parent's threads have begun, in a forked child."""


_alive: weakref.WeakSet[Closeable] = weakref.WeakSet()
_finalized_pid = 0
"""The `multiprocessing` child in which `at_exit` is registered as a finalizer."""


def register(producer: Closeable) -> None:
    """Add a producer that was made."""
    _alive.add(producer)
    _finalize_with_process()


def unregister(producer: Closeable) -> None:
    """Remove a producer that was closed."""
    _alive.discard(producer)


def _finalize_with_process() -> None:
    """Register `at_exit` in `multiprocessing` children: forked ones run its finalizers, but not `atexit`."""
    global _finalized_pid
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _finalized_pid == os.getpid():
        return
    from multiprocessing.util import Finalize

    Finalize(None, at_exit, exitpriority=0)
    _finalized_pid = os.getpid()


def _after_fork() -> None:
    """Make all producers of the parent unusable, in the child."""
    delivery.after_fork()
    for producer in list(_alive):
        producer.disinherit()
    _alive.clear()


def at_exit() -> None:
    """Close all producers that are left, under one deadline."""
    deadline = Deadline.after(_EXIT_SECONDS)
    producers = list(_alive)
    for producer in producers:  # all at once, so that none waits for another that cannot deliver
        producer.hurry()
    for producer in producers:
        try:
            producer.close(deadline.remaining())
        except OttlaError as error:
            _log.error("a producer that was not closed before exit: %s", error)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(at_exit)
