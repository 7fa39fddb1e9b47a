"""A pipeline of tiers for tests, each a topic, with faults planted on the way from one to the next."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import pyarrow as pa

from ottla.admin import Admin
from ottla.produce.producer import Producer

BEGIN = 1_767_225_600
"""2026-01-01, in seconds since 1970."""
BUCKET = 600
PARTITIONS = 4
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@dataclass(frozen=True)
class Item:
    """A record of the pipeline."""

    partition: int
    key: bytes | None
    value: bytes | None
    time: int
    """Milliseconds since 1970."""

    @property
    def bucket(self) -> int:
        return self.time // 1000 // BUCKET * BUCKET


Log = list[Item]


@dataclass
class Planted:
    """What was done on the way to a tier: `(verdict, partition, offset)`, on the side where the record is."""

    faults: int = 0
    expected: set[tuple[str, str, int, int]] = field(default_factory=set)
    """(verdict, side, partition, offset)."""
    moved: dict[tuple[int, int], int] = field(default_factory=dict)
    """Where a record is by (partition, offset) on the left, by its partition on the right."""
    buckets: set[int] = field(default_factory=set)
    late: Log = field(default_factory=list)


def clean(count: int, *, minutes: int = 120, chance: random.Random | None = None) -> dict[int, Log]:
    """Records by partition: some without a key, some tombstones, times that rise roughly."""
    chance = chance or random.Random(1)
    logs: dict[int, Log] = {partition: [] for partition in range(PARTITIONS)}
    for number in range(count):
        time = (BEGIN + number * minutes * 60 // count) * 1000 + chance.randrange(5000)
        key = None if number % 13 == 0 else b"user-%d" % number
        value = None if number % 101 == 7 and key else b"%08d" % number
        partition = number % PARTITIONS
        logs[partition].append(Item(partition, key, value, time))
    return logs


def passed_on(logs: dict[int, Log], faults: int, chance: random.Random) -> tuple[dict[int, Log], Planted]:
    """Return what arrives at the next tier, and what was done to it: `faults` of each kind."""
    planted = Planted()
    # Of two equal records it would be a matter of taste which one is missing.
    copies = Counter(record for log in logs.values() for record in log)
    places = [
        (partition, offset) for partition, log in logs.items() for offset, one in enumerate(log) if copies[one] == 1
    ]
    picked = iter(chance.sample(places, faults * 8))
    # What becomes of each record: the records that arrive in its place.
    fate: dict[tuple[int, int], Log] = {}
    doubled: list[tuple[int, int]] = []

    def item(place: tuple[int, int]) -> Item:
        planted.buckets.add(logs[place[0]][place[1]].bucket)
        return logs[place[0]][place[1]]

    for _ in range(faults):
        drop, double, gone, twin, altered, late = (next(picked) for _ in range(6))
        for place in (drop, gone):
            item(place)
            fate[place] = []
            planted.expected.add(("missing", "left", *place))
        for place in (double, twin):
            fate[place] = [item(place)] * 2
            doubled.append(place)
        changed = item(altered)
        fate[altered] = [replace(changed, value=b"altered " + (changed.value or b""))]
        planted.expected.add(("altered", "left", *altered))
        fate[late] = []
        planted.late.append(item(late))
        planted.expected.add(("missing", "left", *late))
        planted.faults += 5
    for _ in range(faults):
        one = next(place for place in places if place not in fate and chance.random() < 0.01)
        other = next(place for place in places if place not in fate and place[0] != one[0] and chance.random() < 0.01)
        for place, target in ((one, other), (other, one)):
            fate[place] = [replace(item(place), partition=target[0])]
            planted.expected.add(("altered", "left", *place))
            planted.moved[place] = target[0]
        planted.faults += 1
    arrived: dict[int, Log] = {partition: [] for partition in logs}
    for partition, log in logs.items():
        for offset, record in enumerate(log):
            for copy, arriving in enumerate(fate.get((partition, offset), [record])):
                destination = arrived[arriving.partition]
                if copy:
                    planted.expected.add(("duplicated", "right", arriving.partition, len(destination)))
                destination.append(arriving)
    return arrived, planted


def write(
    bootstrap: str, topic: str, logs: Iterable[Log], *, partitions: int = PARTITIONS, create: bool = True
) -> None:
    """Create a topic and write records to the partitions they name, in order."""
    if create:
        with Admin(bootstrap) as admin:
            admin.create_topic(topic, partitions=partitions, replicas=1)
    rows = [record for log in logs for record in log]
    table = pa.table(
        {
            "key": pa.array([record.key for record in rows], pa.binary()),
            "value": pa.array([record.value for record in rows], pa.binary()),
            "timestamp": pa.array([record.time for record in rows], pa.int64()),
            "partition": pa.array([record.partition for record in rows], pa.int32()),
        }
    )
    with Producer(bootstrap) as producer:
        producer.send_table(topic, table)
