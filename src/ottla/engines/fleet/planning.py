"""What to plan next: units for what the logs have and nobody has planned, within a bounded backlog, fair to all.

Where the logs begin and end, what is planned and how many units wait come in; moves and what is wrong with positions
go out. Nothing is asked or written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from ottla.engines.fleet.units import Move, PartitionState
from ottla.errors import ConfigError
from ottla.fetch.options import OnLost
from ottla.model import OffsetRange, TopicPartition
from ottla.plan.sizes import RecordBytes, bytes_of

PORTION = 10_000
"""Units that a store is told of in one step, at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """How large units are, and how many may wait."""

    records: int = 500_000
    """Offsets of a unit, at most."""
    bytes: int = 64_000_000
    """Of a unit on the broker's disk, about, at most."""
    backlog: int = 1_000
    """Units of the group that may wait before planning pauses. Half of it is shared out to the partitions, at least one
    unit each: what waits for one partition keeps no other from being planned."""

    def __post_init__(self) -> None:
        for name in ("records", "bytes", "backlog"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"Units({name}=...) must be a whole number of at least 1, got {value!r}")


class Log(NamedTuple):
    """What a partition has: offsets `[start, stop)`."""

    start: int
    stop: int


class Wrong(Enum):
    """What can be wrong with a position."""

    BEFORE = "lies before the beginning of the log: retention was faster"
    AFTER = "lies after the end of the log: the log was cut, or the topic was made anew"


class Misplaced(NamedTuple):
    """A planned offset that the log does not have, and where planning goes on; None where it stops."""

    at: TopicPartition
    wrong: Wrong
    position: int
    log: Log
    goes_on: int | None


class Round(NamedTuple):
    """One round of planning."""

    moves: tuple[Move, ...]
    misplaced: tuple[Misplaced, ...]
    behind: int
    """Offsets that are not planned yet after this round."""


def plan(
    logs: Mapping[TopicPartition, Log],
    lanes: Mapping[TopicPartition, PartitionState],
    begins: Callable[[TopicPartition], int],
    *,
    units: Units,
    on_lost: OnLost,
    record_bytes: RecordBytes = 1.0,
) -> Round:
    """Moves for all partitions that have something: each gets a unit before any gets two."""
    starts: dict[TopicPartition, int] = {}
    misplaced: list[Misplaced] = []
    for at, log in sorted(logs.items()):
        known = lanes.get(at)
        position = begins(at) if known is None else known.planned
        wrong = _wrong(position, log)
        if wrong is not None:
            goes_on = _goes_on(log, on_lost)
            misplaced.append(Misplaced(at, wrong, position, log, goes_on))
            if goes_on is None:
                continue
            position = goes_on
        starts[at] = position
    waiting = {at: lane.waiting for at, lane in lanes.items()}
    streams = {at: _units(at, start, logs[at].stop, units, record_bytes) for at, start in starts.items()}
    chosen = _shared(streams, waiting, units.backlog)
    moves = [
        Move(at, None if (lane := lanes.get(at)) is None else lane.planned, _reached(start, chosen[at]), chosen[at])
        for at, start in starts.items()
    ]
    changed = tuple(move for move in moves if move.before != move.to)
    behind = sum(max(0, logs[move.partition].stop - move.to) for move in moves)
    return Round(changed, tuple(misplaced), behind)


def portions(moves: Iterable[Move], most: int = PORTION) -> Iterator[list[Move]]:
    """The same moves in several steps, none of which has more than so many units: what a store is told at once must
    not keep it busy for long, and no store takes any amount of it."""
    portion: list[Move] = []
    size = 0
    for move in moves:
        for step in _steps(move, most):
            if portion and size + 1 + len(step.units) > most:
                yield portion
                portion, size = [], 0
            portion.append(step)
            size += 1 + len(step.units)
    if portion:
        yield portion


def _steps(move: Move, most: int) -> Iterator[Move]:
    """One after the other, they are the same as the move."""
    before, rest = move.before, move.units
    while len(rest) > most:
        some, rest = rest[:most], rest[most:]
        yield Move(move.partition, before, some[-1].stop, some)
        before = some[-1].stop
    yield Move(move.partition, before, move.to, rest)


def _wrong(position: int, log: Log) -> Wrong | None:
    if position < log.start:
        return Wrong.BEFORE
    return Wrong.AFTER if position > log.stop else None


def _goes_on(log: Log, on_lost: OnLost) -> int | None:
    if on_lost is OnLost.ERROR:
        return None
    return log.start if on_lost is OnLost.EARLIEST else log.stop


def _reached(start: int, units: tuple[OffsetRange, ...]) -> int:
    return units[-1].stop if units else start


def _shared(
    streams: Mapping[TopicPartition, Iterator[OffsetRange]], waiting: Mapping[TopicPartition, int], backlog: int
) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    """The first units of each partition: as many as there is room for, one after the other around the partitions.

    Each may have a share of half of the backlog. What others have beyond theirs is in the other half: an ordered
    partition that is held up, or a slow one, would else fill all of it.
    """
    share = max(1, backlog // (2 * max(1, len(streams))))
    own = {at: max(0, share - waiting.get(at, 0)) for at in streams}
    beyond = sum(max(0, count - (share if at in streams else 0)) for at, count in waiting.items())
    room = backlog - share * len(streams) - beyond
    chosen: dict[TopicPartition, list[OffsetRange]] = {at: [] for at in streams}
    left = dict(streams)
    while left:
        for at in list(left):
            unit = next(left[at], None) if own[at] > 0 or room > 0 else None
            if unit is None:
                del left[at]
                continue
            chosen[at].append(unit)
            if own[at] > 0:
                own[at] -= 1
            else:
                room -= 1
    return {at: tuple(some) for at, some in chosen.items()}


def _units(at: TopicPartition, start: int, stop: int, units: Units, record_bytes: RecordBytes) -> Iterator[OffsetRange]:
    """Full units, and a last one with the rest: a log that grows must not be cut anew each time."""
    step = max(1, min(units.records, int(units.bytes / bytes_of(at, record_bytes))))
    for first in range(start, stop, step):
        yield OffsetRange(at.topic, at.partition, first, min(stop, first + step))
