"""What happens to an archive that follows topics. See `event.py`."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from ottla.events.event import Event


@dataclass(frozen=True, slots=True)
class TopicSuspended(Event):
    """A topic cannot be archived at present, for this reason; the others go on."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class TopicResumed(Event):
    """A topic that was suspended is archived again."""

    topic: str


@dataclass(frozen=True, slots=True)
class ArchiveHeldUp(Event):
    """An archiver that follows topics cannot go on, for `seconds` by now; repeated while that lasts."""

    gauges = frozenset({"seconds"})
    sets = MappingProxyType({"archive_going_on": 0.0})

    path: str
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class ArchiveResumed(Event):
    """An archiver that was held up goes on, after `seconds`."""

    sets = MappingProxyType({"archive_going_on": 1.0})

    path: str
    seconds: float
