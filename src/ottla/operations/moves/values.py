"""Where the replicas of a cluster are, and where a plan wants them: plain values.

Pure: no sockets, no clocks, no files. `planning` turns a `Layout` and a `Goal` into a `Plan`; `plan_file` stores plans.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from ottla.model import TopicPartition


class Cost(Enum):
    """What a plan moves as little of as possible."""

    BYTES = "bytes"
    REPLICAS = "replicas"


class Racks(Enum):
    """Whether the replicas of a partition go to different racks."""

    SPREAD = "spread"
    IGNORE = "ignore"


@dataclass(frozen=True, slots=True)
class Member:
    """A broker, also one that is gone and still has replicas assigned."""

    id: int
    rack: str | None = None
    is_alive: bool = True


@dataclass(frozen=True, slots=True)
class Placement:
    """The replicas of one partition. The first one is the preferred leader."""

    partition: TopicPartition
    replicas: tuple[int, ...]
    size_bytes: int = 0
    """The size of one replica."""
    leader: int = -1
    isr: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Layout:
    """All replicas of a cluster at one moment."""

    cluster_id: str
    members: tuple[Member, ...]
    placements: tuple[Placement, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(sorted(self.members, key=lambda member: member.id)))
        object.__setattr__(self, "placements", tuple(sorted(self.placements, key=lambda place: place.partition)))

    def alive(self) -> tuple[Member, ...]:
        """Return the brokers that are up."""
        return tuple(member for member in self.members if member.is_alive)

    def with_moves(self, moves: Iterable[Move]) -> Layout:
        """Return the layout after these moves."""
        after = {move.partition: move.after for move in moves}
        placements = tuple(
            replace(place, replicas=after.get(place.partition, place.replicas)) for place in self.placements
        )
        return replace(self, placements=placements)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a plan is for. Several goals can be combined."""

    drain: frozenset[int] = frozenset()
    """Brokers that are to have no replicas."""
    is_repair: bool = False
    """Replace the replicas on brokers that are gone."""
    is_balance: bool = False
    """Even out replicas, and those of each topic, over all brokers; uses new brokers."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """A new replication factor, by topic."""
    topics: frozenset[str] | None = None
    """Move replicas of these topics only; None for all."""
    cost: Cost = Cost.BYTES
    racks: Racks = Racks.SPREAD


@dataclass(frozen=True, slots=True)
class Move:
    """A partition that gets other replicas, or the same ones in another order."""

    partition: TopicPartition
    before: tuple[int, ...]
    after: tuple[int, ...]
    size_bytes: int = 0

    @property
    def added(self) -> tuple[int, ...]:
        """The brokers that get a copy."""
        return tuple(broker for broker in self.after if broker not in self.before)

    @property
    def removed(self) -> tuple[int, ...]:
        """The brokers that lose theirs."""
        return tuple(broker for broker in self.before if broker not in self.after)

    @property
    def moved_bytes(self) -> int:
        """What is copied."""
        return self.size_bytes * len(self.added)

    def undone(self) -> Move:
        """Return the move back."""
        return replace(self, before=self.after, after=self.before)


@dataclass(frozen=True, slots=True)
class Plan:
    """Moves of one cluster. `lower_bound` is the number of replicas that any plan with this goal must move."""

    cluster_id: str
    moves: tuple[Move, ...]
    lower_bound: int = 0
    purpose: str = ""
    """What it is for, in words."""

    @property
    def moved_replicas(self) -> int:
        """How many replicas are copied."""
        return sum(len(move.added) for move in self.moves)

    @property
    def moved_bytes(self) -> int:
        """How much is copied."""
        return sum(move.moved_bytes for move in self.moves)

    def undone(self) -> Plan:
        """Return the plan that moves everything back."""
        return replace(self, moves=tuple(move.undone() for move in self.moves), purpose=f"undo: {self.purpose}")
