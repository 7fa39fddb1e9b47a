"""How long a node pauses after units that failed one after the other: what their handler needs may come back.

Without it, a database that is away for a minute would bring a whole backlog to the error list; with it, some units of
each node. Times come in and go out; nothing waits here.
"""

from __future__ import annotations

import threading

_FIRST_SECONDS = 0.1
_LONGEST_SECONDS = 10.0


class Backoff:
    """Grows with every failure and ends with the first success. Threads share it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._in_a_row = 0
        self._until = 0.0

    def failed(self, now: float) -> None:
        """A unit has failed."""
        with self._lock:
            seconds = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(self._in_a_row, 30))
            self._in_a_row += 1
            self._until = now + seconds

    def went_well(self) -> None:
        """A unit is done."""
        with self._lock:
            self._in_a_row = 0
            self._until = 0.0

    def seconds(self, now: float) -> float:
        """How long to wait from now on."""
        return max(0.0, self._until - now)
