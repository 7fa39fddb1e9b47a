"""What happened, as values, and where they go.

Whoever does the work emits an `Event` into an `Events` hub; sinks, callables that take an event, subscribe to it.
The sinks are imported when they are first used, so that the core carries none of them. Nothing here knows what a
producer or a connection is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.events.hub import Events, Sink
    from ottla.events.sinks.file import JsonLinesSink
    from ottla.events.sinks.log import LogSink
    from ottla.events.sinks.prometheus import PrometheusSink
    from ottla.events.sinks.rotating import RotatingFiles
    from ottla.events.sinks.statsd import StatsdSink
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
        PlanningFailed,
        PositionMisplaced,
        RangeLost,
        SpoolDamaged,
        SpoolFailed,
        SpoolFull,
        StillDown,
        StoreDown,
        StoreUp,
        StoreWentBack,
        TimeDown,
        TimesClamped,
        TopicReplaced,
        TopicResumed,
        TopicSuspended,
        UnitEnded,
        UnitReclaimed,
        UnitsPlanned,
    )

_HOMES = {
    "ArchiveHeldUp": "ottla.events.values",
    "ArchiveResumed": "ottla.events.values",
    "BatchDone": "ottla.events.values",
    "BufferFull": "ottla.events.values",
    "ConnectionDown": "ottla.events.values",
    "ConnectionUp": "ottla.events.values",
    "DowntimeReplayed": "ottla.events.values",
    "DowntimeSaved": "ottla.events.values",
    "Dropped": "ottla.events.values",
    "EVENTS": "ottla.events.values",
    "EpochBumped": "ottla.events.values",
    "Event": "ottla.events.values",
    "Events": "ottla.events.hub",
    "FetchRetried": "ottla.events.values",
    "FlushAcknowledged": "ottla.events.values",
    "FlushFailed": "ottla.events.values",
    "FlushRetried": "ottla.events.values",
    "Flushed": "ottla.events.values",
    "JsonLinesSink": "ottla.events.sinks.file",
    "LagMeasured": "ottla.events.values",
    "LogSink": "ottla.events.sinks.log",
    "PlannerChanged": "ottla.events.values",
    "PlanningFailed": "ottla.events.values",
    "PositionMisplaced": "ottla.events.values",
    "PrometheusSink": "ottla.events.sinks.prometheus",
    "RangeLost": "ottla.events.values",
    "RotatingFiles": "ottla.events.sinks.rotating",
    "Sink": "ottla.events.hub",
    "SpoolDamaged": "ottla.events.values",
    "SpoolFailed": "ottla.events.values",
    "SpoolFull": "ottla.events.values",
    "StatsdSink": "ottla.events.sinks.statsd",
    "StillDown": "ottla.events.values",
    "StoreDown": "ottla.events.values",
    "StoreUp": "ottla.events.values",
    "StoreWentBack": "ottla.events.values",
    "TimeDown": "ottla.events.values",
    "TimesClamped": "ottla.events.values",
    "TopicReplaced": "ottla.events.values",
    "TopicResumed": "ottla.events.values",
    "TopicSuspended": "ottla.events.values",
    "UnitEnded": "ottla.events.values",
    "UnitReclaimed": "ottla.events.values",
    "UnitsPlanned": "ottla.events.values",
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
    "PlanningFailed",
    "PositionMisplaced",
    "PrometheusSink",
    "RangeLost",
    "RotatingFiles",
    "Sink",
    "SpoolDamaged",
    "SpoolFailed",
    "SpoolFull",
    "StatsdSink",
    "StillDown",
    "StoreDown",
    "StoreUp",
    "StoreWentBack",
    "TimeDown",
    "TimesClamped",
    "TopicReplaced",
    "TopicResumed",
    "TopicSuspended",
    "UnitEnded",
    "UnitReclaimed",
    "UnitsPlanned",
]

if not TYPE_CHECKING:  # or every misspelt name would pass a type checker
    __getattr__, __dir__ = lazy(__name__, _HOMES)
