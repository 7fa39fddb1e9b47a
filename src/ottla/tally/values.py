"""What was counted: slices of a time bucket, and the two kinds of tallies that carry them.

A `RangeTally` was counted from a log: counting the same offsets again gives the same numbers. A `SessionPage` was
counted by a running client and grows while the client runs; the last one that it published counts. Both are plain
values, and their fields are those of the audit topic's JSON (`docs/audit.md`). Times are seconds since 1970.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from ottla.errors import ConfigError
from ottla.model import OffsetRange

DEFAULT_BUCKET_SECONDS = 600
LONGEST_BUCKET_SECONDS = 7 * 86_400
AUDIT_TOPIC = "ottla-audit"
RECORD_TIME = "record"
"""Buckets by the records' own timestamps."""
APPEND_TIME = "append"
"""The same where the broker sets them: other tiers have other times for the same records."""
_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
_MASK = (1 << 128) - 1

Name = Annotated[str, msgspec.Meta(max_length=249)]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[int, msgspec.Meta(ge=1, le=LONGEST_BUCKET_SECONDS)]
Hex = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$")]


class Slice(msgspec.Struct, frozen=True, kw_only=True, gc=False, omit_defaults=True):
    """Records of one partition in one bucket."""

    start: int
    """When the bucket begins."""
    count: Count
    bytes: Count
    """Keys, values and headers; of a tally by headers alone the batches as they are stored."""
    fingerprint: Hex | None
    """The sum of the record hashes modulo 2**128 in hexadecimal; None if only headers were read."""
    first: float
    """The earliest time of a record."""
    last: float
    partition: int = 0

    @property
    def total(self) -> int | None:
        """The fingerprint as a number."""
        return None if self.fingerprint is None else int(self.fingerprint, 16)

    def __add__(self, other: Slice) -> Slice:
        """The records of both. The bucket and the partition are those of the first."""
        mine, theirs = self.total, other.total
        return Slice(
            start=self.start,
            count=self.count + other.count,
            bytes=self.bytes + other.bytes,
            fingerprint=None if mine is None or theirs is None else as_hex(mine + theirs),
            first=min(self.first, other.first),
            last=max(self.last, other.last),
            partition=self.partition,
        )


class RangeTally(msgspec.Struct, frozen=True, kw_only=True, tag="range", tag_field="kind"):
    """The records of the offsets `[start, stop)` of a partition, counted from the log."""

    version: Literal[1] = 1
    tier: Name
    topic: Name
    topic_id: Name = ""
    """Offsets belong to a topic id: a topic that was deleted and created again has another one."""
    partition: Count
    start: Count
    stop: Count
    bucket_seconds: Seconds
    time: Name = RECORD_TIME
    """`record`, `append` if the broker sets the time, or where in the payload it was found."""
    partitions: Count = 0
    """How many partitions the topic has; 0 if the writer did not know."""
    as_of: float | None = None
    """When the log ended at `stop`; None if it was longer."""
    since: float | None = None
    """No record before `start` is as new as this; None if there is nothing before `start`, or it is not known."""
    first_counted: float | None = None
    """When a log with this topic id was first counted: it existed by then. None if the writer did not know."""
    part: Count = 0
    parts: Annotated[int, msgspec.Meta(ge=1)] = 1
    """A range with very many buckets takes several messages; it counts if all of them are there."""
    records: Count
    """The records of all parts."""
    host: str = ""
    service: str = ""
    written: float = 0.0
    buckets: tuple[Slice, ...]

    @property
    def range(self) -> OffsetRange:
        """The offsets."""
        return OffsetRange(self.topic, self.partition, self.start, self.stop)


class SessionPage(msgspec.Struct, frozen=True, kw_only=True, tag="session", tag_field="kind"):
    """What one client has counted of one topic so far, or for a while: pages add up.

    Everything that it counted before `as_of` is in its pages. What it counted since is in buckets between `floor` and
    `ceiling`: if the client died without a word, these are unknown and all others are exact.
    """

    version: Literal[1] = 1
    tier: Name
    topic: Name
    session: Name
    page: Count
    number: Count
    """Grows with every publication: of two pages with the same number of page, the higher one counts."""
    state: Literal["open", "full", "closed"]
    """`open` while the client may count more, `full` if another page continues, `closed` if the client has ended."""
    role: Name = ""
    """`producer` or `consumer`."""
    bucket_seconds: Seconds
    floor: int
    ceiling: int
    as_of: float
    lease: float
    """How long after `as_of` the client counts as alive without another publication."""
    unsure: tuple[int, ...] = ()
    """Buckets with records that may or may not have arrived."""
    is_doubtful: bool = False
    """Whether the client itself lost count."""
    host: str = ""
    service: str = ""
    buckets: tuple[Slice, ...]


AuditMessage = RangeTally | SessionPage


def as_hex(total: int) -> str:
    """Return a fingerprint sum as it is stored."""
    return f"{total & _MASK:032x}"


def check_name(what: str, name: object) -> str:
    """Return the name of a tier or service. Raises `ConfigError` for one that is empty, long or has odd characters."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"{what} {name!r:.120}: 1 to 100 letters, digits, '.', '_' and '-' are accepted")
    return name


def check_bucket(seconds: object) -> int:
    """Return the length of a bucket in whole seconds. Raises `ConfigError` for anything but 1 second to a week."""
    is_whole = isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds == seconds // 1
    if not is_whole or not 1 <= int(seconds) <= LONGEST_BUCKET_SECONDS:  # type: ignore[call-overload]
        raise ConfigError(
            f"a bucket of {seconds!r} seconds; whole seconds from 1 to {LONGEST_BUCKET_SECONDS:,} are accepted"
        )
    return int(seconds)  # type: ignore[call-overload, no-any-return]


def time_kind(time: str) -> str:
    """Return what `RangeTally.time` has to be equal in for two tallies to be added: the topic chooses who sets it."""
    return RECORD_TIME if time == APPEND_TIME else time


def bucket_of(time: float, seconds: int) -> int:
    """Return when the bucket of a time begins."""
    return int(time // seconds) * seconds


def add_up(slices: Any) -> dict[tuple[int, int], Slice]:
    """Add slices of the same partition and bucket. Returns them by (partition, bucket)."""
    sums: dict[tuple[int, int], Slice] = {}
    for piece in slices:
        place = piece.partition, piece.start
        before = sums.get(place)
        sums[place] = piece if before is None else before + piece
    return sums
