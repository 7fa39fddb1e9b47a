"""Holds back the losses of a prefetched range until the range is read.

The events of a prefetch come in and are forwarded to the reader's hub; a `RangeLost` only when the range is read. In a
module of its own, because `reader.py` is imported by most programs and the event values take time to import.
"""

from __future__ import annotations

from collections import deque

from ottla.events.event import Event
from ottla.events.hub import Events
from ottla.events.reads import RangeLost


class DeferredLosses:
    """A sink that forwards the events of a prefetch. Losses wait until the range is read, or are dropped."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._held_back: deque[RangeLost] = deque()
        self._is_read = False

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RangeLost):
            self._events.emit(event)
            return
        self._held_back.append(event)
        if self._is_read:
            self._forward()

    def release(self) -> None:
        """Forward losses from now on: the range is being read."""
        self._is_read = True
        self._forward()

    def _forward(self) -> None:
        while self._held_back:
            try:
                event = self._held_back.popleft()
            except IndexError:
                return  # another thread has taken it
            self._events.emit(event)
