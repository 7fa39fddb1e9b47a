"""Events of a fleet: of its units, its planner and its store. See `event.py`."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from ottla.events.event import Event


@dataclass(frozen=True, slots=True)
class UnitEnded(Event):
    """A node has worked on a unit of a fleet. `status` is the outcome, `reached` how far it was read.

    `wasted_records` were read and discarded, because batches on the broker do not end where units do.
    """

    topic: str
    partition: int
    start: int
    stop: int
    reached: int
    status: str
    attempt: int
    """1 for the first node that works on the unit."""
    records: int
    payload_bytes: int
    """The size of keys, values and headers."""
    wasted_records: int
    seconds: float
    broker_id: int
    host: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class UnitReclaimed(Event):
    """A unit was taken from a node whose lease expired, and goes to another node."""

    topic: str
    partition: int
    start: int
    stop: int
    attempt: int
    node: str
    """The node that lost the unit."""


@dataclass(frozen=True, slots=True)
class UnitsPlanned(Event):
    """New offsets were cut into units that wait for a node."""

    gauges = frozenset({"units"})

    group: str
    units: int
    planned_records: int


@dataclass(frozen=True, slots=True)
class PlanningFailed(Event):
    """Units of a topic or partition, or of the whole group (`what` is empty), cannot be planned for now."""

    group: str
    what: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlannerChanged(Event):
    """This node now plans for all nodes of its group."""

    node: str
    number: int
    """The generation of the planner; it grows with each change."""


@dataclass(frozen=True, slots=True)
class PositionMisplaced(Event):
    """A group's position is not in the log, which has `[start, stop)`. It continues at `resume`, or stops (-1)."""

    topic: str
    partition: int
    position: int
    start: int
    stop: int
    resume: int
    reason: str


@dataclass(frozen=True, slots=True)
class TopicReplaced(Event):
    """A topic was deleted and created again under the same name. `before` and `after` are its ids."""

    topic: str
    before: str
    after: str
    goes_on: bool
    """Whether the group continues with the new topic."""


@dataclass(frozen=True, slots=True)
class StoreDown(Event):
    """The store of a fleet does not respond. Nodes finish the units they have, and get no new ones."""

    sets = MappingProxyType({"store_reachable": 0.0})

    store: str
    reason: str


@dataclass(frozen=True, slots=True)
class StoreUp(Event):
    """The store of a fleet responds again, after `seconds`."""

    sets = MappingProxyType({"store_reachable": 1.0})

    store: str
    seconds: float


@dataclass(frozen=True, slots=True)
class StoreWentBack(Event):
    """The store has lost something that it had confirmed. Units since then are planned again, never left out."""

    group: str
    store: str
    reason: str
