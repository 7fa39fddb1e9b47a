"""Ends the waits of threads that are just opening a connection, when their client is closed.

Whoever is about to wait says how that wait can be ended; `happen` ends all of them, and whatever is tried afterwards
fails at once. It waits for nothing itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from ottla.errors import ConnectionLost, OttlaError


class Interrupt:
    """Happens at most once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may come in the middle of a call of its thread
        self._stops: dict[object, Callable[[], None]] = {}
        self._happened = False
        self._pid = os.getpid()

    @contextlib.contextmanager
    def ends(self, stop: Callable[[], None]) -> Iterator[None]:
        """While the block runs, the interrupt calls `stop`; errors of a block that was ended are ConnectionLost.

        `stop` comes from another thread and must not wait. It is never called after the block was left, so that
        the block's socket can be closed then.
        """
        wait = object()
        with self._lock:
            if self._happened:
                raise client_closed()
            self._stops[wait] = stop
        try:
            yield
        except (OSError, OttlaError) as exc:
            if self._happened:
                raise client_closed() from exc
            raise
        finally:
            with self._lock:
                del self._stops[wait]

    def happen(self) -> None:
        """Ends every wait, now and in future."""
        with self._lock:
            self._happened = True
            # After fork() the sockets are the parent's, and so are the threads that wait on them.
            stops = list(self._stops.values()) if os.getpid() == self._pid else []
            for stop in stops:
                stop()


def client_closed() -> ConnectionLost:
    """What every use of a closed client gets."""
    return ConnectionLost("this client", "it was closed")
