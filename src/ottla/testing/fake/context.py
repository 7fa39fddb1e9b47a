"""What a handler is told besides the request: who asks whom, which error it must pretend, and how to wait.

Handlers run under the cluster's one lock; `wait` is the only thing that lets go of it. Nothing here knows
sockets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ottla.testing.fake.faults import Fault, RequestSeen
from ottla.testing.fake.log import Refused


class Hangup(Exception):
    """The connection ends here, without an answer."""


class Context:
    """The circumstances of one request."""

    def __init__(
        self,
        seen: RequestSeen,
        *,
        fault: Fault | None,
        changed: threading.Condition,
        is_live: Callable[[], bool],
    ) -> None:
        self.broker = seen.broker
        self.version = seen.version
        self.client_id = seen.client_id or ""
        self._fault = fault
        self._changed = changed
        self._is_live = is_live

    def check(self, topic: str | None = None, partition: int | None = None) -> None:
        """Refuse this part of the request if a fault says so."""
        if self._fault is not None and self._fault.covers(topic, partition):
            raise Refused(self._fault.error, "injected by a test")

    def now(self) -> float:
        """Seconds on the clock that `wait` counts by."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Let go of the lock until something changed or the time is over; `Hangup` when the broker goes down."""
        if not self._is_live():
            raise Hangup
        self._changed.wait(seconds)
        if not self._is_live():
            raise Hangup
