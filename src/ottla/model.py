"""Plain values that all packages share: partitions, offset ranges, group members, fingerprints, receipts.

They must hold data and nothing else: no sockets, no clocks, no settings. Ranges are half-open, `[start, stop)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from ottla.text import printable

_MASK_128 = (1 << 128) - 1


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{printable(self.topic)}-{self.partition}"


class Record(NamedTuple):
    """A record, for programs that process them one by one."""

    topic: str
    partition: int
    offset: int
    timestamp: float
    """Seconds since 1970."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Isolation(IntEnum):
    """Which records of transactions a reader sees. The members have the protocol's numbers."""

    READ_UNCOMMITTED = 0
    """All records, those of open and aborted transactions included."""
    READ_COMMITTED = 1
    """Only records of committed transactions, and those without one, up to the first open transaction."""


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets `[start, stop)` of a partition: the unit of planning, running and proving."""

    topic: str
    partition: int
    start: int
    stop: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.stop < self.start:
            raise ValueError(f"offset range needs 0 <= start <= stop, got [{self.start}, {self.stop})")

    def __len__(self) -> int:
        return self.stop - self.start

    def __contains__(self, offset: int) -> bool:
        return self.start <= offset < self.stop

    def __str__(self) -> str:
        return f"{printable(self.topic)}-{self.partition}[{self.start}, {self.stop})"

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition this range belongs to."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A consumer group to commit offsets for. With member id and generation, brokers reject an outdated member.

    `generation` is the member epoch if the group uses the protocol of KIP-848.
    """

    group: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    """The id of a static member (KIP-345)."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The number of records, and the sum of their 128-bit content hashes modulo 2**128.

    The sum does not depend on order or batching, so the same records give the same fingerprint no matter how they were
    moved. Because it is a sum and not an xor, a duplicate changes it and cannot hide a loss.
    """

    count: int = 0
    total: int = 0
    """The sum of the hashes, an unsigned 128-bit number."""

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.count + other.count, (self.total + other.total) & _MASK_128)

    def __sub__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.count - other.count, (self.total - other.total) & _MASK_128)

    def __str__(self) -> str:
        return f"{self.count}:{self.total:032x}"

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """Parse the result of `str`."""
        count, _, total = text.partition(":")
        return cls(int(count), int(total, 16))


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof that a range was moved: what was in it, which host moved it, and when."""

    range: OffsetRange
    fingerprint: Fingerprint
    """The number of records and their content."""
    size_bytes: int
    """The size of keys, values and headers."""
    first_time: float | None
    """The oldest record timestamp, in seconds since 1970; None if there was no record."""
    last_time: float | None
    host: str
    """The host that moved the range."""
    started: float
    """Seconds since 1970."""
    seconds: float
    """How long it took."""

    @property
    def count(self) -> int:
        """The number of records. Fewer than the length of the range if the log has gaps."""
        return self.fingerprint.count

    def to_json(self) -> dict[str, Any]:
        """Return plain values that `from_json` accepts."""
        return {
            "topic": self.range.topic,
            "partition": self.range.partition,
            "start": self.range.start,
            "stop": self.range.stop,
            "fingerprint": str(self.fingerprint),
            "size_bytes": self.size_bytes,
            "first_time": self.first_time,
            "last_time": self.last_time,
            "host": self.host,
            "started": self.started,
            "seconds": self.seconds,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Receipt:
        """Build a receipt from the result of `to_json`."""
        return cls(
            range=OffsetRange(row["topic"], row["partition"], row["start"], row["stop"]),
            fingerprint=Fingerprint.parse(row["fingerprint"]),
            size_bytes=row["size_bytes"],
            first_time=row["first_time"],
            last_time=row["last_time"],
            host=row["host"],
            started=row["started"],
            seconds=row["seconds"],
        )
