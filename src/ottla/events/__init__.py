"""What happened, as values, and where they go.

Whoever does the work emits an `Event` into an `Events` hub; sinks, callables that take an event, subscribe to it.
The sinks are imported when they are first used, so that the core carries none of them. Nothing here knows what a
producer or a connection is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ottla.events.hub import Events, Sink
from ottla.events.values import (
    EVENTS,
    ArchiveHeldUp,
    ArchiveResumed,
    BatchDone,
    BufferFull,
    ConnectionDown,
    ConnectionUp,
    DowntimeReplayed,
    DowntimeSaved,
    Dropped,
    EpochBumped,
    Event,
    FetchRetried,
    FlushAcknowledged,
    Flushed,
    FlushFailed,
    FlushRetried,
    LagMeasured,
    PlannerChanged,
    PositionMisplaced,
    RangeLost,
    SpoolDamaged,
    SpoolFailed,
    StillDown,
    StoreDown,
    StoreUp,
    StoreWentBack,
    TimeDown,
    TopicReplaced,
    TopicResumed,
    TopicSuspended,
    UnitEnded,
    UnitReclaimed,
    UnitsPlanned,
)

if TYPE_CHECKING:
    from ottla.events.sinks.file import JsonLinesSink
    from ottla.events.sinks.log import LogSink
    from ottla.events.sinks.prometheus import PrometheusSink
    from ottla.events.sinks.rotating import RotatingFiles
    from ottla.events.sinks.statsd import StatsdSink

_HOMES = {
    "JsonLinesSink": "ottla.events.sinks.file",
    "LogSink": "ottla.events.sinks.log",
    "PrometheusSink": "ottla.events.sinks.prometheus",
    "RotatingFiles": "ottla.events.sinks.rotating",
    "StatsdSink": "ottla.events.sinks.statsd",
}

__all__ = [
    "EVENTS",
    "ArchiveHeldUp",
    "ArchiveResumed",
    "BatchDone",
    "BufferFull",
    "ConnectionDown",
    "ConnectionUp",
    "DowntimeReplayed",
    "DowntimeSaved",
    "Dropped",
    "EpochBumped",
    "Event",
    "Events",
    "FetchRetried",
    "FlushAcknowledged",
    "FlushFailed",
    "FlushRetried",
    "Flushed",
    "JsonLinesSink",
    "LagMeasured",
    "LogSink",
    "PlannerChanged",
    "PositionMisplaced",
    "PrometheusSink",
    "RangeLost",
    "RotatingFiles",
    "Sink",
    "SpoolDamaged",
    "SpoolFailed",
    "StatsdSink",
    "StillDown",
    "StoreDown",
    "StoreUp",
    "StoreWentBack",
    "TimeDown",
    "TopicReplaced",
    "TopicResumed",
    "TopicSuspended",
    "UnitEnded",
    "UnitReclaimed",
    "UnitsPlanned",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ottla.events' has no attribute {name!r}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
