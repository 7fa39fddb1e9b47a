"""What the nodes of a fleet tell one another: units, leases, failures, and how a group stands.

Plain values without behaviour beyond their checks. A unit is an `OffsetRange`; it is known by its range and never by
the attempt, so that whoever handles it twice writes the same thing twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.errors import ConfigError
from ottla.model import OffsetRange, TopicPartition

VERSION = 1
"""Of what is in a store. A store of another version is refused."""
LEAP = 1_000_000
"""How far numbers of leases are raised when some may have been given out that nobody remembers."""


class Lease(NamedTuple):
    """The right to something, until somebody else has it: `number` only grows in a store, `holder` is unique.

    A store that forgets its last second may give out a number again, but never to the same holder.
    """

    number: int
    holder: str


class Seen(NamedTuple):
    """A lease as somebody saw it. Its holder raises `beat` all the time: when it stands still, the holder is gone.

    How long it stood still is measured by whoever watches, with a clock of his own that only goes forward.
    """

    lease: Lease
    beat: int


class Grant(NamedTuple):
    """A unit, given to the holder of the lease. The first attempt is 1."""

    range: OffsetRange
    lease: Lease
    attempt: int


class Out(NamedTuple):
    """A unit that somebody works on."""

    range: OffsetRange
    seen: Seen
    attempt: int


class Move(NamedTuple):
    """A step of planning: the planned offset of a partition goes from `before` to `to`, and these units are there.

    `before` is None for a partition that was not planned yet. Units need not cover the step: what is left out is lost
    or was skipped on purpose, and whoever plans has said so.
    """

    at: TopicPartition
    before: int | None
    to: int
    units: tuple[OffsetRange, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a unit is on the error list."""

    range: OffsetRange
    attempts: int
    reason: str
    traceback: str = ""
    host: str = ""
    at: float = 0.0
    """Seconds since 1970, by the clock of that host."""


class Counts(NamedTuple):
    """What has happened in a group since it began."""

    done: int = 0
    """Units, and parts of units that were split."""
    offsets: int = 0
    """Of units that were done."""
    failed: int = 0
    """Attempts that ended with an error."""
    given_back: int = 0
    """Units that came back without an attempt being counted."""
    reclaimed: int = 0
    """Leases that stood still, so that the unit was given to somebody else."""
    given_up: int = 0
    """Units that came to the error list."""
    refused: int = 0
    """Words of holders who had lost their lease."""


class PartitionState(NamedTuple):
    """How one partition stands."""

    at: TopicPartition
    planned: int
    """Up to here there are, or were, units."""
    done: int
    """Up to here everything is done."""
    waiting: int
    out: int
    failed: int


class Node(NamedTuple):
    """What a node says of itself, and how often it has said something."""

    name: str
    beat: int
    report: Mapping[str, Any]


class Pulse(NamedTuple):
    """What must not stand still: the planner, and the units that somebody works on."""

    planner: Seen | None
    out: tuple[Out, ...]


class Snapshot(NamedTuple):
    """How a group stands, all of it at one moment."""

    planner: Seen | None
    lanes: tuple[PartitionState, ...]
    out: tuple[Out, ...]
    nodes: tuple[Node, ...]
    topics: Mapping[str, str]
    """Names, and the id that the topic had when it was first planned; empty before that."""
    counts: Counts
    number: int
    """The highest number of a lease so far."""

    @property
    def planning_node(self) -> str | None:
        """The name of the node that plans."""
        return None if self.planner is None else node_of(self.planner.lease.holder)

    @property
    def halted(self) -> dict[str, str]:
        """Topics and partitions that are not planned, and why, as whoever plans has said last."""
        for node in self.nodes:
            if node.name == self.planning_node:
                return {str(what): str(why) for what, why in dict(node.report.get("halted") or {}).items()}
        return {}


def label(at: TopicPartition) -> str:
    """A partition in what is said of a group. No topic is called like this."""
    return f"{at.topic}/{at.partition}"


def node_of(holder: str) -> str:
    """The node that has a lease: a holder is its name, a stroke, and what the lease is for."""
    return holder.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Charter:
    """What all nodes of a group must agree on; kept in the store by the first one."""

    ordered: bool = False
    """At most one unit of a partition is out at any time, in order; one that failed holds up its partition."""
    max_attempts: int = 5
    """How often a unit is tried before it comes to the error list."""
    lease_seconds: float = 10.0
    """How long a node may be silent before its units are given to others."""
    version: int = field(default=VERSION, repr=False)

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts must be at least 1, got {self.max_attempts}")
        if not 0.5 <= self.lease_seconds <= 86_400:
            raise ConfigError(f"a lease lasts between half a second and a day, got {self.lease_seconds} s")
