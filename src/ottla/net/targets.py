"""The targets of requests, as values. `Cluster` finds out which broker a target currently means."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class CoordinatorKind(Enum):
    """What a coordinator coordinates. The values are the key types of the protocol."""

    GROUP = 0
    TRANSACTION = 1


@dataclass(frozen=True, slots=True)
class AnyBroker:
    """Any broker of the cluster."""

    def __str__(self) -> str:
        return "any broker"


@dataclass(frozen=True, slots=True)
class Controller:
    """The broker that metadata names as the controller. With KRaft, it forwards requests to the controller."""

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
