"""Producers that nobody closed: what happens to them when the program forks or ends.

Producers come in when they are made and go when they are closed. In a forked child they are useless from the first
send on; at the end of the program they get a last chance to deliver.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from typing import Protocol

from ottla.errors import OttlaError
from ottla.produce import delivery

_log = logging.getLogger(__name__)
_EXIT_SECONDS = 10.0


class Mortal(Protocol):
    """A producer, as far as its end is concerned."""

    def close(self, timeout: float | None = None) -> None: ...

    def disinherit(self) -> None:
        """In a forked child: what the parent's threads have begun is not ours."""


_alive: weakref.WeakSet[Mortal] = weakref.WeakSet()


def begins(producer: Mortal) -> None:
    """It was made."""
    _alive.add(producer)


def ends(producer: Mortal) -> None:
    """It is being closed."""
    _alive.discard(producer)


def _after_fork() -> None:
    delivery.after_fork()
    for producer in list(_alive):
        producer.disinherit()


def _at_exit() -> None:
    for producer in list(_alive):
        try:
            producer.close(_EXIT_SECONDS)
        except OttlaError as error:
            _log.error("at exit, a producer that was not closed: %s", error)


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
