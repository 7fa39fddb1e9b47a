"""Machines of both protocols on a stand with a clock of its own, and players for simulated groups of them.

A machine and its ownership come in; a test sets the clock, sees each step and answers it. What both protocols say
differently is with their tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from ottla.consume.classic import Classic
from ottla.consume.modern import Modern
from ottla.consume.ownership import OwnedPartitions, Partitions
from ottla.consume.steps import Ask, Rest, Step
from ottla.errors import ErrorCode
from ottla.model import TopicPartition

TOPICS = frozenset({"t"})
RETRIED = [ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress, ErrorCode.not_coordinator]

MachineT = TypeVar("MachineT", bound=Classic | Modern)


def some(*indices: int) -> Partitions:
    """Partitions of the one topic."""
    return frozenset(TopicPartition("t", index) for index in indices)


class Stand(Generic[MachineT]):
    """A machine, its ownership, and a clock."""

    def __init__(self, machine: MachineT, ownership: OwnedPartitions) -> None:
        self.machine = machine
        self.ownership = ownership
        self.now = 0.0
        self.polled = 0.0
        self.topics = TOPICS

    def step(self) -> Step:
        """What the machine does now."""
        return self.machine.step(self.now, topics=self.topics, polled=self.polled)

    def ask(self) -> Ask:
        """What it asks the coordinator now."""
        step = self.step()
        assert isinstance(step, Ask), step
        return step

    def rest(self) -> float:
        """Until when it has nothing to do."""
        step = self.step()
        assert isinstance(step, Rest), step
        return step.until

    def act(self) -> None:
        """What a consumer does at once."""
        self.ownership.hold(self.ownership.target().partitions)


@dataclass
class Player:
    """A consumer that takes its time, in a simulated group."""

    name: str
    ownership: OwnedPartitions
    pace: float
    """How often the consumer's thread has its turn: slow ones act on what they saw long ago."""
    held: Partitions = frozenset()
    taking: Partitions | None = None

    def consume(self) -> None:
        """Half of it at a time: it looks and lets go, or takes over what it saw before."""
        if self.taking is not None:
            self.held |= self.taking
            self.taking = None
        else:
            self.taking = self.ownership.target().partitions
            self.held &= self.taking
        self.ownership.hold(self.held)


def check_nothing_is_held_twice(players: Iterable[Player]) -> None:
    """Nobody has what another has."""
    owners: dict[TopicPartition, str] = {}
    for player in players:
        for partition in player.held:
            assert partition not in owners, f"{partition}: {owners[partition]} and {player.name}"
            owners[partition] = player.name


def are_even(players: Iterable[Player], count: int) -> bool:
    """Whether so many partitions are held, by everybody about as many."""
    sizes = [len(player.held) for player in players]
    return sum(sizes) == count and max(sizes) - min(sizes) <= 1
