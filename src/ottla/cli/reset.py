"""Plans a reset of positions, for `ottla groups reset` and `ottla work reset`, and shows it.

A place, the present positions and the logs become one `Move` for each partition, cut to the ends of its log. Pure:
nothing is fetched or committed here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ottla.cli.output.tables import table
from ottla.cli.values.numbers import thousands
from ottla.cli.values.places import LastRecords, Place, Shift, parse_partitions
from ottla.errors import InputError

if TYPE_CHECKING:
    from ottla.admin import Committed, OffsetAt
    from ottla.model import OffsetRange, TopicPartition


@dataclass(frozen=True, slots=True)
class Move:
    """What happens to the position of one partition."""

    partition: TopicPartition
    before: int | None
    after: int
    log: OffsetRange
    leader_epoch: int = -1
    note: str = ""

    @property
    def committed(self) -> Committed:
        """The offset to commit."""
        from ottla.admin import Committed

        return Committed(self.after, self.leader_epoch)


def plan(
    goal: Place,
    logs: Mapping[TopicPartition, OffsetRange],
    *,
    before: Mapping[TopicPartition, Committed],
    at_time: Mapping[TopicPartition, OffsetAt],
    other: Mapping[TopicPartition, Committed],
) -> list[Move]:
    """Return one move for each partition in `logs`.

    `at_time` has the offsets of the goal if it is a time, `other` what the group has committed if it is a group. Raises
    InputError for a partition that has no committed offset to move from or to.
    """
    return [_move(goal, logs[tp], before.get(tp), at_time.get(tp), other.get(tp)) for tp in sorted(logs)]


def _move(
    goal: Place, log: OffsetRange, before: Committed | None, at_time: OffsetAt | None, other: Committed | None
) -> Move:
    target, note = _target(goal, log, before, at_time, other)
    after = min(max(target, log.start), log.stop)
    if after != target:
        end = f"the log starts at {log.start}" if target < log.start else f"the log ends at {log.stop}"
        note = f"not {target}: {end}"
    epoch = at_time.leader_epoch if at_time is not None and at_time.offset == after else -1
    return Move(log.topic_partition, None if before is None else before.offset, after, log, epoch, note)


def _target(
    goal: Place, log: OffsetRange, before: Committed | None, at_time: OffsetAt | None, other: Committed | None
) -> tuple[int, str]:
    """Return the offset of the goal, and a note about it."""
    match goal:
        case "earliest":
            return log.start, ""
        case "latest":
            return log.stop, ""
        case int():
            return goal, ""
        case LastRecords(count):
            return max(log.start, log.stop - count), ""
        case datetime():
            if at_time is None or at_time.offset < 0:
                return log.stop, "no record at or after it: the end"
            return at_time.offset, ""
        case Shift(by):
            if before is None:
                raise InputError(f"{log.topic_partition} has no committed offset to shift: leave it out")
            return before.offset + by, ""
    if other is None:
        raise InputError(f"group {goal.group} has committed nothing for {log.topic_partition}: leave it out")
    return other.offset, ""


def parse_selection(text: str) -> tuple[str, list[int] | None]:
    """Return the topic of `clicks` or `clicks:0,2-4` and its partitions, None for all. Raises ValueError otherwise."""
    name, separator, partitions = text.partition(":")
    if not name:
        raise ValueError(f"{text!r} has no topic: write TOPIC or TOPIC:PARTITIONS, for example clicks:0,2-4")
    return name, parse_partitions(partitions) if separator else None


def require_partitions(topic: str, selected: Collection[int] | None, existing: Collection[int]) -> None:
    """Raise InputError for partitions that the topic does not have."""
    missing = sorted(set(selected or ()) - set(existing))
    if missing:
        raise InputError(f"topic {topic} has no partition {missing[0]}: it has 0 to {len(existing) - 1}")


def moves_text(moves: Sequence[Move], *, width: int | None) -> str:
    """Return a table of positions before and after."""
    rows = [
        (
            move.partition.topic,
            str(move.partition.partition),
            thousands(move.before),
            thousands(move.after),
            "-" if move.before is None else f"{move.after - move.before:+,}",
            thousands(move.log.stop - move.after),
            move.note,
        )
        for move in moves
    ]
    return table(("topic", "partition", "before", "after", "moved", "lag then", "note"), rows, width=width, indent=2)


def move_dict(move: Move) -> dict[str, Any]:
    """Return a move for JSON."""
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "before": move.before,
        "after": move.after,
        "start": move.log.start,
        "stop": move.log.stop,
        "note": move.note,
    }
