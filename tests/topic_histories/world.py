"""One topic, everything that was ever written to it, and what became of each record.

Changes come in, and are made to brokers and to the model alike; judges look at the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum


class Fate(Enum):
    """What became of a record."""

    PRESENT = "it is there"
    EXPIRED = "retention, or somebody who deletes records, took it away"
    CUT = "the log was cut back by a leader that did not have it"
    COMPACTED = "a later record made it superfluous"
    REPLACED = "its topic was deleted, and another one has the name"


@dataclass(slots=True)
class Written:
    """A record: its value is unique in the world."""

    incarnation: int
    partition: int
    offset: int
    value: bytes
    fate: Fate = Fate.PRESENT
    gone_at: int = -1
    """At which moment of the world."""


@dataclass(slots=True)
class Log:
    """One partition as it is now."""

    start: int = 0
    end: int = 0
    records: list[Written] = field(default_factory=list)


class World(ABC):
    """`clock` counts changes; `logs` are the partitions of the topic that is there."""

    topic: str
    bootstrap: str

    def __init__(self) -> None:
        self.clock = 0
        self.incarnation = 0
        self.logs: list[Log] = []
        self.ever: dict[bytes, Written] = {}
        self.diary: list[str] = []
        self._number = 0

    # Changes

    def create(self, partitions: int) -> None:
        """The topic comes into being."""
        self._note(f"created with {partitions} partitions")
        self.logs = [Log() for _ in range(partitions)]
        self._create(partitions)

    def write(self, partition: int, count: int) -> None:
        """So many records, in one batch."""
        self._note(f"{count} records to {partition}")
        log = self.logs[partition]
        new = []
        for index in range(count):
            self._number += 1
            value = b"%d/%d/%d" % (self.incarnation, partition, self._number)
            new.append(Written(self.incarnation, partition, log.end + index, value))
        self._write(partition, [one.value for one in new], log.end)
        log.end += count
        log.records += new
        self.ever |= {one.value: one for one in new}

    def grow(self) -> None:
        """One partition more."""
        self._note(f"grows to {len(self.logs) + 1} partitions")
        self._grow(len(self.logs) + 1)
        self.logs.append(Log())

    def expire(self, partition: int, offset: int) -> None:
        """What lies before the offset goes."""
        self._note(f"{partition} expires up to {offset}")
        self._expire(partition, offset)
        log = self.logs[partition]
        log.start = max(log.start, offset)
        self._end([one for one in log.records if one.offset < offset], Fate.EXPIRED)

    def cut(self, partition: int, offset: int) -> None:
        """What lies from the offset on goes, and another leader goes on there; to the edge of a batch."""
        log = self.logs[partition]
        edge = self._cut(partition, max(offset, log.start))
        self._note(f"{partition} is cut back to {edge}")
        self._end([one for one in log.records if one.offset >= edge], Fate.CUT)
        log.end = edge

    def compact(self, partition: int) -> None:
        """Some records in the middle go, and their offsets stay empty."""
        self._note(f"{partition} is compacted")
        gone = set(self._compact(partition))
        self._end([one for one in self.logs[partition].records if one.offset in gone], Fate.COMPACTED)

    def recreate(self, partitions: int, counts: list[int]) -> None:
        """Another topic has the name from now on; it has so many records in its partitions very soon."""
        self._note(f"deleted, and created again with {partitions} partitions")
        for log in self.logs:
            self._end(log.records, Fate.REPLACED)
        self._delete()
        self.incarnation += 1
        self.logs = [Log() for _ in range(partitions)]
        self._create(partitions)
        for partition, count in enumerate(counts[:partitions]):
            if count:
                self.write(partition, count)

    # What can be said of it

    @property
    def ends(self) -> dict[int, int]:
        """Where each log ends."""
        return {number: log.end for number, log in enumerate(self.logs)}

    @property
    def present(self) -> list[Written]:
        """What can be read now."""
        return [one for log in self.logs for one in log.records]

    def _end(self, gone: list[Written], fate: Fate) -> None:
        for one in gone:
            one.fate, one.gone_at = fate, self.clock
        for log in self.logs:
            log.records = [one for one in log.records if one.fate is Fate.PRESENT]

    def _note(self, what: str) -> None:
        self.clock += 1
        self.diary.append(f"{self.clock}: {what}")

    # On brokers

    @abstractmethod
    def _create(self, partitions: int) -> None: ...

    @abstractmethod
    def _delete(self) -> None: ...

    @abstractmethod
    def _write(self, partition: int, values: list[bytes], base: int) -> None: ...

    @abstractmethod
    def _grow(self, total: int) -> None: ...

    @abstractmethod
    def _expire(self, partition: int, offset: int) -> None: ...

    def _cut(self, partition: int, offset: int) -> int:
        raise NotImplementedError

    def _compact(self, partition: int) -> list[int]:
        raise NotImplementedError

    can_cut = can_compact = False

    @abstractmethod
    def committed(self, group: str) -> dict[int, int]:
        """What a group has committed for the topic, by partition."""
