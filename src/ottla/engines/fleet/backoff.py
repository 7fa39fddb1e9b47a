"""`Backoff`: how long a node pauses after several units have failed in a row.

Without it, a database outage of one minute would move a whole backlog to the error list; with it, only a few units per
node. Times come in and go out; nothing waits here.
"""

from __future__ import annotations

import threading

_FIRST_SECONDS = 0.1
"""The pause after the first failure."""
_LONGEST_SECONDS = 10.0


class Backoff:
    """Doubles with every failure and ends with the first success. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._in_a_row = 0
        self._until = 0.0

    def failed(self, now: float) -> None:
        """Record that a unit has failed."""
        with self._lock:
            # The exponent is bounded: a float overflows after 1,024 failures.
            seconds = min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(self._in_a_row, 30))
            self._in_a_row += 1
            self._until = now + seconds

    def went_well(self) -> None:
        """Record that a unit is done."""
        with self._lock:
            self._in_a_row = 0
            self._until = 0.0

    def seconds(self, now: float) -> float:
        """Return how long to wait before taking the next unit."""
        return max(0.0, self._until - now)
