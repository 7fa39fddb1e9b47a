"""The memory that a producer may use, and those who wait for room in it.

Bytes are added when records are handed over and taken back when they are decided or on disk; a caller who wants to
hand over more waits while it is used up. It knows nothing of batches. It holds no lock: those who wait ask whether the
producer is usable, which may lead anywhere, also to the thread that gives bytes back.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ottla import events as happened
from ottla.errors import BufferFull
from ottla.events import Events
from ottla.net.waiting import Total, Waiters
from ottla.produce.delivery import is_sender_thread
from ottla.produce.options import Buffering, WhenFull

_TELL_EVERY = 1.0
"""Seconds: a buffer that is always full is a normal way to go as fast as the brokers."""


class Budget:
    """Bytes in use, of those allowed."""

    def __init__(self, buffering: Buffering, *, holding: Callable[[], str], events: Events) -> None:
        self._events = events
        self.buffering = buffering
        self._used = Total()
        self._waiters = Waiters()
        self._told_at = -_TELL_EVERY
        self._holding = holding

    @property
    def used(self) -> int:
        """Bytes in use."""
        return self._used.value

    @property
    def waiting(self) -> int:
        """How many callers wait for room."""
        return len(self._waiters)

    @property
    def full(self) -> bool:
        """Whether callers have to wait."""
        return self.used >= self.buffering.bytes

    def _has_room(self) -> bool:
        return not self.full

    def add(self, size_bytes: int) -> None:
        """So many more bytes are in use; negative for fewer."""
        self._used.add(size_bytes)
        if size_bytes < 0 and self._waiters:
            self._waiters.notify_all()

    def wait(self, usable: Callable[[], None]) -> None:
        """Returns when there is room; raises BufferFull when that takes too long, or whatever `usable` raises."""
        if self._has_room():
            return
        options = self.buffering
        started = time.monotonic()
        # A callback runs on the thread that makes room: it would wait for itself.
        refuses = options.when_full is WhenFull.REFUSE or is_sender_thread()
        limit = started if refuses else started + options.wait
        if self._events.active and started - self._told_at >= _TELL_EVERY:
            self._told_at = started
            self._events.emit(happened.BufferFull(self.used, options.bytes, self._holding()))
        while True:
            usable()  # also when the time is up: why there is no room may have become known meanwhile
            if (left := limit - time.monotonic()) <= 0:
                break
            self._waiters.wait(min(left, 1.0), unless=self._has_room)
            if self._has_room():
                return
        holding = self._holding()
        seconds = time.monotonic() - started
        raise BufferFull(waiting_bytes=self.used, limit_bytes=options.bytes, seconds=seconds, holding=holding)

    def wake(self) -> None:
        """Those who wait look again whether the producer is usable."""
        self._waiters.notify_all()
