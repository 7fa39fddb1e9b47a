"""Whom a request is for, as values; the cluster finds out which broker that is at the moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CoordinatorKind(Enum):
    """What a coordinator coordinates; the value is the protocol's key type."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class AnyBroker:
    """Whoever answers."""

    def __str__(self) -> str:
        return "any broker"


@dataclass(frozen=True, slots=True)
class Controller:
    """The broker that the cluster names as its controller; with KRaft, one that passes requests on to it."""

    def __str__(self) -> str:
        return "the controller"


@dataclass(frozen=True, slots=True)
class LeaderOf:
    """The leader of a partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"the leader of {self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class CoordinatorOf:
    """The coordinator of a group or of a transactional id."""

    kind: CoordinatorKind
    key: str

    def __str__(self) -> str:
        return f"the coordinator of {self.kind.name.lower()} {self.key}"


@dataclass(frozen=True, slots=True)
class Node:
    """The broker with this id."""

    id: int

    def __str__(self) -> str:
        return f"broker {self.id}"


Target = AnyBroker | Controller | LeaderOf | CoordinatorOf | Node
