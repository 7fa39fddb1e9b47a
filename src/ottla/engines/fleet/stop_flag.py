"""A flag that threads wait for, and that anybody may set at any moment: a signal handler, or whoever is interrupted.

`threading.Event` cannot be that. It has a lock that the thread holds which a signal interrupts, and an interrupt in the
middle of its `wait` can leave it broken for all others.
"""

from __future__ import annotations

import threading


class StopFlag:
    """Is set once, and stays so."""

    def __init__(self) -> None:
        self._is_set = False
        self._bell = threading.Lock()
        """Free when it was set: those who wait take it one after the other, and hand it on."""
        self._bell.acquire()

    def is_set(self) -> bool:
        """Whether it was set."""
        return self._is_set

    def set(self) -> None:
        """Those who wait go on."""
        self._is_set = True
        self._ring()

    def wait(self, seconds: float) -> bool:
        """Whether it was set, at the latest after so many seconds."""
        if not self._is_set and seconds > 0 and self._bell.acquire(timeout=seconds):
            self._ring()
        return self._is_set

    def _ring(self) -> None:
        try:
            self._bell.release()
        except RuntimeError:
            pass  # it is free
