"""What goes into the spool, where it lies, what is read back, and what was lost: plain values.

They hold data and do nothing; an entry's records are a view that is written and not kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from ottla.model import TopicPartition
from ottla.wire.batch import BatchHeader


@dataclass(frozen=True, slots=True)
class Entry:
    """One encoded batch, as it is put into the spool.

    `floor_offset` is an offset of the partition before which this batch cannot be (-1: not known): where to begin when
    looking for it in the log. `supersedes` is the id of the entry that this one replaces, 0 for none: from then
    on only one of the two is ever handed out. `place` is the ticket's of an entry in whose place in the order this one
    stands, 0 for a new one at the end. `created` is seconds since 1970.
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
    """Where an entry lies. `size_bytes` is what it takes on disk; entries are handed out in the order of `place`: the
    id, or what it was for the first of those that this one stands for."""

    id: int
    segment: int
    position: int
    size_bytes: int
    place: int = 0


@dataclass(frozen=True, slots=True)
class Stored:
    """An entry that is on disk, without its records: `Store.read(ticket)` brings the batch."""

    ticket: Ticket
    topic: str
    partition: int
    header: BatchHeader
    floor_offset: int
    created: float
    supersedes: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Where the batch belongs."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes of a segment that cannot be trusted, and what is known of the entries that were there.

    `reason` is "cut short" when the file ends before the entry does: a kill in the middle of a write, or a truncated
    file. `entries` is how many batches are gone, where the ids around the place tell; `header` has sequence and count.
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
        what = (
            "batches are" if self.entries is None else f"{self.entries} batch{'es are' if self.entries != 1 else ' is'}"
        )
        where = f" of {self.topic}-{self.partition}" if self.topic is not None else ""
        h = self.header
        which = f", {h.count} records from sequence {h.base_sequence} of producer {h.producer_id}" if h else ""
        return f"{self.path}: {what} lost{where}{which}: {self.size_bytes} bytes at {self.position}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a spool: process id, when it took the spool (seconds since 1970), and on which machine."""

    pid: int
    started: float
    host: str
