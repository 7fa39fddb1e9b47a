"""Where to start and stop reading, as users say it: `"earliest"`, a time, an offset, what a group has committed.

Bounds come in, offsets and ranges for each partition go out. Offsets that only brokers know are requested here, from
all leaders at once. It reads no records.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ottla.admin.lookup import find_offsets
from ottla.admin.offsets import OffsetSpec, wire_timestamp
from ottla.errors import InputError
from ottla.fetch.log_extent import LogExtent
from ottla.model import GroupMember, Isolation, OffsetRange, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline

ACCEPTED = (
    "'earliest', 'latest', an offset, a datetime with a time zone, CommittedBy(group), and a mapping of partitions to"
    " offsets"
)
_SPECS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}


@dataclass(frozen=True, slots=True)
class CommittedBy:
    """The committed offsets of a consumer group. `otherwise` is for partitions without one.

    Raises `InputError` if `otherwise` is neither "earliest" nor "latest".
    """

    group: str
    otherwise: str = "earliest"

    def __post_init__(self) -> None:
        if self.otherwise not in _SPECS:
            raise InputError(f"CommittedBy(otherwise={self.otherwise!r}) is not 'earliest' or 'latest'")


Bound = str | int | datetime | CommittedBy | Mapping[TopicPartition, int] | Mapping[int, int]
"""A position in every partition of a topic."""


def check(bound: object, name: str) -> None:
    """Check an argument before any request is sent. Raises `InputError` if it is not a bound."""
    match bound:
        case "earliest" | "latest" | CommittedBy():
            return
        case datetime():
            wire_timestamp(bound)
            return
        case int() if not isinstance(bound, bool):
            if bound < 0:
                raise InputError(f"{name} is offset {bound}; offsets begin at 0")
            return
        case Mapping():
            for key, offset in bound.items():
                if not isinstance(offset, int) or offset < 0:
                    raise InputError(f"{name}: the offset of {key} is {offset!r}; offsets are whole numbers from 0")
            return
    raise InputError(f"{name} is {bound!r}; accepted are {ACCEPTED}")


def resolve(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    bound: Bound,
    *,
    isolation: Isolation,
    deadline: Deadline,
    ids: Mapping[str, UUID | None] | None = None,
) -> dict[TopicPartition, int]:
    """Return the offset of the bound in each partition. A time after the last record is the end of the log.

    With the `ids` of the topics, offsets that a group committed for an earlier topic of the same name are ignored.
    Raises `InputError` if a mapping lacks a partition, and the errors of `Cluster.call` if brokers do not answer.
    """
    match bound:
        case str():
            return _find(cluster, partitions, _SPECS[bound], isolation, deadline)
        case datetime():
            offsets = _find(cluster, partitions, bound, isolation, deadline)
            past_end = [partition for partition, offset in offsets.items() if offset < 0]
            ends = _find(cluster, past_end, OffsetSpec.LATEST, isolation, deadline) if past_end else {}
            return offsets | ends
        case int():
            return dict.fromkeys(partitions, bound)
        case CommittedBy(group, otherwise):
            from ottla.admin.committed import fetch_committed

            committed = fetch_committed(cluster, GroupMember(group), partitions, ids=ids, deadline=deadline)
            missing = [partition for partition in partitions if partition not in committed]
            rest = _find(cluster, missing, _SPECS[otherwise], isolation, deadline) if missing else {}
            return {
                partition: committed[partition].offset if partition in committed else rest[partition]
                for partition in partitions
            }
    return {partition: _given(bound, partition) for partition in partitions}


def _given(bound: Mapping[TopicPartition, int] | Mapping[int, int], tp: TopicPartition) -> int:
    offsets: dict[object, int] = dict(bound.items())
    offset = offsets.get(tp, offsets.get(tp.partition))
    if offset is None:
        raise InputError(f"no offset is given for {tp}; those given are for {', '.join(map(str, bound)) or 'none'}")
    return offset


class BeyondEnd(NamedTuple):
    """A start offset behind the end of its log."""

    partition: TopicPartition
    offset: int
    extent: LogExtent


def beyond_end(cluster: Cluster, starts: Mapping[TopicPartition, int], *, deadline: Deadline) -> list[BeyondEnd]:
    """Return the partitions whose start lies behind everything that was ever written."""
    # Uncommitted, because records of open transactions count as written.
    first, last = (
        _find(cluster, starts, spec, Isolation.READ_UNCOMMITTED, deadline)
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    )
    return [
        BeyondEnd(partition, offset, LogExtent(first[partition], last[partition]))
        for partition, offset in starts.items()
        if offset > last[partition]
    ]


def named_partitions(bound: object) -> frozenset[object] | None:
    """Return the partitions that a mapping names, None for any other bound."""
    return frozenset(bound) if isinstance(bound, Mapping) else None


def ranges_between(starts: Mapping[TopicPartition, int], stops: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """Return a range for each partition, empty if it would end before it starts."""
    return [OffsetRange(*partition, start, max(start, stops[partition])) for partition, start in sorted(starts.items())]


def _find(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    spec: OffsetSpec | datetime,
    isolation: Isolation,
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    offsets = find_offsets(cluster, partitions, at=spec, isolation=isolation, deadline=deadline)
    return {partition: entry.offset for partition, entry in offsets.items()}
