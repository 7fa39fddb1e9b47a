"""When each record of a fixed rate is due. Latency is counted from that moment, not from the call that sent it.

A client that stalls for a second sends the records of that second late, and each of them has waited: counting from the
call would hide that (coordinated omission). Times come in and go out as seconds of one clock. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Pace:
    """Records at an even rate from a moment on."""

    rate: float
    """Records per second."""
    began: float

    def due(self, now: float) -> int:
        """Return how many records are due until now."""
        return max(0, int((now - self.began) * self.rate) + 1) if now >= self.began else 0

    def wait(self, index: int, now: float) -> float:
        """Return the seconds until a record is due, 0 if it already is."""
        return max(0.0, self.began + index / self.rate - now)

    def intended(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Return when the records from `start` to before `stop` are due, in nanoseconds of the clock."""
        return np.int64(self.began * 1e9) + np.round(np.arange(start, stop) * (1e9 / self.rate)).astype(np.int64)
