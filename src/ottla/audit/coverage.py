"""Which offsets of a partition were counted: disjoint ranges add up, gaps and overlaps are noticed. Pure.

Tallies of ranges come in; those that count go out, with the gaps between them. A range that was counted twice counts
once. Ranges that overlap in another way cannot be added: if others cover the same offsets without overlapping, those
count, otherwise the offsets are a gap. So a sum is never wrong, only incomplete, and says so.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from ottla.tally.values import RangeTally, Slice


@dataclass(frozen=True, slots=True)
class CountedRange:
    """A range with all its parts."""

    head: RangeTally
    """The first part, for everything but the buckets."""
    buckets: tuple[Slice, ...]

    @property
    def start(self) -> int:
        """The first offset."""
        return self.head.start

    @property
    def stop(self) -> int:
        """The offset after the last one."""
        return self.head.stop

    @property
    def bucket_span(self) -> tuple[int, int] | None:
        """The first and the last bucket; None without records."""
        starts = [piece.start for piece in self.buckets]
        return (min(starts), max(starts)) if starts else None


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets that no range counts, and the buckets whose records may be among them; None: any."""

    start: int
    stop: int
    first_bucket: int | None
    last_bucket: int | None


@dataclass(frozen=True, slots=True)
class Coverage:
    """What was counted of one partition."""

    ranges: tuple[CountedRange, ...]
    gaps: tuple[Gap, ...]
    as_of: float | None = None
    """When the log was last seen to end where the last range ends; None if never."""

    @property
    def stop(self) -> int:
        """The offset up to which was counted."""
        return self.ranges[-1].stop if self.ranges else 0


def assembled(tallies: Iterable[RangeTally]) -> list[CountedRange]:
    """Put the parts of each range together. Ranges with a missing part are left out."""
    parts: dict[tuple[int, int, int, int], dict[int, RangeTally]] = {}
    for tally in tallies:
        parts.setdefault((tally.start, tally.stop, tally.parts, tally.records), {})[tally.part] = tally
    return [
        CountedRange(_newest(found), tuple(piece for part in sorted(found) for piece in found[part].buckets))
        for (_, _, count, _), found in parts.items()
        if len(found) == count
    ]


def _newest(parts: dict[int, RangeTally]) -> RangeTally:
    return max(parts.values(), key=lambda part: part.written)


def cover(tallies: Iterable[RangeTally]) -> Coverage:
    """Choose ranges of one partition that do not overlap, and name the gaps between them."""
    candidates: dict[int, dict[int, CountedRange]] = {}
    whole = assembled(tallies)
    for counted in whole:
        by_stop = candidates.setdefault(counted.start, {})
        known = by_stop.get(counted.stop)
        if known is None or counted.head.written > known.head.written:
            by_stop[counted.stop] = counted
    if not candidates:
        return Coverage((), ())
    chosen: list[CountedRange] = []
    gaps: list[Gap] = []
    end = max(stop for stops in candidates.values() for stop in stops)
    starts = sorted(candidates)
    position = starts[0]
    while position < end or (not chosen and position in candidates):
        path = _path(candidates, position)
        chosen += path
        position = max(position, path[-1].stop if path else position)
        if position >= end:
            break
        number = bisect_right(starts, position)
        following = starts[number] if number < len(starts) else end
        after = candidates.get(following, {})
        next_range = after[max(after)] if after else None
        gaps.append(_gap(position, following, chosen[-1] if chosen else None, next_range))
        if next_range is None:
            break
        position = following
    as_of = max((counted.head.as_of or 0.0 for counted in whole if counted.stop == end), default=0.0)
    return Coverage(tuple(chosen), tuple(gaps), as_of or None)


def _path(candidates: dict[int, dict[int, CountedRange]], start: int) -> list[CountedRange]:
    """Return ranges that follow each other without a gap from `start`, as far as possible."""
    before: dict[int, CountedRange | None] = {start: None}
    open_ends = [start]
    while open_ends:
        position = open_ends.pop()
        for stop, counted in candidates.get(position, {}).items():
            if stop not in before:  # an empty range leads nowhere
                before[stop] = counted
                open_ends.append(stop)
    furthest = max(before)
    path: list[CountedRange] = []
    step = before[furthest]
    while step is not None:
        path.append(step)
        step = before[step.start]
    if not path and start in candidates and start in candidates[start]:
        path.append(candidates[start][start])
    return path[::-1]


def _gap(start: int, stop: int, before: CountedRange | None, after: CountedRange | None) -> Gap:
    """Times in a log rise roughly: records in a gap are not older than the range before it, nor newer than the next."""
    first = None if before is None or before.bucket_span is None else before.bucket_span[0]
    last = None if after is None or after.bucket_span is None else after.bucket_span[1]
    return Gap(start, stop, first, last)


def uncounted(coverage: Coverage, start: int, stop: int) -> list[tuple[int, int]]:
    """Return the parts of `[start, stop)` that were not counted."""
    missing = []
    position = start
    for counted in coverage.ranges:
        if counted.stop <= position:
            continue
        if counted.start > position:
            missing.append((position, min(counted.start, stop)))
        position = max(position, counted.stop)
        if position >= stop:
            break
    if position < stop:
        missing.append((position, stop))
    return missing


@dataclass(frozen=True, slots=True)
class CountPlan:
    """What to count of a partition, and which tally only needs a newer time."""

    ranges: tuple[tuple[int, int], ...]
    unchanged: CountedRange | None = None
    """Ends where the log ends now: nothing was appended since."""


def plan_cells(start: int, stop: int, *, known: Coverage, cell: int) -> CountPlan:
    """Plan so that all of `[start, stop)` is counted in ranges that begin and end at multiples of `cell`.

    Cells that are covered are not counted again. The last, incomplete one is counted again from its beginning, which
    replaces its tally. So writers that work at once, or after one another, leave no ranges that overlap. A cell whose
    beginning is no longer in the log is continued where the last tally of it ends.
    """
    ranges: list[tuple[int, int]] = []
    position = start // cell * cell
    while position < stop:
        end = min(position + cell, stop)
        missing = uncounted(known, max(position, start), end)
        if missing:
            ranges += missing if position < start else [(position, end)]
        position += cell
    last = next((counted for counted in reversed(known.ranges) if counted.stop == stop), None)
    if ranges and ranges[-1][1] == stop:
        return CountPlan(tuple(ranges))
    if last is not None:
        return CountPlan(tuple(ranges), last)
    return CountPlan((*ranges, (stop, stop)))  # nothing to count, and still something to say: the log ends here
