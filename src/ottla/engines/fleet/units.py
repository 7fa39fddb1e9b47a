"""The values that the nodes of a fleet exchange through a store: units, leases, failures, and the state of a group.

Plain values that only check themselves. A unit is an `OffsetRange`. Its identity is the range and never the attempt, so
a handler that runs twice can write to the same key twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.errors import ConfigError
from ottla.model import OffsetRange, TopicPartition

VERSION = 1
"""The version of the data in a store. A store with another version is rejected."""
LEAP = 1_000_000
"""How far lease numbers are raised when the store may have forgotten some that it issued."""


class Lease(NamedTuple):
    """The right to work on a unit or to plan, until another holder gets it.

    `number` only grows within a store; `holder` is unique. A store that loses its last second may issue a number again,
    but never to the same holder, so the pair is unique.
    """

    number: int
    holder: str


class Seen(NamedTuple):
    """A lease as a node observed it. Its holder keeps raising `beat`; a beat that stops means that the holder is gone.

    Each watcher measures with its own monotonic clock how long a beat has not changed.
    """

    lease: Lease
    beat: int


class Grant(NamedTuple):
    """A unit that the store gave to the holder of a lease. The first attempt is 1."""

    range: OffsetRange
    lease: Lease
    attempt: int


class Out(NamedTuple):
    """A unit in flight: leased, and not yet finished."""

    range: OffsetRange
    seen: Seen
    attempt: int


class Move(NamedTuple):
    """A planning step: the planned offset of a partition moves from `before` to `to`, and these units are added.

    `before` is None for a partition that was not planned yet. The units need not cover the whole step: the planner
    leaves out offsets that are lost or skipped on purpose, and emits an event for them.
    """

    partition: TopicPartition
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
    """Counters of a group since it was created."""

    done: int = 0
    """Finished units, and finished parts of units that were split."""
    offsets: int = 0
    """Offsets in finished units."""
    failed: int = 0
    """Attempts that ended with an error."""
    given_back: int = 0
    """Units that were returned without counting an attempt."""
    reclaimed: int = 0
    """Expired leases whose unit was taken away."""
    given_up: int = 0
    """Units that were moved to the error list."""
    refused: int = 0
    """Calls rejected because the caller no longer held the lease."""


class PartitionState(NamedTuple):
    """The state of one partition."""

    partition: TopicPartition
    planned: int
    """Offsets below this are, or were, in units."""
    done: int
    """Offsets below this are all done."""
    waiting: int
    """Number of units that wait."""
    out: int
    """Number of units in flight."""
    failed: int
    """Number of units on the error list."""


class Node(NamedTuple):
    """A node's report about itself, and a counter of its reports."""

    name: str
    beat: int
    report: Mapping[str, Any]


class Pulse(NamedTuple):
    """The leases to watch: that of the planner, and those of the units in flight."""

    planner: Seen | None
    out: tuple[Out, ...]


class Snapshot(NamedTuple):
    """The state of a group at one moment."""

    planner: Seen | None
    partitions: tuple[PartitionState, ...]
    out: tuple[Out, ...]
    nodes: tuple[Node, ...]
    topics: Mapping[str, str]
    """Topic names, and the id that each topic had when it was first planned; empty before that."""
    counts: Counts
    number: int
    """The highest lease number so far."""

    @property
    def planning_node(self) -> str | None:
        """The name of the node that plans, or None."""
        return None if self.planner is None else node_of(self.planner.lease.holder)

    @property
    def halted(self) -> dict[str, str]:
        """Topics and partitions that are not planned, and why, from the planning node's last report."""
        for node in self.nodes:
            if node.name == self.planning_node:
                return {str(name): str(reason) for name, reason in dict(node.report.get("halted") or {}).items()}
        return {}


def label(partition: TopicPartition) -> str:
    """The name of a partition in stores and reports. A topic name cannot contain the slash."""
    return f"{partition.topic}/{partition.partition}"


def node_of(holder: str) -> str:
    """The node that holds a lease. A holder is "NODE/PURPOSE"."""
    return holder.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Charter:
    """The settings that all nodes of a group share. The first node writes them to the store.

    Raises `ConfigError` for values out of range.
    """

    ordered: bool = False
    """Process the units of a partition one at a time, in order. A unit on the error list blocks its partition."""
    max_attempts: int = 5
    """Attempts per unit before it is moved to the error list."""
    lease_seconds: float = 10.0
    """How long a node may be silent before its units are given to other nodes."""
    version: int = field(default=VERSION, repr=False)

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"max_attempts must be at least 1, got {self.max_attempts}")
        if not 0.5 <= self.lease_seconds <= 86_400:
            raise ConfigError(f"lease_seconds must be between 0.5 and 86400 (a day), got {self.lease_seconds}")
