"""Holds back the losses of a prefetched range until the range is read.

Losses come in; they are logged and emitted when the range is read, or dropped with it. In a module of its own, because
`reader.py` is imported by most programs and few of them prefetch.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ottla.events.hub import Events
from ottla.fetch.recovery import emit_loss

if TYPE_CHECKING:
    from ottla.events import RangeLost


class DeferredLosses:
    """Takes the losses of a prefetch. They wait until the range is read, or are dropped."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._held_back: deque[RangeLost] = deque()
        self._is_read = False

    def __call__(self, loss: RangeLost) -> None:
        self._held_back.append(loss)
        if self._is_read:
            self._forward()

    def release(self) -> None:
        """Report losses from now on: the range is being read."""
        self._is_read = True
        self._forward()

    def _forward(self) -> None:
        while self._held_back:
            try:
                loss = self._held_back.popleft()
            except IndexError:
                return  # another thread has taken it
            emit_loss(self._events, loss)
