"""The counts of one tier: the tallies of a topic added up by bucket, with what is not known. Pure.

Tallies of all kinds come in; `TierCount` goes out: a slice for each bucket and partition, the time up to which they are
final, and the buckets that are in doubt, each with its reason.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from ottla.audit.coverage import CountedRange, Coverage, cover
from ottla.errors import InputError
from ottla.tally.values import (
    RECORD_TIME,
    AuditMessage,
    RangeTally,
    SessionPage,
    Slice,
    add_up,
    bucket_of,
    time_kind,
)

CLOCK_SKEW = 300.0
"""Seconds that the clock of a writer may be ahead of ours."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """Buckets whose counts are not known, and why. None stands for no limit."""

    first: int | None
    last: int | None
    reason: str

    @property
    def single(self) -> int | None:
        """The bucket, if it is only one."""
        return self.first if self.first == self.last else None

    def covers(self, bucket: int) -> bool:
        """Whether a bucket is in doubt."""
        return (self.first is None or bucket >= self.first) and (self.last is None or bucket <= self.last)


@dataclass(frozen=True, slots=True)
class TierCount:
    """What a tier counted of one topic."""

    tier: str
    topic: str
    bucket_seconds: int
    slices: Mapping[int, Mapping[int, Slice]]
    """By bucket and partition."""
    horizon: float
    """Buckets that end before this are final."""
    doubts: tuple[Doubt, ...] = ()
    partitions: int = 0
    """How many partitions the topic has; 0 if not known."""
    time: str = RECORD_TIME
    """Where the times of records come from: `RangeTally.time`."""
    by_bucket: Mapping[int, Slice] = field(default_factory=dict)
    """All partitions together."""

    def doubt(self, bucket: int) -> Doubt | None:
        """Why a bucket's count is not known; None if it is."""
        return next((doubt for doubt in self.doubts if doubt.covers(bucket)), None)


def count_tier(tier: str, topic: str, tallies: Iterable[AuditMessage], *, now: float) -> TierCount:
    """Add up the tallies of one tier and topic. Raises `InputError` if they have buckets of different length."""
    listed = list(tallies)
    lengths = {tally.bucket_seconds for tally in listed}
    if len(lengths) > 1:
        found = ", ".join(f"{seconds:,} s" for seconds in sorted(lengths))
        raise InputError(f"tier {tier} counted topic {topic} in buckets of different length: {found}")
    seconds = lengths.pop() if lengths else 1
    counted = _Counted()
    if not listed:
        counted.doubts.append(Doubt(None, None, f"tier {tier} has no tallies of this topic"))
    counted.add_times({tally.time if isinstance(tally, RangeTally) else RECORD_TIME for tally in listed})
    counted.add_ranges([tally for tally in listed if isinstance(tally, RangeTally)], now)
    counted.add_sessions([tally for tally in listed if isinstance(tally, SessionPage)], now)
    slices: dict[int, dict[int, Slice]] = {}
    by_bucket: dict[int, Slice] = {}
    for (partition, bucket), piece in sorted(add_up(counted.slices).items()):
        slices.setdefault(bucket, {})[partition] = piece
        known = by_bucket.get(bucket)
        by_bucket[bucket] = piece if known is None else known + piece
    return TierCount(
        tier,
        topic,
        seconds,
        slices,
        counted.horizon,
        tuple(counted.doubts),
        counted.partitions,
        counted.time,
        by_bucket,
    )


class _Counted:
    """Adds up the tallies of one tier."""

    def __init__(self) -> None:
        self.slices: list[Slice] = []
        self.doubts: list[Doubt] = []
        self.horizon = math.inf
        self.partitions = 0
        self.time = RECORD_TIME

    def add_times(self, times: set[str]) -> None:
        """Note where the times of the tallies come from. One bucket would have other records by each of them."""
        # The topic chooses whether the times of its records are those of its broker, and may change that.
        self.time = min(times - {RECORD_TIME}, default=RECORD_TIME)
        if len(set(map(time_kind, times))) > 1:
            self.doubts.append(Doubt(None, None, f"it was counted by different times: {', '.join(sorted(times))}"))

    def add_ranges(self, tallies: list[RangeTally], now: float) -> None:
        logs: dict[str, dict[int, list[RangeTally]]] = {}
        for tally in tallies:
            logs.setdefault(tally.topic_id, {}).setdefault(tally.partition, []).append(tally)
        in_order = sorted(logs.values(), key=_written)
        for partitions in in_order:
            self._add_log(partitions, now, is_newest=partitions is in_order[-1])
        for partitions, later in pairwise(in_order):
            self._add_end(partitions, _first_counted(later))

    def _add_log(self, partitions: dict[int, list[RangeTally]], now: float, *, is_newest: bool) -> None:
        """Add a log: a topic under one id. Only the newest one still grows."""
        number = max(tally.partitions for tallies in partitions.values() for tally in tallies)
        if is_newest:
            self.partitions = max(self.partitions, number)
            missing = next((index for index in range(number) if index not in partitions), None)
            if missing is not None:
                self.doubts.append(Doubt(None, None, f"partition {missing} was never counted"))
        for partition, tallies in sorted(partitions.items()):
            coverage = cover(tallies)
            for counted in coverage.ranges:
                self.slices += (_of_partition(piece, partition) for piece in counted.buckets)
            self._add_gaps(partition, coverage)
            if coverage.ranges:
                self._add_beginning(partition, coverage.ranges[0])
            if is_newest:
                self._add_horizon(partition, coverage.as_of, now)

    def _add_end(self, partitions: dict[int, list[RangeTally]], until: float) -> None:
        """What a log got after its last tally, before there was another topic of that name, is not known."""
        for partition, tallies in sorted(partitions.items()):
            coverage, seconds = cover(tallies), tallies[0].bucket_seconds
            if coverage.as_of is not None and coverage.as_of >= until:
                continue  # both were there at the same time, such as topics of two clusters
            if coverage.as_of is not None:
                first: int | None = bucket_of(coverage.as_of, seconds)
            else:
                span = coverage.ranges[-1].bucket_span if coverage.ranges else None
                first = None if span is None else span[0]
            reason = f"the topic was created again, and partition {partition} of the old one was not counted to its end"
            self.doubts.append(Doubt(first, bucket_of(until, seconds), reason))

    def _add_gaps(self, partition: int, coverage: Coverage) -> None:
        for gap in coverage.gaps:
            reason = f"offsets {gap.start} to {gap.stop} of partition {partition} were not counted"
            self.doubts.append(Doubt(gap.first_bucket, gap.last_bucket, reason))

    def _add_beginning(self, partition: int, first: CountedRange) -> None:
        """What lies before the first counted offset is not known."""
        if first.start == 0:
            return
        seconds = first.head.bucket_seconds
        since = first.head.since
        if since is None:
            since = min((piece.first for piece in first.buckets), default=None)
            last = None if since is None else bucket_of(since, seconds)
        else:  # a bucket that begins exactly there is whole
            last = bucket_of(since - 1e-3, seconds)
        reason = f"partition {partition} was counted from offset {first.start} on"
        self.doubts.append(Doubt(None, last, reason))

    def _add_horizon(self, partition: int, as_of: float | None, now: float) -> None:
        if as_of is not None and as_of > now + CLOCK_SKEW:
            self.doubts.append(Doubt(None, None, f"the clock that counted partition {partition} is in the future"))
        self.horizon = min(self.horizon, -math.inf if as_of is None else as_of)

    def add_sessions(self, pages: list[SessionPage], now: float) -> None:
        newest: dict[tuple[str, int], SessionPage] = {}
        for page in pages:
            known = newest.get((page.session, page.page))
            if known is None or page.number > known.number:
                newest[page.session, page.page] = page
        for page in newest.values():
            self.slices += page.buckets
            who = f"{page.role or 'client'} {page.session[:8]} on {page.host or 'an unknown host'}"
            for bucket in page.unsure:
                self.doubts.append(Doubt(bucket, bucket, f"{who} does not know whether some records arrived"))
            if page.is_doubtful:
                self.doubts.append(Doubt(None, page.ceiling, f"{who} lost count"))
            if page.as_of > now + CLOCK_SKEW:
                self.doubts.append(Doubt(page.floor, None, f"the clock of {who} is in the future"))
            elif page.state == "open" and now >= page.as_of + page.lease:
                self.doubts.append(Doubt(page.floor, page.ceiling, f"{who} ended without a last tally"))
            elif page.state == "open":
                # Records that were on their way then, if they are of an older bucket than usual, are not in it.
                is_usual = page.floor >= bucket_of(page.as_of, page.bucket_seconds) - page.bucket_seconds
                self.horizon = min(self.horizon, page.as_of if is_usual else float(page.floor))


def _written(partitions: dict[int, list[RangeTally]]) -> float:
    return max(tally.written for tallies in partitions.values() for tally in tallies)


def _first_counted(partitions: dict[int, list[RangeTally]]) -> float:
    return min(
        tally.written if tally.first_counted is None else tally.first_counted
        for tallies in partitions.values()
        for tally in tallies
    )


def last_sign(tallies: Iterable[AuditMessage]) -> float:
    """Return until when the tallies of a tier say that it counts; infinity if its last client has ended in order."""
    logs: list[float] = []
    pages: list[SessionPage] = []
    for tally in tallies:
        if isinstance(tally, SessionPage):
            pages.append(tally)
        else:
            logs.append(max(tally.written, tally.as_of or 0.0))  # an archive that had nothing to do is as of long ago
    if pages:
        last = max(pages, key=lambda page: (page.as_of, page.number))
        logs.append(math.inf if last.state == "closed" else last.as_of + last.lease)
    return max(logs, default=-math.inf)


def _of_partition(piece: Slice, partition: int) -> Slice:
    if piece.partition == partition:
        return piece
    return Slice(
        start=piece.start,
        count=piece.count,
        bytes=piece.bytes,
        fingerprint=piece.fingerprint,
        first=piece.first,
        last=piece.last,
        partition=partition,
    )
