"""Writes events to a log, each with a fitting level.

Comes in: an event. Goes out: a log record with its text, and the event itself as the record's attribute `ottla_event`,
for handlers that need values. It must not configure logging: handlers and thresholds belong to the program.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from ottla.errors import ConfigError
from ottla.events.values import (
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
    MirrorFaultAccepted,
    MirrorProgress,
    MirrorStopped,
    MirrorTookOver,
    MirrorTopicRefused,
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

# What comes once per batch, in good times or in an outage, is DEBUG: an outage must not flood the log.
LEVELS: Mapping[type[Event], int] = {
    Event: logging.INFO,
    Flushed: logging.DEBUG,
    FlushAcknowledged: logging.DEBUG,
    FlushRetried: logging.INFO,
    FlushFailed: logging.ERROR,
    ConnectionUp: logging.INFO,
    ConnectionDown: logging.WARNING,
    StillDown: logging.WARNING,
    TimeDown: logging.INFO,
    DowntimeSaved: logging.DEBUG,
    DowntimeReplayed: logging.DEBUG,
    BufferFull: logging.WARNING,
    Dropped: logging.ERROR,
    SpoolDamaged: logging.ERROR,
    SpoolFailed: logging.ERROR,
    SpoolFull: logging.WARNING,
    EpochBumped: logging.WARNING,
    FetchRetried: logging.INFO,
    RangeLost: logging.ERROR,
    TimesClamped: logging.WARNING,
    BatchDone: logging.DEBUG,
    LagMeasured: logging.DEBUG,
    UnitEnded: logging.DEBUG,
    UnitReclaimed: logging.WARNING,
    UnitsPlanned: logging.DEBUG,
    PlanningFailed: logging.WARNING,
    PlannerChanged: logging.INFO,
    PositionMisplaced: logging.ERROR,
    TopicReplaced: logging.ERROR,
    StoreDown: logging.WARNING,
    StoreUp: logging.INFO,
    StoreWentBack: logging.ERROR,
    TopicSuspended: logging.ERROR,
    TopicResumed: logging.INFO,
    ArchiveHeldUp: logging.WARNING,
    ArchiveResumed: logging.INFO,
    MirrorTookOver: logging.INFO,
    MirrorFaultAccepted: logging.ERROR,
    MirrorStopped: logging.ERROR,
    MirrorTopicRefused: logging.ERROR,
    MirrorProgress: logging.DEBUG,
}


class LogSink:
    """Writes events to `logger` (`ottla.events` by default). `levels` replaces the level of the classes in it.

    Other classes have the level of their nearest base class; `Event` itself is INFO. Raises `ConfigError` if `levels`
    maps anything else.
    """

    def __init__(self, logger: logging.Logger | None = None, levels: Mapping[type[Event], int] | None = None) -> None:
        self._logger = logging.getLogger("ottla.events") if logger is None else logger
        self._levels = {**LEVELS, **_checked(levels or {})}

    def __call__(self, event: Event) -> None:
        level = self.level(type(event))
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", event, extra={"ottla_event": event})

    def level(self, kind: type[Event]) -> int:
        """Return the level at which events of this class are logged."""
        return next(self._levels[cls] for cls in kind.__mro__ if cls in self._levels)


def _checked(levels: Mapping[Any, Any]) -> Mapping[type[Event], int]:
    for kind, level in levels.items():
        if not (isinstance(kind, type) and issubclass(kind, Event)) or not isinstance(level, int):
            wrong = f"got {kind!r}: {level!r}"
            raise ConfigError(f"LogSink(levels=...) maps event classes to levels such as logging.INFO, {wrong}")
    return levels
