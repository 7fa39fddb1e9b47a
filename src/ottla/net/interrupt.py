"""Lets `close` of a client end the waits of threads that are opening a connection.

A thread that is about to wait registers how to end that wait. `happen` ends all registered waits, and later ones fail
at once. It never waits itself.
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
        self._lock = threading.RLock()  # reentrant: a signal handler may interrupt a call of its own thread
        self._stops: dict[object, Callable[[], None]] = {}
        self._happened = False
        self._pid = os.getpid()

    @contextlib.contextmanager
    def ends(self, stop: Callable[[], None]) -> Iterator[None]:
        """Register `stop` while the block runs. If the interrupt ends the block, its error becomes `ConnectionLost`.

        `stop` is called from another thread and must not block. It is never called after the block has ended, so the
        block's socket may be closed then.
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
        """End every wait, now and in the future."""
        with self._lock:
            self._happened = True
            # After fork() the sockets, and the threads that wait on them, belong to the parent.
            stops = list(self._stops.values()) if os.getpid() == self._pid else []
            for stop in stops:
                stop()


def client_closed() -> ConnectionLost:
    """Return the error for every use of a closed client."""
    return ConnectionLost("this client", "it was closed")
