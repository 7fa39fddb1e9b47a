"""`StopFlag`: a flag that threads wait for, and that a signal handler can set safely at any moment.

`threading.Event` is not safe there. A signal handler that calls `set` may interrupt the thread that holds the event's
lock, and an interrupt in the middle of `wait` can leave the event broken for all other threads.
"""

from __future__ import annotations

import threading


class StopFlag:
    """A flag that is set once and stays set."""

    def __init__(self) -> None:
        self._is_set = False
        self._gate = threading.Lock()
        """Held until the flag is set. Then each waiting thread acquires it and releases it for the next one."""
        self._gate.acquire()

    def is_set(self) -> bool:
        """Whether the flag is set."""
        return self._is_set

    def set(self) -> None:
        """Set the flag and wake all waiting threads."""
        self._is_set = True
        self._release()

    def wait(self, seconds: float) -> bool:
        """Wait until the flag is set, for at most `seconds`. Returns whether it is set."""
        if not self._is_set and seconds > 0 and self._gate.acquire(timeout=seconds):
            self._release()
        return self._is_set

    def _release(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:
            pass  # it is free already
