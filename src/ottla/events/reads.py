"""Events of reading partitions. See `event.py`."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.events.event import Event


@dataclass(frozen=True, slots=True)
class FetchRetried(Event):
    """A partition could not be read at `offset`, and is retried."""

    topic: str
    partition: int
    offset: int
    error: Exception


@dataclass(frozen=True, slots=True)
class RangeLost(Event):
    """Offsets `[start, stop)` could not be read, or were replaced. Reading continues at `resume`, as configured."""

    topic: str
    partition: int
    start: int
    stop: int
    resume: int
    reason: str


@dataclass(frozen=True, slots=True)
class TimesClamped(Event):
    """Timestamps do not fit in microseconds (they lie beyond the years -290307 and 294247) and were clamped.

    `count` is the number of such records of this partition so far. Emitted for the first one, and whenever their number
    has about doubled.
    """

    topic: str
    partition: int
    count: int
