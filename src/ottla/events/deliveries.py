"""Events of batches that are sent, and of the memory they wait in. See `event.py`."""

from __future__ import annotations

from dataclasses import dataclass

from ottla.events.event import Event


@dataclass(frozen=True, slots=True)
class Flushed(Event):
    """A batch was sent for the first time. `raw_bytes` is its size before compression."""

    topic: str
    partition: int
    records: int
    size_bytes: int
    raw_bytes: int


@dataclass(frozen=True, slots=True)
class FlushAcknowledged(Event):
    """A batch is in the log at `base_offset`, `seconds` after it was first sent."""

    topic: str
    partition: int
    records: int
    size_bytes: int
    base_offset: int
    seconds: float
    attempts: int
    """How often the batch was sent."""


@dataclass(frozen=True, slots=True)
class FlushFailed(Event):
    """A batch will not be delivered."""

    topic: str
    partition: int
    records: int
    size_bytes: int
    error: Exception


@dataclass(frozen=True, slots=True)
class FlushRetried(Event):
    """A batch is about to be sent again. `attempt` is the number of the new attempt, 2 or more."""

    topic: str
    partition: int
    records: int
    attempt: int
    error: Exception


@dataclass(frozen=True, slots=True)
class BufferFull(Event):
    """The buffer has no room for a send, which blocks. `holding` says what it is waiting for."""

    gauges = frozenset({"waiting_bytes", "limit_bytes"})

    waiting_bytes: int
    limit_bytes: int
    holding: str


@dataclass(frozen=True, slots=True)
class Dropped(Event):
    """Records were dropped by the policy of a full spool or buffer. The timestamps are of the oldest and newest.

    `partition` is -1 for records without a partition yet.
    """

    topic: str
    partition: int
    records: int
    size_bytes: int
    first_timestamp: float
    last_timestamp: float
    reason: str
    """Why they were dropped."""


@dataclass(frozen=True, slots=True)
class EpochBumped(Event):
    """The producer continues with a new epoch (or a new id), because the broker no longer knew the old one."""

    topic: str
    partition: int
    producer_id: int
    epoch: int
    reason: str
