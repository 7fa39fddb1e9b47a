"""Plain values: what goes into the spool, where it is, what is read back, and what was lost.

They hold data and do nothing. An entry's records are a view that is written and not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.model import TopicPartition
from ottla.wire.batch import BatchHeader


@dataclass(frozen=True, slots=True)
class Entry:
    """One encoded batch, as it is put into the spool.

    `floor_offset` is an offset before which this batch cannot be in the partition (-1: unknown): where a search of the
    log begins. `supersedes` is the id of the entry that this one replaces, 0 for none: from then on only one of the two
    is read back. `place` is the `Ticket.place` of the entry whose position in the order this one takes, 0 for a new one
    at the end. `created` is in seconds since 1970.
    """

    topic: str
    partition: int
    header: BatchHeader
    records: memoryview | bytes
    floor_offset: int
    created: float
    supersedes: int = 0
    place: int = 0


@dataclass(frozen=True, slots=True)
class Ticket:
    """Where an entry is.

    `size_bytes` is its size on disk. Entries are read back in the order of `place`: the id, or that of the first entry
    in a chain of replacements.
    """

    id: int
    segment: int
    position: int
    size_bytes: int
    place: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry on disk, without its records: `Store.read(ticket)` returns the batch."""

    ticket: Ticket
    topic: str
    partition: int
    header: BatchHeader
    floor_offset: int
    created: float
    supersedes: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition of the batch."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that cannot be trusted, and what is known of the entries that were there.

    `reason` is "cut short" if the file ends before the entry does: a kill in the middle of a write, or a truncated
    file. `entries` is how many batches are gone, where the surrounding ids tell; `header` has sequence and count.
    """

    path: str
    position: int
    size_bytes: int
    reason: str
    topic: str | None = None
    partition: int | None = None
    header: BatchHeader | None = None
    entries: int | None = None

    def __str__(self) -> str:
        subject = (
            "batches are" if self.entries is None else f"{self.entries} batch{'es are' if self.entries != 1 else ' is'}"
        )
        partition = f" of {self.topic}-{self.partition}" if self.topic is not None else ""
        header = self.header
        records = (
            f", {header.count} records from sequence {header.base_sequence} of producer {header.producer_id}"
            if header
            else ""
        )
        place = f"{self.size_bytes} bytes at {self.position}"
        return f"{self.path}: {subject} lost{partition}{records}: {place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that owns a spool: process id, when it took the spool (seconds since 1970), and its host."""

    pid: int
    started: float
    host: str
