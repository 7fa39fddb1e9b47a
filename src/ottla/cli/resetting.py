"""Plans a reset of a group's offsets: where it is, where it is to go, kept within the ends of each log.

A goal, what is committed and where logs begin and end come in; one `Move` for each partition goes out, which says what
was cut short and why. Pure: nothing is asked and nothing committed here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from ottla.cli.values.places import parse_partitions
from ottla.errors import InputError

if TYPE_CHECKING:
    from ottla.admin import Committed, OffsetAt, OffsetSpec
    from ottla.model import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class ToTime:
    """The first record at or after a time."""

    time: datetime


@dataclass(frozen=True, slots=True)
class ToOffset:
    """The same offset in each partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class Shift:
    """So many records further, or back if it is negative."""

    by: int


@dataclass(frozen=True, slots=True)
class ToGroup:
    """Where another group is."""

    group: str


Goal: TypeAlias = "OffsetSpec | ToTime | ToOffset | Shift | ToGroup"
"""Of the places, the beginning and the end of each log are meant."""


@dataclass(frozen=True, slots=True)
class Move:
    """What happens to the offset of one partition."""

    partition: TopicPartition
    before: int | None
    after: int
    log: OffsetRange
    leader_epoch: int = -1
    note: str = ""

    @property
    def committed(self) -> Committed:
        """What is to be committed."""
        from ottla.admin import Committed

        return Committed(self.after, self.leader_epoch)


def plan(
    goal: Goal,
    logs: Mapping[TopicPartition, OffsetRange],
    *,
    before: Mapping[TopicPartition, Committed],
    found: Mapping[TopicPartition, OffsetAt],
    other: Mapping[TopicPartition, Committed],
) -> list[Move]:
    """One move for each partition in `logs`.

    `found` is needed for a time: its offsets; `other` for another group: what it has committed.
    """
    return [_move(goal, logs[part], before.get(part), found.get(part), other.get(part)) for part in sorted(logs)]


def _move(
    goal: Goal, log: OffsetRange, before: Committed | None, found: OffsetAt | None, other: Committed | None
) -> Move:
    wanted, note = _wanted(goal, log, before, found, other)
    after = min(max(wanted, log.start), log.stop)
    if after != wanted:
        end = f"the log begins at {log.start}" if after == log.start else f"the log ends at {log.stop}"
        note = f"{wanted} is cut: {end}"
    exact = found if found is not None and found.offset == after else None
    epoch = exact.leader_epoch if exact is not None else -1
    return Move(log.topic_partition, None if before is None else before.offset, after, log, epoch, note)


def _wanted(
    goal: Goal, log: OffsetRange, before: Committed | None, found: OffsetAt | None, other: Committed | None
) -> tuple[int, str]:
    """The offset asked for, and what is to be said of it."""
    from ottla.admin import OffsetSpec

    match goal:
        case OffsetSpec():
            return (log.start if goal is OffsetSpec.EARLIEST else log.stop), ""
        case ToOffset(offset):
            return offset, ""
        case ToTime():
            if found is None or found.offset < 0:
                return log.stop, "no record at or after it: the end"
            return found.offset, ""
        case Shift(by):
            if before is None:
                raise InputError(f"{log.topic_partition} has no committed offset to shift: leave it out")
            return before.offset + by, ""
        case ToGroup(group):
            if other is None:
                raise InputError(f"group {group} has committed nothing for {log.topic_partition}: leave it out")
            return other.offset, ""


def parse_selection(text: str) -> tuple[str, list[int] | None]:
    """`clicks`, or `clicks:0,2-4`: a topic and its partitions, None for all."""
    name, separator, partitions = text.partition(":")
    if not name:
        raise ValueError(f"{text!r} names no topic: write TOPIC or TOPIC:PARTITIONS, for example clicks:0,2-4")
    return name, parse_partitions(partitions) if separator else None


def refuse_missing(name: str, wanted: Collection[int] | None, there: Collection[int]) -> None:
    """InputError for partitions that the topic does not have."""
    missing = sorted(set(wanted or ()) - set(there))
    if missing:
        raise InputError(f"topic {name} has no partition {missing[0]}: it has 0 to {len(there) - 1}")
