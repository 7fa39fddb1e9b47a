"""Events of a mirror. See `event.py`."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.events.event import Event


@dataclass(frozen=True, slots=True)
class MirrorTookOver(Event):
    """A mirror has taken over a partition and continues at `offset` of the source, in this epoch."""

    link: str
    topic: str
    partition: int
    target_topic: str
    target_partition: int
    offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class MirrorFaultAccepted(Event):
    """Something is wrong with a mirrored partition, and the link's rules say to continue nevertheless."""

    link: str
    topic: str
    partition: int
    target_topic: str
    target_partition: int
    fault: str
    reason: str


@dataclass(frozen=True, slots=True)
class MirrorStopped(Event):
    """A partition is not mirrored any more, for this reason. The others go on."""

    link: str
    topic: str
    partition: int
    target_topic: str
    target_partition: int
    reason: str
