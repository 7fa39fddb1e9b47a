"""`find_differences`: names the records in which two topics differ, with one call.

Two topics come in, on one cluster or two; differences go out one by one. Both are read once and summed by bucket. Only
the buckets that differ are read again, narrowed by the hashes of their records where they are large, and only records
that differ are looked up by offset. Memory grows with the number of buckets and of records that differ, not with the
topics.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from itertools import zip_longest

import numpy as np

from ottla.audit.differences import (
    MOST_BITS,
    MOST_CELLS,
    Cells,
    Difference,
    Fault,
    Found,
    Grouping,
    Leftover,
    Narrowing,
    Numbers,
    Rows,
    Sums,
    add_rows,
    found,
    leftover,
    regrouped,
    unequal,
    whole_groups,
)
from ottla.errors import ConfigError
from ottla.fetch.reader import Reader
from ottla.jobs.arguments import check_moment, check_topic_name
from ottla.jobs.brokers import Brokers
from ottla.lake.writer import as_numbers
from ottla.model import OffsetRange
from ottla.tally.values import DEFAULT_BUCKET_SECONDS, check_bucket
from ottla.wire.kernels import tallying as k
from ottla.wire.measure import Measured, Measurer, has_append_time

_AT_ONCE = 100_000
"""How many records of a side are matched at a time."""
_CLOSE = 20_000
"""Offsets nearer than this are read in one go."""
_ALL_TIME = (-(1 << 62), 1 << 62)
LEFT, RIGHT = 0, 1
_NAMES = ("left", "right")


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Milliseconds `[start, stop)` by the records' timestamps."""

    start: int
    stop: int

    def __call__(self, times: Numbers) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Which times are inside."""
        return (times >= self.start) & (times < self.stop)


class _Side:
    """One of the two topics: its reader, what to read of it, and how."""

    def __init__(self, reader: Reader, topic: str, ranges: list[OffsetRange], window: Window) -> None:
        self.reader = reader
        self.topic = topic
        self.ranges = ranges
        self.window = window
        self.has_append_time = False

    def sums(self, grouping: Grouping) -> Sums:
        """Read everything once and add it up by group."""
        sums: Sums = {}
        is_cut = (self.window.start, self.window.stop) != _ALL_TIME
        # A window may begin or end inside of a bucket: then records are looked at one by one.
        measurer = Measurer(0 if is_cut else grouping.bucket_ms)
        for partition, measured in self._measured(measurer, self.ranges, look=True):
            rows = measured.rows
            inside = self.window(rows[:, k.FIRST_TIME]) if is_cut else slice(None)
            rows, words = rows[inside], measured.sums[inside]
            codes = grouping.codes(partition, rows[:, k.FIRST_TIME])
            extents = np.stack([rows[:, k.FIRST_OFFSET], rows[:, k.LAST_OFFSET]], axis=1)
            add_rows(sums, codes, rows[:, k.RECORDS], words, extents, partition)
        return sums

    def rows(self, ranges: Iterable[OffsetRange], grouping: Grouping) -> Iterator[tuple[int, Rows]]:
        """Read ranges record by record: partition and hashes."""
        measurer = Measurer(0)
        for partition, measured in self._measured(measurer, ranges):
            inside = self.window(measured.rows[:, k.FIRST_TIME])
            rows, words = measured.rows[inside], measured.sums[inside]
            times = rows[:, k.FIRST_TIME]
            codes = grouping.codes(partition, times)
            yield partition, Rows(codes, words[:, 0], words[:, 1], rows[:, k.FIRST_OFFSET], times)

    def keys(self, wanted: dict[int, list[int]]) -> dict[tuple[int, int], tuple[bytes | None, float]]:
        """Look up the keys and times of single records, by partition and offset."""
        records: dict[tuple[int, int], tuple[bytes | None, float]] = {}
        listed = {partition: np.array(sorted(offsets), np.int64) for partition, offsets in wanted.items()}
        spans = [span for partition, offsets in listed.items() for span in _runs(self.topic, partition, offsets)]
        for together in _rounds(spans):
            for batch in self.reader.read(together, columns=("key", "offset", "timestamp", "partition")):
                partition = batch.column("partition")[0].as_py()
                offsets = batch.column("offset").to_numpy()
                chosen = np.flatnonzero(np.isin(offsets, listed[partition]))
                keys = batch.column("key").take(chosen).to_pylist()
                times = as_numbers(batch.column("timestamp"))[chosen].tolist()
                for offset, key, time in zip(offsets[chosen].tolist(), keys, times, strict=True):
                    records[partition, offset] = key, time / 1e6
        return records

    def _measured(
        self, measurer: Measurer, ranges: Iterable[OffsetRange], *, look: bool = False
    ) -> Iterator[tuple[int, Measured]]:
        for together in _rounds(ranges):
            for piece in self.reader.pieces(together):
                if look:
                    self.has_append_time |= has_append_time(piece.batches)[0]
                yield piece.cursor.tp.partition, measurer.measure(piece.batches, start=piece.start, stop=piece.stop)


def find_differences(
    topic: str,
    *,
    left: Brokers | str,
    right: Brokers | str,
    right_topic: str | None = None,
    start: datetime | None = None,
    stop: datetime | None = None,
    bucket_seconds: int = DEFAULT_BUCKET_SECONDS,
    by_partition: bool = True,
    notice: Callable[[str], None] | None = None,
) -> Generator[Difference, None, None]:
    """Yield the records in which two topics differ: missing, duplicated or altered, with partition, offset and key.

    `left` and `right` are the clusters, sums are made for spans of `bucket_seconds`. `right_topic` is the name on the
    right, if it has another one. `start` and `stop` limit the records by their timestamps. `by_partition` is for tiers
    that keep partitions; it is given up if the topics have different numbers of them. `notice` is called with what else
    there is to say, for example that times could not be compared.

    The call raises `ConfigError` for invalid arguments and `BrokerError` for an unknown topic; the iterator raises the
    errors of `Reader`.
    """
    seconds = check_bucket(bucket_seconds)
    start, stop = check_moment("start", start), check_moment("stop", stop)
    names = check_topic_name("topic", topic), check_topic_name("right_topic", right_topic or topic)
    if start is not None and stop is not None and stop <= start:
        raise ConfigError(f"start {start} is not before stop {stop}")
    window = Window(
        start=_ALL_TIME[0] if start is None else round(start.timestamp() * 1000),
        stop=_ALL_TIME[1] if stop is None else round(stop.timestamp() * 1000),
    )
    places = [
        place if isinstance(place, Brokers) else Brokers(bootstrap=place, client_id="ottla-audit")
        for place in (left, right)
    ]
    with ExitStack() as readers:
        sides = []
        for place, name in zip(places, names, strict=True):
            reader = readers.enter_context(place.reader())
            sides.append(_Side(reader, name, reader.ranges(name, start or "earliest"), window))
        search = _Search(sides, seconds, by_partition=by_partition, notice=notice or (lambda _: None))
        closing = readers.pop_all()
    return _found(search, closing)


def _found(search: _Search, closing: ExitStack) -> Generator[Difference, None, None]:
    with closing:
        yield from search.differences()


class _Search:
    """One search: from sums to records."""

    def __init__(self, sides: list[_Side], seconds: int, *, by_partition: bool, notice: Callable[[str], None]) -> None:
        self._sides = sides
        self._notice = notice
        counts = [len(side.ranges) for side in sides]
        if by_partition and counts[LEFT] != counts[RIGHT]:
            notice(
                f"the topics have {counts[LEFT]} and {counts[RIGHT]} partitions: records are compared whatever their"
                " partition is"
            )
            by_partition = False
        self._grouping = Grouping(seconds * 1000, by_partition)
        self._sums: list[Sums] = []

    def differences(self) -> Iterator[Difference]:
        """Read, narrow, match."""
        self._sums = [side.sums(self._grouping) for side in self._sides]
        is_append = [side.has_append_time for side in self._sides]
        if any(is_append):
            whose = " and ".join(name for name, has in zip(_NAMES, is_append, strict=True) if has)
            self._notice(f"the {whose} side has the times of its brokers: whole partitions are compared")
            by_partition = self._grouping.by_partition
            self._grouping = Grouping(0, by_partition)
            self._sums = [regrouped(sums, by_partition=by_partition) for sums in self._sums]
        differing = unequal(self._sums[LEFT], self._sums[RIGHT])
        yield from self._named([self._compared(cells) for cells in self._narrowed(differing)])

    def _narrowed(self, differing: list[int]) -> Iterator[Cells]:
        """Yield cells that differ, few enough at a time to match their records in memory."""
        biggest = {code: max(sums[code].count if code in sums else 0 for sums in self._sums) for code in differing}
        small: list[int] = []
        pending: list[Cells] = []
        large = [code for code in differing if biggest[code] > _AT_ONCE]
        total = 0
        for code in differing:
            if biggest[code] > _AT_ONCE:
                continue
            if small and total + biggest[code] > _AT_ONCE:
                yield whole_groups(small)
                small, total = [], 0
            small.append(code)
            total += biggest[code]
        if small:
            yield whole_groups(small)
        pending += [whole_groups(large[i : i + MOST_CELLS]) for i in range(0, len(large), MOST_CELLS)]
        while pending:
            cells = pending.pop()
            narrowing = Narrowing(cells)
            for side in (LEFT, RIGHT):
                for _, rows in self._sides[side].rows(self._ranges(side, cells), self._grouping):
                    narrowing.add(side, rows)
            parts, counts = narrowing.unequal()
            for some, is_small in _portions(parts, counts):
                if is_small or some.bits >= MOST_BITS:
                    yield some
                else:
                    pending.append(some)

    def _compared(self, cells: Cells) -> Leftover:
        """Match the records of cells. Only what has no partner is kept."""
        return leftover(self._collect(LEFT, cells), self._collect(RIGHT, cells))

    def _collect(self, side: int, cells: Cells) -> Found:
        """Read the records of cells."""
        return found(
            (partition, rows.chosen(cells.locate(rows) >= 0))
            for partition, rows in self._sides[side].rows(self._ranges(side, cells), self._grouping)
        )

    def _ranges(self, side: int, cells: Cells) -> list[OffsetRange]:
        """Where the records of cells lie: from the first to the last offset of their groups, without overlaps."""
        spans: dict[int, list[tuple[int, int]]] = {}
        for code in set(cells.codes.tolist()):
            group = self._sums[side].get(code)
            for partition, (first, last) in ((group.extents or {}) if group is not None else {}).items():
                spans.setdefault(partition, []).append((first, last + 1))
        topic = self._sides[side].topic
        return [
            OffsetRange(topic, partition, start, stop)
            for partition, listed in spans.items()
            for start, stop in _union(listed)
        ]

    def _named(self, leftovers: list[Leftover]) -> Iterator[Difference]:
        """Look up keys and times, pair what was altered or moved, and name the rest."""
        places = _Places(self._sides)
        for left, right, matched in leftovers:
            places.want(LEFT, left, [*matched.left_only, *(index for index, _ in matched.moved)])
            places.want(RIGHT, right, [*matched.right_only, *matched.copied, *(index for _, index in matched.moved)])
        places.look_up()
        extras: list[_Place] = []
        missing: list[_Place] = []
        for left, right, matched in leftovers:
            for ours, theirs in matched.moved:
                yield places.moved(left, ours, right, theirs)
            for index in matched.copied:
                yield places.place(RIGHT, right, index).named(Fault.DUPLICATED)
            missing += (places.place(LEFT, left, index) for index in matched.left_only)
            extras += (places.place(RIGHT, right, index) for index in matched.right_only)
        yield from self._paired(missing, extras)

    def _paired(self, missing: list[_Place], extras: list[_Place]) -> Iterator[Difference]:
        """Pair records of the same partition, key and time: they were altered. Copies of others are duplicates."""
        is_timed = self._grouping.bucket_ms != 0
        spare: dict[tuple[object, ...], list[_Place]] = {}
        for place in sorted(extras, key=lambda place: (place.partition, place.offset)):
            spare.setdefault(place.identity(self._grouping.by_partition, is_timed), []).append(place)
        lost: list[_Place] = []
        for place in sorted(missing, key=lambda place: (place.partition, place.offset)):
            candidates = spare.get(place.identity(self._grouping.by_partition, is_timed))
            if candidates:
                other = candidates.pop(0)
                yield place.named(Fault.ALTERED, other, "another value or other headers")
            else:
                lost.append(place)
        # Equal content that was moved to another time, where the search was divided.
        rest = [place for places in spare.values() for place in places]
        by_content: dict[tuple[int, int], list[_Place]] = {}
        for place in rest:
            by_content.setdefault(place.content, []).append(place)
        for place in lost:
            copies = by_content.get(place.content)
            if copies:
                yield place.named(Fault.ALTERED, copies.pop(0), "another partition or time")
            else:
                yield place.named(Fault.MISSING)
        rest = [place for places in by_content.values() for place in places]
        known = self._on_the_left({place.content for place in rest})
        for place in sorted(rest, key=lambda place: (place.partition, place.offset)):
            if place.content in known:
                yield place.named(Fault.DUPLICATED, detail="the same content as a record of another time")
            else:
                yield place.named(Fault.MISSING, detail="only on the right")

    def _on_the_left(self, contents: set[tuple[int, int]]) -> set[tuple[int, int]]:
        """Which contents are anywhere on the left side."""
        if not contents:
            return set()
        side = self._sides[LEFT]
        lows = np.array([low for low, _ in contents], np.uint64)
        known: set[tuple[int, int]] = set()
        for _, rows in side.rows(side.ranges, self._grouping):
            chosen = np.flatnonzero(np.isin(rows.low, lows))
            known |= contents & set(zip(rows.low[chosen].tolist(), rows.high[chosen].tolist(), strict=True))
        return known


@dataclass(frozen=True, slots=True)
class _Place:
    """A record with what was looked up."""

    side: int
    partition: int
    offset: int
    key: bytes | None
    time: float
    content: tuple[int, int]

    def identity(self, by_partition: bool, is_timed: bool) -> tuple[object, ...]:
        """What an altered record keeps."""
        return self.partition if by_partition else None, self.key, self.time if is_timed else None

    def named(self, verdict: Fault, other: _Place | None = None, detail: str = "") -> Difference:
        return Difference(
            verdict=verdict,
            side=_NAMES[self.side],
            partition=self.partition,
            offset=self.offset,
            key=self.key,
            timestamp=self.time,
            other_partition=None if other is None else other.partition,
            other_offset=None if other is None else other.offset,
            detail=detail,
        )


class _Places:
    """Looks up keys and times of single records."""

    def __init__(self, sides: list[_Side]) -> None:
        self._sides = sides
        self._wanted: list[dict[int, list[int]]] = [{}, {}]
        self._known: list[dict[tuple[int, int], tuple[bytes | None, float]]] = [{}, {}]

    def want(self, side: int, records: Found, indexes: Iterable[int]) -> None:
        for index in indexes:
            self._wanted[side].setdefault(int(records.partitions[index]), []).append(int(records.offsets[index]))

    def look_up(self) -> None:
        self._known = [side.keys(wanted) for side, wanted in zip(self._sides, self._wanted, strict=True)]

    def place(self, side: int, records: Found, index: int) -> _Place:
        partition, offset = int(records.partitions[index]), int(records.offsets[index])
        # Retention or compaction may have removed it meanwhile: then the time is that of the search.
        key, time = self._known[side].get((partition, offset), (None, float(records.times[index]) / 1000))
        return _Place(side, partition, offset, key, time, (int(records.low[index]), int(records.high[index])))

    def moved(self, left: Found, ours: int, right: Found, theirs: int) -> Difference:
        mine, other = self.place(LEFT, left, ours), self.place(RIGHT, right, theirs)
        detail = "in another partition" if mine.partition != other.partition else "with another timestamp"
        return mine.named(Fault.ALTERED, other, detail)


def _portions(cells: Cells, counts: Numbers) -> Iterator[tuple[Cells, bool]]:
    """Divide cells into portions that can be matched at once, and those that must be narrowed further."""
    is_small = counts <= _AT_ONCE
    small, large = np.flatnonzero(is_small), np.flatnonzero(~is_small)
    portion = np.cumsum(counts[small]) // _AT_ONCE
    for number in np.unique(portion):
        yield _picked(cells, small[portion == number]), True
    for first in range(0, len(large), MOST_CELLS):
        yield _picked(cells, large[first : first + MOST_CELLS]), False


def _picked(cells: Cells, indexes: Numbers) -> Cells:
    return Cells(cells.codes[indexes], cells.prefixes[indexes], cells.bits)


def _rounds(ranges: Iterable[OffsetRange]) -> Iterator[list[OffsetRange]]:
    """Divide ranges so that each part has at most one of every partition: a reader reads these at the same time."""
    by_partition: dict[int, list[OffsetRange]] = {}
    for span in ranges:
        if len(span):
            by_partition.setdefault(span.partition, []).append(span)
    for together in zip_longest(*by_partition.values()):
        yield [span for span in together if span is not None]


def _union(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join spans that overlap or touch."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], stop)
        else:
            joined.append((start, stop))
    return joined


def _runs(topic: str, partition: int, offsets: Numbers) -> list[OffsetRange]:
    """Return ranges that hold these sorted offsets, joining those that are close."""
    edges = np.flatnonzero(np.r_[True, np.diff(offsets) > _CLOSE])
    stops = np.r_[edges[1:], len(offsets)] - 1
    return [
        OffsetRange(topic, partition, int(offsets[first]), int(offsets[last]) + 1)
        for first, last in zip(edges.tolist(), stops.tolist(), strict=True)
    ]
