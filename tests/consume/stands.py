"""State machines of both protocols on a test stand with its own clock, and players for simulated groups of them.

A machine and its ownership come in; a test sets the clock, sees each step and answers it. What differs between the
protocols is in their own tests.
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


def t_partitions(*indices: int) -> Partitions:
    """Return partitions of the topic `t`."""
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
        """Return the machine's next step."""
        return self.machine.step(self.now, topics=self.topics, polled=self.polled)

    def ask(self) -> Ask:
        """Return the request that it sends now."""
        step = self.step()
        assert isinstance(step, Ask), step
        return step

    def rest(self) -> float:
        """Return until when it has nothing to do."""
        step = self.step()
        assert isinstance(step, Rest), step
        return step.until

    def act(self) -> None:
        """Do what a prompt consumer does."""
        self.ownership.hold(self.ownership.target().partitions)


@dataclass
class Player:
    """A slow consumer in a simulated group."""

    name: str
    ownership: OwnedPartitions
    pace: float
    """How often the consumer's thread runs: slow ones act on what they saw long ago."""
    held: Partitions = frozenset()
    taking: Partitions | None = None

    def consume(self) -> None:
        """Do half of the work: look and release, or take over what it saw before."""
        if self.taking is not None:
            self.held |= self.taking
            self.taking = None
        else:
            self.taking = self.ownership.target().partitions
            self.held &= self.taking
        self.ownership.hold(self.held)


def check_nothing_is_held_twice(players: Iterable[Player]) -> None:
    """Check that no two players hold the same partition."""
    owners: dict[TopicPartition, str] = {}
    for player in players:
        for partition in player.held:
            assert partition not in owners, f"{partition}: {owners[partition]} and {player.name}"
            owners[partition] = player.name


def are_even(players: Iterable[Player], count: int) -> bool:
    """Return whether `count` partitions are held, evenly."""
    sizes = [len(player.held) for player in players]
    return sum(sizes) == count and max(sizes) - min(sizes) <= 1
