"""What happens in a fleet: to its units, to its planner, to its store. See `event.py`."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from ottla.events.event import Event


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
