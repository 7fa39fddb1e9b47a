"""What lag is made of, as plain values: what a poll saw (`Sample`), and what it means (`Snapshot`).

They hold data and simple sums: no sockets, no clocks. Times are seconds since 1970; offsets are Kafka's.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from ottla.admin.all_brokers import Traffic
from ottla.admin.many_groups import Owner
from ottla.model import TopicPartition


class GroupType(StrEnum):
    """What kind of reader a group is. The first four are Kafka's own."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    """A group with the protocol of KIP-848."""
    SHARE = "share"
    STREAMS = "streams"
    FLEET = "fleet"
    """A fleet of Ottla, which keeps its positions in Kafka."""
    MIRROR = "mirror"
    """A link that mirrors topics to this cluster."""
    SPARK = "spark"
    """A streaming query, by its checkpoint."""


class Method(StrEnum):
    """How `lag_seconds` is known."""

    EXACT = "exact"
    """From the timestamps of the first unread batch and of the newest one."""
    INTERPOLATED = "interpolated"
    """From when earlier polls saw the log end before and after the committed offset."""
    BOUND = "bound"
    """It is at most this: the first unread record lies inside a batch, whose header has only its first timestamp."""
    UNKNOWN = "unknown"


class State(StrEnum):
    """What is wrong with a group in a partition. The first five are Burrow's."""

    OK = "OK"
    WARN = "WARN"
    """It reads, and falls further behind."""
    STOP = "STOP"
    """It has not committed for a long time, and there is something to read."""
    STALL = "STALL"
    """It is alive, and its offset does not move, and there is something to read."""
    REWIND = "REWIND"
    """It committed a lower offset than before, and has not come back to where it was."""
    LOST = "LOST"
    """Records were deleted before it read them: its offset is below the start of the log."""
    AHEAD = "AHEAD"
    """Its offset is beyond the end of the log: the topic was created again, or its log lost records."""
    NONE = "NONE"
    """It has not committed anything for the partition."""
    UNKNOWN = "UNKNOWN"
    """A broker did not answer, or too few polls have seen the partition."""


class Status(StrEnum):
    """The state of a whole group, as Burrow names it."""

    OK = "OK"
    WARN = "WARN"
    ERR = "ERR"
    UNKNOWN = "UNKNOWN"


FAULTS = frozenset({State.STOP, State.STALL, State.REWIND, State.LOST, State.AHEAD})
"""The states that make a group `ERR`."""


class Log(NamedTuple):
    """A partition's log. `end` is None if no broker told it."""

    start: int | None
    end: int | None
    topic_id: uuid.UUID | None = None
    high: int | None = None
    """The end for readers of uncommitted data, where a group is beyond the end for those of committed data."""

    def end_for(self, committed: int) -> int | None:
        """Return the end for a group that has committed this: it may read uncommitted data."""
        if self.end is None or self.high is None or committed <= self.end:
            return self.end
        return min(committed, self.high)


class Times(NamedTuple):
    """What batch headers say about the unread part of a log."""

    first: float | None
    """The timestamp of the first unread record, or the earliest that it can be."""
    newest: float | None
    """The newest timestamp of the last batch."""
    is_exact: bool = True
    """Whether `first` is that of the record itself, not only of the batch around it."""
    is_empty: bool = False
    """Whether nothing is unread but markers of transactions, or records that were aborted."""


@dataclass(frozen=True, slots=True)
class GroupSample:
    """What one poll saw of one group."""

    name: str
    type: GroupType
    state: str = ""
    """As Kafka names it: Stable, Empty, ..."""
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    lags: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Lag that the reader's own bookkeeping knows better than the distance of offsets."""
    owners: Mapping[TopicPartition, Owner] = field(default_factory=dict)
    members: int | None = None
    is_alive: bool = False
    """Whether its reader is known to run, although no member owns partitions."""
    error: str | None = None
    """Why its offsets are unknown."""
    ends: Mapping[TopicPartition, int] | None = None
    """Where the logs end that it reads, if they belong to another cluster."""
    seconds: Mapping[TopicPartition, float] = field(default_factory=dict)
    """Lag in seconds that its reader has published."""

    @property
    def key(self) -> tuple[str, str]:
        """What identifies it: a fleet and a consumer group may have one name."""
        return (self.type if self.type in OF_OTTLA else GroupType.CLASSIC, self.name)


OF_OTTLA = frozenset({GroupType.FLEET, GroupType.MIRROR, GroupType.SPARK})
"""Readers that are no groups of Kafka, and may have the name of one."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How a topic forgets: None for no limit."""

    seconds: float | None = None
    size_bytes: int | None = None
    """Of one partition."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one poll saw."""

    at: float
    """When the commits were read: before the ends of the logs, so that no group is ahead of its log."""
    cluster: str
    groups: tuple[GroupSample, ...]
    logs: Mapping[TopicPartition, Log]
    times: Mapping[tuple[TopicPartition, int], Times] = field(default_factory=dict)
    """By partition and committed offset."""
    retention: Mapping[str, Retention] = field(default_factory=dict)
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Bytes of a partition's largest replica."""
    away: Mapping[int, str] = field(default_factory=dict)
    """Why brokers did not answer, by id."""
    brokers: int = 0
    seconds: float = 0.0
    """How long the poll took."""
    traffic: Traffic = field(default_factory=Traffic)


class Commit(NamedTuple):
    """A committed offset that a poll saw."""

    at: float
    offset: int
    lag: int | None
    """Then."""


@dataclass(frozen=True, slots=True)
class LagRow:
    """A group in one partition."""

    group: str
    type: GroupType
    topic: str
    partition: int
    committed: int | None
    start: int | None
    end: int | None
    lag_records: int | None
    """The distance from the committed offset to the log's end; None if either is unknown."""
    lag_seconds: float | None
    """How much older the first unread record is than the newest one."""
    method: Method
    state: State
    unread_seconds: float | None = None
    """How long ago the first unread record was written."""
    lost_records: int = 0
    """Offsets below the start of the log that were not read."""
    trend: float | None = None
    """By how many records a second the lag grows; negative if it shrinks."""
    consumed_per_second: float | None = None
    produced_per_second: float | None = None
    catch_up_seconds: float | None = None
    """When the lag will be 0, if it goes on like this; None if it does not shrink."""
    retention_seconds: float | None = None
    """When retention will delete the first unread record, at the earliest; None if it will not."""
    owner: Owner | None = None
    note: str = ""
    complete: float = 0.0
    """The share of the window that is filled."""
    window: tuple[Commit, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "group": self.group,
            "topic": self.topic,
            "partition": self.partition,
            "type": str(self.type),
            "state": str(self.state),
            "committed": self.committed,
            "start": self.start,
            "end": self.end,
            "lag_records": self.lag_records,
            "lag_seconds": _rounded(self.lag_seconds),
            "method": str(self.method),
            "unread_seconds": _rounded(self.unread_seconds),
            "lost_records": self.lost_records,
            "trend": _rounded(self.trend),
            "consumed_per_second": _rounded(self.consumed_per_second),
            "produced_per_second": _rounded(self.produced_per_second),
            "catch_up_seconds": _rounded(self.catch_up_seconds),
            "retention_seconds": _rounded(self.retention_seconds),
            "member": None if self.owner is None else self.owner.member_id,
            "client": None if self.owner is None else self.owner.client_id,
            "host": None if self.owner is None else self.owner.host,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group with all its partitions, sorted."""

    name: str
    type: GroupType
    state: str
    """As Kafka names it."""
    status: Status
    rows: tuple[LagRow, ...]
    members: int | None = None
    error: str | None = None

    @property
    def lag_records(self) -> int:
        """The sum of what is known."""
        return sum(row.lag_records for row in self.rows if row.lag_records is not None)

    @property
    def worst(self) -> LagRow | None:
        """The row with the most records, None without any."""
        known = [row for row in self.rows if row.lag_records is not None]
        return max(known, key=lambda row: row.lag_records or 0, default=None)

    @property
    def complete(self) -> float:
        """The share of the partitions whose window is full."""
        return sum(row.complete >= 1 for row in self.rows) / len(self.rows) if self.rows else 0.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All groups as one poll saw them, judged."""

    at: float
    cluster: str
    groups: tuple[GroupLag, ...]
    logs: Mapping[TopicPartition, Log]
    away: Mapping[int, str] = field(default_factory=dict)
    brokers: int = 0
    seconds: float = 0.0
    traffic: Traffic = field(default_factory=Traffic)

    def rows(self) -> Iterable[LagRow]:
        """Return the rows of all groups."""
        return (row for group in self.groups for row in group.rows)


def most(values: Iterable[float | None]) -> float | None:
    """Return the largest of what is known, None if nothing is."""
    return max((value for value in values if value is not None), default=None)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
