"""The events themselves: frozen values that say what happened to a batch, a connection, the buffer or the spool.

Times are seconds, moments are seconds since the epoch, sizes end in `_bytes`. An event is about a batch or larger,
never about a record. They carry no behaviour beyond a line of text; what is measured of them is in `measures.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import MappingProxyType
from typing import Any, ClassVar

from ottla.text import CONTROL, escaped_in_json

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
    "FetchRetried",
    "FlushAcknowledged",
    "FlushFailed",
    "FlushRetried",
    "Flushed",
    "LagMeasured",
    "PlannerChanged",
    "PlanningFailed",
    "PositionMisplaced",
    "RangeLost",
    "SpoolDamaged",
    "SpoolFailed",
    "SpoolFull",
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
    "field_names",
    "fields_of",
    "text_of",
]

_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_BARE = re.compile(r"[^\s\"=\\]+")


class Event:
    """Something that happened. Subclass it, as a frozen dataclass, for events of your own: every sink takes them.

    `kind` is the name in logs and metrics, the class name in snake case unless the class sets another. `gauges` names
    fields that are levels (how much there is) and not amounts (how much was added). `sets` gives gauges of
    other names a fixed value: what this event says about a state that another event began.
    """

    __slots__ = ()

    kind: ClassVar[str] = "event"
    gauges: ClassVar[frozenset[str]] = frozenset()
    sets: ClassVar[Mapping[str, float]] = MappingProxyType({})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" not in cls.__dict__:
            cls.kind = _WORD_START.sub("_", cls.__name__).lower()

    def __str__(self) -> str:
        """One line: `flushed topic=clicks partition=0 ...`, with quotes where a value has spaces."""
        return " ".join([self.kind, *(f"{name}={_quoted(value)}" for name, value in fields_of(self).items())])


def fields_of(event: Event) -> dict[str, Any]:
    """All fields of an event by name, also of a subclass that is no dataclass."""
    found = {name: getattr(event, name) for name in field_names(type(event))}
    found.update((name, value) for name, value in getattr(event, "__dict__", {}).items() if not name.startswith("_"))
    return found


def field_names(kind: type[Any]) -> tuple[str, ...]:
    """The fields that all events of a class have; none if it is no dataclass."""
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) else ()


def text_of(value: object) -> str:
    """A value as text; an exception with its type, since the text alone is often empty."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    return f"{value:.6g}" if isinstance(value, float) and abs(value) < 1e6 else str(value)


def _quoted(value: object) -> str:
    text = text_of(value)
    # The text of a broker's error must not forge a line of the log, or steer the terminal that shows it.
    if _BARE.fullmatch(text) and not CONTROL.search(text):
        return text
    return escaped_in_json(json.dumps(text, ensure_ascii=False))


@dataclass(frozen=True, slots=True)
class Flushed(Event):
    """A batch was sent for the first time; `raw_bytes` is its size before compression."""

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
    """A batch is about to be sent again; `attempt` is the number of the attempt that begins, 2 or more."""

    topic: str
    partition: int
    records: int
    attempt: int
    error: Exception


@dataclass(frozen=True, slots=True)
class ConnectionUp(Event):
    """A connection is ready for requests, `seconds` after it was begun: the time to connect.

    `broker_id` is None here and below where only the address is known, as with a bootstrap server.
    """

    sets = MappingProxyType({"broker.up": 1.0, "still_down.seconds": 0.0})

    broker_id: int | None
    address: str
    seconds: float


@dataclass(frozen=True, slots=True)
class ConnectionDown(Event):
    """A connection ended, or could not be made, for the first time since the broker was up."""

    sets = MappingProxyType({"broker.up": 0.0})

    broker_id: int | None
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class StillDown(Event):
    """A broker is still away, for `seconds` by now; repeated while that lasts."""

    gauges = frozenset({"seconds"})
    sets = MappingProxyType({"broker.up": 0.0})

    broker_id: int | None
    address: str
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class TimeDown(Event):
    """A broker is back; it was away for `seconds`."""

    sets = MappingProxyType({"still_down.seconds": 0.0})

    broker_id: int | None
    address: str
    seconds: float


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
class BufferFull(Event):
    """The buffer has no room for a send, which waits; `holding` says what holds things up."""

    gauges = frozenset({"waiting_bytes", "limit_bytes"})

    waiting_bytes: int
    limit_bytes: int
    holding: str


@dataclass(frozen=True, slots=True)
class Dropped(Event):
    """Records were given up by the policy of a full spool or buffer; the timestamps are of the oldest and newest.

    `partition` is -1 for records that had none yet.
    """

    topic: str
    partition: int
    records: int
    size_bytes: int
    first_timestamp: float
    last_timestamp: float
    reason: str


@dataclass(frozen=True, slots=True)
class SpoolDamaged(Event):
    """A part of a spool file cannot be read and was passed over: `size_bytes` from byte `position`."""

    path: str
    position: int
    size_bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class SpoolFailed(Event):
    """The disk refuses what the spool wants to write."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class SpoolFull(Event):
    """The spool has no room for another batch, told once until it has: its limit is reached, or, when `max_bytes` is
    None, its disk is full."""

    gauges = frozenset({"used_bytes", "max_bytes"})

    path: str
    used_bytes: int
    max_bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class EpochBumped(Event):
    """The producer went on under a new epoch (or a new id), because the broker no longer knew the old one."""

    topic: str
    partition: int
    producer_id: int
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class FetchRetried(Event):
    """A partition could not be read at `offset`, and will be tried again."""

    topic: str
    partition: int
    offset: int
    error: Exception


@dataclass(frozen=True, slots=True)
class RangeLost(Event):
    """Offsets `[start, stop)` could not be read, or were replaced; reading goes on at `resume`, as configured."""

    topic: str
    partition: int
    start: int
    stop: int
    resume: int
    reason: str


@dataclass(frozen=True, slots=True)
class TimesClamped(Event):
    """Timestamps do not fit in microseconds (they lie beyond the years -290307 and 294247): `count` records of this
    partition so far have the nearest time that does. Told for the first one, and whenever they have about doubled."""

    topic: str
    partition: int
    count: int


@dataclass(frozen=True, slots=True)
class BatchDone(Event):
    """A batch of a streaming query is committed; it took `seconds`, and `per_second` is the rate of its records."""

    gauges = frozenset({"per_second"})

    query: str
    batch: int
    records: int
    seconds: float
    per_second: float


@dataclass(frozen=True, slots=True)
class LagMeasured(Event):
    """How far a streaming query is behind the end of a partition: in records, and in seconds since that was the end."""

    gauges = frozenset({"lag_records", "lag_seconds"})

    query: str
    topic: str
    partition: int
    lag_records: int
    lag_seconds: float


@dataclass(frozen=True, slots=True)
class UnitEnded(Event):
    """A node has worked on a unit of a fleet: `status` says what became of it, `reached` how far it was read.

    `wasted_records` were read and thrown away, because batches on the broker do not end where units do.
    """

    topic: str
    partition: int
    start: int
    stop: int
    reached: int
    status: str
    attempt: int
    records: int
    payload_bytes: int
    wasted_records: int
    seconds: float
    broker_id: int
    host: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UnitReclaimed(Event):
    """A unit was taken from a node whose lease stood still, to be worked on by another one."""

    topic: str
    partition: int
    start: int
    stop: int
    attempt: int
    node: str


@dataclass(frozen=True, slots=True)
class UnitsPlanned(Event):
    """New offsets were cut into units that wait for a node."""

    gauges = frozenset({"units"})

    group: str
    units: int
    planned_records: int


@dataclass(frozen=True, slots=True)
class PlanningFailed(Event):
    """Units of a topic or partition, or of the whole group (then `what` is empty), cannot be planned for now."""

    group: str
    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlannerChanged(Event):
    """This node plans from now on, for all nodes of its group."""

    node: str
    number: int


@dataclass(frozen=True, slots=True)
class PositionMisplaced(Event):
    """A group's position is not in the log, which has `[start, stop)`; it goes on at `resume`, or stops there (-1)."""

    topic: str
    partition: int
    position: int
    start: int
    stop: int
    resume: int
    reason: str


@dataclass(frozen=True, slots=True)
class TopicReplaced(Event):
    """A topic was deleted and created again under the same name; its ids are those of before and after."""

    topic: str
    before: str
    after: str
    goes_on: bool


@dataclass(frozen=True, slots=True)
class StoreDown(Event):
    """The store of a fleet does not answer. What nodes have they work on; nothing new is handed out."""

    sets = MappingProxyType({"store_reachable": 0.0})

    store: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoreUp(Event):
    """The store of a fleet answers again, after `seconds`."""

    sets = MappingProxyType({"store_reachable": 1.0})

    store: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StoreWentBack(Event):
    """The store has forgotten something that it had confirmed. Units since then are planned again, never left out."""

    group: str
    store: str
    reason: str


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


EVENTS: tuple[type[Event], ...] = (
    Flushed,
    FlushAcknowledged,
    FlushFailed,
    FlushRetried,
    ConnectionUp,
    ConnectionDown,
    StillDown,
    TimeDown,
    DowntimeSaved,
    DowntimeReplayed,
    BufferFull,
    Dropped,
    SpoolDamaged,
    SpoolFailed,
    SpoolFull,
    EpochBumped,
    FetchRetried,
    RangeLost,
    TimesClamped,
    BatchDone,
    LagMeasured,
    UnitEnded,
    UnitReclaimed,
    UnitsPlanned,
    PlanningFailed,
    PlannerChanged,
    PositionMisplaced,
    TopicReplaced,
    StoreDown,
    StoreUp,
    StoreWentBack,
    TopicSuspended,
    TopicResumed,
    ArchiveHeldUp,
    ArchiveResumed,
)
"""Every event that Ottla emits."""
