"""Decides what to plan next: units for the offsets that are not planned yet, within a bounded backlog, fairly shared.

The bounds of the logs, the planned offsets and the number of waiting units come in; moves, and positions that their log
does not have, go out. Pure: nothing is read from brokers or written to the store here.
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
"""Maximum number of moves and units that a store gets in one step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """How large units are, and how many may wait. Raises `ConfigError` for values below 1."""

    records: int = 500_000
    """Maximum number of offsets in a unit."""
    bytes: int = 64_000_000
    """Approximate maximum size of a unit on the broker's disk."""
    backlog: int = 1_000
    """Units of the group that may wait before planning pauses. Half of it is divided among the partitions, at least one
    unit each, so that the backlog of one partition does not keep another from being planned."""

    def __post_init__(self) -> None:
        for name in ("records", "bytes", "backlog"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"Units({name}=...) must be a whole number of at least 1, got {value!r}")


class Log(NamedTuple):
    """The offsets that a partition has: `[start, stop)`."""

    start: int
    stop: int


class Wrong(Enum):
    """What is wrong with a position. The value continues the sentence "the position ..."."""

    BEFORE = "is before the start of the log: retention deleted records that were not planned yet"
    AFTER = "is after the end of the log: the log was truncated, or the topic was recreated"


class Misplaced(NamedTuple):
    """A planned offset that the log does not have, and where planning continues; None if it stops."""

    partition: TopicPartition
    wrong: Wrong
    position: int
    log: Log
    goes_on: int | None


class Round(NamedTuple):
    """The result of one planning round."""

    moves: tuple[Move, ...]
    misplaced: tuple[Misplaced, ...]
    behind: int
    """Offsets that are still not planned after this round."""


def plan(
    logs: Mapping[TopicPartition, Log],
    states: Mapping[TopicPartition, PartitionState],
    begins: Callable[[TopicPartition], int],
    *,
    units: Units,
    on_lost: OnLost,
    record_bytes: RecordBytes = 1.0,
) -> Round:
    """Return moves for all partitions with new offsets. Each partition gets one unit before any gets two.

    `begins` gives the start of a partition that is not in `states`.
    """
    starts: dict[TopicPartition, int] = {}
    misplaced: list[Misplaced] = []
    for partition, log in sorted(logs.items()):
        known = states.get(partition)
        position = begins(partition) if known is None else known.planned
        wrong = _wrong(position, log)
        if wrong is not None:
            goes_on = _goes_on(log, on_lost)
            misplaced.append(Misplaced(partition, wrong, position, log, goes_on))
            if goes_on is None:
                continue
            position = goes_on
        starts[partition] = position
    # Generators: a log may hold millions of units, of which the backlog takes a few.
    waiting = {partition: state.waiting for partition, state in states.items()}
    streams = {
        partition: _units(partition, start, logs[partition].stop, units, record_bytes)
        for partition, start in starts.items()
    }
    chosen = _shared(streams, waiting, units.backlog)
    moves = [
        Move(
            partition,
            None if (state := states.get(partition)) is None else state.planned,
            _reached(start, chosen[partition]),
            chosen[partition],
        )
        for partition, start in starts.items()
    ]
    changed = tuple(move for move in moves if move.before != move.to)
    behind = sum(max(0, logs[move.partition].stop - move.to) for move in moves)
    return Round(changed, tuple(misplaced), behind)


def portions(moves: Iterable[Move], most: int = PORTION) -> Iterator[list[Move]]:
    """Split moves into lists of at most `most` moves and units, to be applied one after the other.

    One step must not keep a store busy for long, and stores limit the size of a request.
    """
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
    """Split one move into moves of at most `most` units."""
    before, rest = move.before, move.units
    while len(rest) > most:
        head, rest = rest[:most], rest[most:]
        yield Move(move.partition, before, head[-1].stop, head)
        before = head[-1].stop
    yield Move(move.partition, before, move.to, rest)


def _wrong(position: int, log: Log) -> Wrong | None:
    """Compare a position with its log."""
    if position < log.start:
        return Wrong.BEFORE
    return Wrong.AFTER if position > log.stop else None


def _goes_on(log: Log, on_lost: OnLost) -> int | None:
    """Return where planning continues for a position that its log does not have; None if it must not."""
    if on_lost is OnLost.ERROR:
        return None
    return log.start if on_lost is OnLost.EARLIEST else log.stop


def _reached(start: int, units: tuple[OffsetRange, ...]) -> int:
    return units[-1].stop if units else start


def _shared(
    streams: Mapping[TopicPartition, Iterator[OffsetRange]], waiting: Mapping[TopicPartition, int], backlog: int
) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    """Choose the first units of each partition, round-robin, as far as the backlog has room."""
    # Half of the backlog is divided equally; units beyond a partition's share come from the other half. Otherwise a
    # slow partition, or an ordered one that is blocked, would fill the whole backlog.
    share = max(1, backlog // (2 * max(1, len(streams))))
    own = {partition: max(0, share - waiting.get(partition, 0)) for partition in streams}
    beyond = sum(max(0, count - (share if partition in streams else 0)) for partition, count in waiting.items())
    room = backlog - share * len(streams) - beyond
    chosen: dict[TopicPartition, list[OffsetRange]] = {partition: [] for partition in streams}
    left = dict(streams)
    while left:
        for partition in list(left):
            unit = next(left[partition], None) if own[partition] > 0 or room > 0 else None
            if unit is None:
                del left[partition]
                continue
            chosen[partition].append(unit)
            if own[partition] > 0:
                own[partition] -= 1
            else:
                room -= 1
    return {partition: tuple(units) for partition, units in chosen.items()}


def _units(
    partition: TopicPartition, start: int, stop: int, units: Units, record_bytes: RecordBytes
) -> Iterator[OffsetRange]:
    """Yield full units, and a shorter last one with the rest."""
    step = max(1, min(units.records, int(units.bytes / bytes_of(partition, record_bytes))))
    for first in range(start, stop, step):
        yield OffsetRange(partition.topic, partition.partition, first, min(stop, first + step))
