"""What tests of nodes have in common: a diary of what was handled, how a node stands, and what is done to it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import confluent_kafka
from confluent_kafka import admin as confluent_admin
from tests.engines.fleet.crew import Handled, handle

from ottla.cluster import LocalCluster
from ottla.engines.fleet.fleet import Fleet
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.unit import Unit
from ottla.engines.fleet.units import Charter, Failure, PartitionState
from ottla.events.values import Event

NewTopic = Callable[..., str]
NewFleet = Callable[..., Fleet]
SMALL = Units(records=100)
ORDERED = Charter(ordered=True, lease_seconds=1.0)
SECONDS = 30.0


class Diary:
    """What was handled, by several threads."""

    def __init__(self) -> None:
        self.handled: list[Handled] = []

    def __call__(self, unit: Unit) -> None:
        self.handled.append(handle(unit))

    @property
    def ranges(self) -> list[tuple[int, int, int]]:
        """Partition, start and stop of each, sorted."""
        return sorted((entry.range.partition, entry.range.start, entry.range.stop) for entry in self.handled)


def ends(topic: str, records: int, partitions: int = 1) -> dict[tuple[str, int], int]:
    """Where partitions end."""
    return {(topic, index): records for index in range(partitions)}


def only(fleet: Fleet, topic: str, partition: int = 0) -> PartitionState:
    """The state of a partition."""
    return next(state for state in fleet.look().partitions if state.partition == (topic, partition))


def events_of(fleet: Fleet, kind: type[Event]) -> list[Any]:
    """The events of one kind that a node has emitted."""
    return [event for event in list(fleet.newest) if isinstance(event, kind)]


def in_background(work: Callable[[], object]) -> threading.Thread:
    """Run a function in a thread."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def first_unit(fleet: Fleet) -> Unit:
    """Take the next unit, as a program that iterates does."""
    return next(fleet.units())


def take_away(store: Store) -> bool:
    """Reclaim the only unit in flight, as if its lease had expired. False if its beat changed just now."""
    (out,) = store.pulse().out
    return store.reclaim(out.range, out.seen, Failure(out.range, out.attempt, "taken away"))


def delete_before(kafka: LocalCluster, topic: str, offset: int) -> None:
    """Delete the records before this offset."""
    admin = confluent_admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
    for done in admin.delete_records([confluent_kafka.TopicPartition(topic, 0, offset)]).values():
        done.result(30)
