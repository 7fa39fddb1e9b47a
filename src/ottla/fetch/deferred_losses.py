"""Events of a range that is fetched before anybody reads it: a loss is told only when somebody does.

Apart from `reader.py`, which most programs import: the events are values of their own that take time to import.
"""

from __future__ import annotations

from collections import deque

from ottla.events.event import Event
from ottla.events.hub import Events
from ottla.events.reading import RangeLost


class DeferredLosses:
    """A sink that passes on the events of a prefetch. A loss waits until the range is read, and is dropped if it never
    is."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._kept: deque[RangeLost] = deque()
        self._is_read = False

    def __call__(self, event: Event) -> None:
        if not isinstance(event, RangeLost):
            self._events.emit(event)
            return
        self._kept.append(event)
        if self._is_read:
            self._pass_on()

    def release(self) -> None:
        """The range is being read."""
        self._is_read = True
        self._pass_on()

    def _pass_on(self) -> None:
        while self._kept:
            try:
                event = self._kept.popleft()
            except IndexError:
                return  # another thread has it
            self._events.emit(event)
