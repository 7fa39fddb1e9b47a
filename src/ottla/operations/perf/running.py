"""What all drivers share: threads that do a part each and end together, and how far a run is.

Functions come in; errors of threads are raised in the caller's thread. Nothing here knows what is measured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ottla.operations.perf.meter import Meter

_NAP = 0.05
_JOIN_SECONDS = 30.0
_ABORT_SECONDS = 2.0
"""How long to wait for threads after an exception in the thread that waits, such as a second Ctrl-C."""

IsStopped = Callable[[], bool]


@dataclass(slots=True)
class Progress:
    """How far a run is, for a live line. Another thread reads it at any moment."""

    phase: str = "connecting"
    meter: Meter | None = None
    seconds: float | None = None
    """How long the run is meant to take."""
    records: int | None = None
    """How many records it is meant to count."""

    def share(self, now: float) -> float:
        """Return which share of the run is done, from 0 to 1."""
        if self.meter is None:
            return 0.0
        shares = [0.0]
        if self.seconds:
            shares.append((now - self.meter.began) / self.seconds)
        if self.records:
            shares.append(self.meter.records / self.records)
        return min(1.0, max(shares))


def together(parts: Sequence[Callable[[IsStopped], None]], *, name: str, is_stopped: IsStopped) -> None:
    """Run each part in a thread of its own, until all have ended. The first error ends the others and is raised."""
    errors: list[BaseException] = []
    over = threading.Event()

    def stopped() -> bool:
        return over.is_set() or is_stopped()

    def run(part: Callable[[IsStopped], None]) -> None:
        try:
            part(stopped)
        except BaseException as error:  # raised again below, in the thread that waits
            errors.append(error)
            over.set()

    threads = [threading.Thread(target=run, args=(part,), name=f"ottla-perf-{name}", daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    patience = _ABORT_SECONDS
    try:
        while any(thread.is_alive() for thread in threads) and not errors:
            time.sleep(_NAP / 5)
        patience = _JOIN_SECONDS
    finally:
        over.set()
        deadline = time.monotonic() + patience
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
    if errors:
        raise errors[0]


def nap(seconds: float) -> None:
    """Sleep for a short time, so that a signal is noticed soon."""
    time.sleep(min(seconds, _NAP))
