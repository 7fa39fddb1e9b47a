"""Plain values that every room shares: partitions, offset ranges, members of groups, fingerprints, receipts.

They hold data and nothing else: no sockets, no clocks, no settings. Ranges are half-open, `[start, stop)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from ottla.text import printable

_MASK_128 = (1 << 128) - 1


class TopicPartition(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{printable(self.topic)}-{self.partition}"


class Record(NamedTuple):
    """One record, for programs that take them one by one."""

    topic: str
    partition: int
    offset: int
    timestamp: float
    """Seconds since 1970."""
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Isolation(IntEnum):
    """Which records of transactions a reader sees; the value is the protocol's."""

    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets `[start, stop)` of one partition: the unit of planning, running and proving."""

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
    """A consumer group whose offsets are committed; with member id and generation, an outdated member is refused.

    `generation` is the member epoch where the group speaks the protocol of KIP-848.
    """

    group: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """How many records, and the sum of their 128-bit content hashes modulo 2**128.

    The sum does not depend on order or on batching, so the same records give the same fingerprint whoever moved
    them; and since it is a sum and not an exclusive or, a duplicate changes it and cannot hide a loss.
    """

    count: int = 0
    total: int = 0

    def __add__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.count + other.count, (self.total + other.total) & _MASK_128)

    def __sub__(self, other: Fingerprint) -> Fingerprint:
        return Fingerprint(self.count - other.count, (self.total - other.total) & _MASK_128)

    def __str__(self) -> str:
        return f"{self.count}:{self.total:032x}"

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        """What `str` made of one."""
        count, _, total = text.partition(":")
        return cls(int(count), int(total, 16))


@dataclass(frozen=True, slots=True)
class Receipt:
    """The proof that one range was moved: what was in it, who moved it, and when."""

    range: OffsetRange
    fingerprint: Fingerprint
    """How many records, and what was in them."""
    size_bytes: int
    """Of keys, values and headers."""
    first_time: float | None
    """The oldest timestamp of a record, in seconds since 1970; None if there was no record."""
    last_time: float | None
    host: str
    started: float
    """Seconds since 1970."""
    seconds: float
    """How long it took."""

    @property
    def count(self) -> int:
        """How many records there were: fewer than the range is long where the log has holes."""
        return self.fingerprint.count

    def to_json(self) -> dict[str, Any]:
        """As plain values that `from_json` takes back."""
        one = self.range
        return {
            "topic": one.topic,
            "partition": one.partition,
            "start": one.start,
            "stop": one.stop,
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
        """What `to_json` made of one."""
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
