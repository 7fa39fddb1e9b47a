"""Where to begin and to stop reading, as people say it: `"earliest"`, a time, an offset, what a group has committed.

Places come in, offsets and ranges for each partition go out. What must be asked of the brokers is asked here, all
leaders at once.
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
    """Where a consumer group has got to; `otherwise` for partitions of which it has committed nothing."""

    group: str
    otherwise: str = "earliest"

    def __post_init__(self) -> None:
        if self.otherwise not in _SPECS:
            raise InputError(f"CommittedBy(otherwise={self.otherwise!r}) is not 'earliest' or 'latest'")


Bound = str | int | datetime | CommittedBy | Mapping[TopicPartition, int] | Mapping[int, int]
"""A place in every partition of a topic."""


def check(place: object, name: str) -> None:
    """Refuses what is no place before anything is asked."""
    match place:
        case "earliest" | "latest" | CommittedBy():
            return
        case datetime():
            wire_timestamp(place)
            return
        case int() if not isinstance(place, bool):
            if place < 0:
                raise InputError(f"{name} is offset {place}; offsets begin at 0")
            return
        case Mapping():
            for key, offset in place.items():
                if not isinstance(offset, int) or offset < 0:
                    raise InputError(f"{name}: the offset of {key} is {offset!r}; offsets are whole numbers from 0")
            return
    raise InputError(f"{name} is {place!r}; accepted are {ACCEPTED}")


def resolve(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    place: Bound,
    *,
    isolation: Isolation,
    deadline: Deadline,
    ids: Mapping[str, UUID | None] | None = None,
) -> dict[TopicPartition, int]:
    """The offset of the place in each of the partitions. A time after the last record is the end of the log.

    With the `ids` of the topics, what a group has committed for an earlier topic of the same name does not count.
    """
    match place:
        case str():
            return _find(cluster, partitions, _SPECS[place], isolation, deadline)
        case datetime():
            found = _find(cluster, partitions, place, isolation, deadline)
            after = [at for at, offset in found.items() if offset < 0]
            ends = _find(cluster, after, OffsetSpec.LATEST, isolation, deadline) if after else {}
            return {at: ends.get(at, offset) for at, offset in found.items()}
        case int():
            return dict.fromkeys(partitions, place)
        case CommittedBy(group, otherwise):
            from ottla.admin.committed import fetch_committed

            committed = fetch_committed(cluster, GroupMember(group), partitions, ids=ids, deadline=deadline)
            missing = [at for at in partitions if at not in committed]
            rest = _find(cluster, missing, _SPECS[otherwise], isolation, deadline) if missing else {}
            return {at: committed[at].offset if at in committed else rest[at] for at in partitions}
    return {at: _given(place, at) for at in partitions}


def _given(place: Mapping[TopicPartition, int] | Mapping[int, int], at: TopicPartition) -> int:
    given: dict[object, int] = dict(place.items())
    offset = given.get(at, given.get(at.partition))
    if offset is None:
        raise InputError(f"no offset is given for {at}; those given are for {', '.join(map(str, place)) or 'none'}")
    return offset


class Beyond(NamedTuple):
    """An offset at which reading was to begin, and where the log has ended before it."""

    at: TopicPartition
    offset: int
    ends: LogExtent


def beyond(
    cluster: Cluster,
    place: Bound,
    starts: Mapping[TopicPartition, int],
    stops: Mapping[TopicPartition, int],
    *,
    deadline: Deadline,
) -> list[Beyond]:
    """The partitions in which `place`, at `starts`, lies behind everything that was ever written.

    An offset for all partitions is a place as long as one of them has it.
    """
    suspects = [at for at, offset in starts.items() if offset > stops[at]]
    if not suspects or isinstance(place, str | datetime):
        return []
    # Records of open transactions are there.
    first, last = (
        _find(cluster, suspects, spec, Isolation.READ_UNCOMMITTED, deadline)
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    )
    found = [Beyond(at, starts[at], LogExtent(first[at], last[at])) for at in suspects if starts[at] > last[at]]
    return [] if isinstance(place, int) and len(found) < len(starts) else found


def mentioned(place: object) -> frozenset[object] | None:
    """The partitions that a mapping names; None for any other place."""
    return frozenset(place) if isinstance(place, Mapping) else None


def span(start: Mapping[TopicPartition, int], stop: Mapping[TopicPartition, int]) -> list[OffsetRange]:
    """A range for each partition; empty where it would end before it begins."""
    return [OffsetRange(*at, first, max(first, stop[at])) for at, first in sorted(start.items())]


def _find(
    cluster: Cluster,
    partitions: Collection[TopicPartition],
    at: OffsetSpec | datetime,
    isolation: Isolation,
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    found = find_offsets(cluster, partitions, at=at, isolation=isolation, deadline=deadline)
    return {partition: place.offset for partition, place in found.items()}
