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


@dataclass(frozen=True, slots=True)
class MirrorTopicRefused(Event):
    """The target does not take a topic, its new partitions or its settings, for this reason. Other topics go on."""

    link: str
    topic: str
    target_topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class MirrorProgress(Event):
    """How far the mirror of a topic is: what it wrote since the last such event, and how far it is behind.

    `lag_seconds` is that of the partition that is furthest behind. `passed_on` is the share of batches, from 0 to 1,
    that were passed on as they were; `failed` counts partitions that are not mirrored any more. None is unknown.
    """

    gauges = frozenset({"lag_records", "lag_bytes", "lag_seconds", "passed_on", "failed"})

    link: str
    topic: str
    target_topic: str
    records: int
    size_bytes: int
    lag_records: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    passed_on: float | None
    failed: int
