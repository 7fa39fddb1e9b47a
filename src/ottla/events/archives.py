"""Events of an archive that follows topics. See `event.py`."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from ottla.events.event import Event


@dataclass(frozen=True, slots=True)
class TopicSuspended(Event):
    """A topic cannot be archived for now, for this reason. The others continue."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class TopicResumed(Event):
    """A suspended topic is archived again."""

    topic: str


@dataclass(frozen=True, slots=True)
class ArchiveHeldUp(Event):
    """An archiver that follows topics has been stuck for `seconds`. Repeated while that lasts."""

    gauges = frozenset({"seconds"})
    sets = MappingProxyType({"archive_going_on": 0.0})

    path: str
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class ArchiveResumed(Event):
    """An archiver that was stuck continues, after `seconds`."""

    sets = MappingProxyType({"archive_going_on": 1.0})

    path: str
    seconds: float
