"""The circumstances of one request, for its handler: the broker, the client, an injected error, and how to wait.

Handlers run under the cluster's only lock; `wait` alone releases it. Nothing here knows about sockets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from ottla.testing.fake.faults import Fault, RequestSeen
from ottla.testing.fake.log import Refused


class Hangup(Exception):
    """Close the connection without a response."""


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
        """Raise `Refused` if a fault covers this part of the request."""
        if self._fault is not None and self._fault.covers(topic, partition):
            raise Refused(self._fault.error, "injected by a test")

    def now(self) -> float:
        """Return the time in seconds, on the clock that `wait` uses."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Release the lock until something changes or the time is over. Raises `Hangup` when the broker goes down."""
        if not self._is_live():
            raise Hangup
        self._changed.wait(seconds)
        if not self._is_live():
            raise Hangup
