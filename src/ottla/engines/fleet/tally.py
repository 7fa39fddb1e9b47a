"""`Tally`: counts what a node has done since it started, for its reports about itself.

Ended units come in, numbers go out.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from ottla.engines.fleet.held_units import Ending
from ottla.engines.fleet.unit import Unit


class Tally:
    """The counters of one node. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._endings: dict[str, int] = {}
        self._records = 0
        self._bytes = 0
        self._started = time.time()

    def count(self, unit: Unit, ending: Ending) -> None:
        """Count a unit that has ended."""
        with self._lock:
            self._endings[ending.value] = self._endings.get(ending.value, 0) + 1
            if ending in (Ending.DONE, Ending.PART):  # what failed or was lost is read again by another attempt
                self._records += unit.records_read
                self._bytes += unit.bytes_read

    def report(self) -> dict[str, Any]:
        """Return the counters as plain values."""
        with self._lock:
            return {
                "started": self._started,
                "units": dict(self._endings),
                "records": self._records,
                "bytes": self._bytes,
            }
