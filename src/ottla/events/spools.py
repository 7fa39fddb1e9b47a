"""Events of the spool. See `event.py`."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.events.event import Event


@dataclass(frozen=True, slots=True)
class DowntimeSaved(Event):
    """A batch went to the spool."""

    topic: str
    partition: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DowntimeReplayed(Event):
    """A batch from the spool was acknowledged."""

    topic: str
    partition: int
    records: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SpoolDamaged(Event):
    """Part of a spool file cannot be read and was skipped: `size_bytes` from byte `position`."""

    path: str
    position: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class SpoolFailed(Event):
    """The disk rejects the spool's writes, for another reason than space."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class SpoolFull(Event):
    """The spool has no space for another batch. Emitted once until it has.

    Its limit is reached, or, if `max_bytes` is None, its disk is full.
    """

    gauges = frozenset({"used_bytes", "max_bytes"})

    path: str
    used_bytes: int
    max_bytes: int | None
    reason: str
