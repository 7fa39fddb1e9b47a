"""Events of streaming queries. See `event.py`."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.events.event import Event


@dataclass(frozen=True, slots=True)
class BatchDone(Event):
    """A batch of a streaming query was committed after `seconds`. `per_second` is the rate of its records."""

    gauges = frozenset({"per_second"})

    query: str
    batch: int
    records: int
    seconds: float
    per_second: float


@dataclass(frozen=True, slots=True)
class LagMeasured(Event):
    """How far a streaming query is behind the end of a partition: in records, and in seconds since that was the end."""

    gauges = frozenset({"lag_records", "lag_seconds"})

    query: str
    topic: str
    partition: int
    lag_records: int
    lag_seconds: float
