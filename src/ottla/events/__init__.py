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
    "ArchiveHeldUp": "ottla.events.archives",
    "ArchiveResumed": "ottla.events.archives",
    "BatchDone": "ottla.events.queries",
    "BufferFull": "ottla.events.sending",
    "ConnectionDown": "ottla.events.connections",
    "ConnectionUp": "ottla.events.connections",
    "DowntimeReplayed": "ottla.events.spooling",
    "DowntimeSaved": "ottla.events.spooling",
    "Dropped": "ottla.events.sending",
    "EVENTS": "ottla.events.values",
    "EpochBumped": "ottla.events.sending",
    "Event": "ottla.events.event",
    "Events": "ottla.events.hub",
    "FetchRetried": "ottla.events.reading",
    "FlushAcknowledged": "ottla.events.sending",
    "FlushFailed": "ottla.events.sending",
    "FlushRetried": "ottla.events.sending",
    "Flushed": "ottla.events.sending",
    "JsonLinesSink": "ottla.events.sinks.file",
    "LagMeasured": "ottla.events.queries",
    "LogSink": "ottla.events.sinks.log",
    "PlannerChanged": "ottla.events.fleets",
    "PlanningFailed": "ottla.events.fleets",
    "PositionMisplaced": "ottla.events.fleets",
    "PrometheusSink": "ottla.events.sinks.prometheus",
    "RangeLost": "ottla.events.reading",
    "RotatingFiles": "ottla.events.sinks.rotating",
    "Sink": "ottla.events.hub",
    "SpoolDamaged": "ottla.events.spooling",
    "SpoolFailed": "ottla.events.spooling",
    "SpoolFull": "ottla.events.spooling",
    "StatsdSink": "ottla.events.sinks.statsd",
    "StillDown": "ottla.events.connections",
    "StoreDown": "ottla.events.fleets",
    "StoreUp": "ottla.events.fleets",
    "StoreWentBack": "ottla.events.fleets",
    "TimeDown": "ottla.events.connections",
    "TimesClamped": "ottla.events.reading",
    "TopicReplaced": "ottla.events.fleets",
    "TopicResumed": "ottla.events.archives",
    "TopicSuspended": "ottla.events.archives",
    "UnitEnded": "ottla.events.fleets",
    "UnitReclaimed": "ottla.events.fleets",
    "UnitsPlanned": "ottla.events.fleets",
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

if not TYPE_CHECKING:  # otherwise a type checker would accept any misspelled name
    __getattr__, __dir__ = lazy(__name__, _HOMES)
