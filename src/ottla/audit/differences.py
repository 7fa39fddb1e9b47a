"""Which records differ between two sides: the arithmetic of `find`. Pure: arrays come in, differences go out.

Records are known by their 128-bit hash and their place. Sums of groups are compared first (`unequal`), then halves of
the groups that differ, by the first bits of the hashes (`Narrowing`), until what is left fits into memory. Only then
are records matched one by one (`match`): copies in the same group first, then copies in other groups, which have moved.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ottla.tally.slices import add_sums

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

BITS = 8
"""How many bits of the hash one narrowing looks at: a group becomes 256."""
MOST_BITS = 48
MOST_CELLS = 4096
"""How many groups are narrowed at a time, which bounds the memory."""
_PARTITION_BITS = 18
_ORIGIN = 1 << 43
"""Added to bucket numbers, which may be negative."""


class Grouping(NamedTuple):
    """What a group is: a bucket of a partition, of all partitions, or a whole partition."""

    bucket_ms: int
    """0: whole partitions."""
    by_partition: bool

    def codes(self, partition: int, times: Numbers) -> Numbers:
        """Return the group of each record of a partition."""
        place = partition if self.by_partition else 0
        if self.bucket_ms == 0:
            return np.full(len(times), place, np.int64)
        return ((times // self.bucket_ms + _ORIGIN) << _PARTITION_BITS) | place


class Rows(NamedTuple):
    """Records of one partition: their groups, hashes, offsets and times in milliseconds."""

    codes: Numbers
    low: Words
    high: Words
    offsets: Numbers
    times: Numbers

    def chosen(self, which: npt.NDArray[np.bool_]) -> Rows:
        """Some of the records."""
        return Rows(self.codes[which], self.low[which], self.high[which], self.offsets[which], self.times[which])


@dataclass(slots=True)
class GroupSum:
    """The records of one group."""

    count: int = 0
    total: int = 0
    extents: dict[int, tuple[int, int]] | None = None
    """The first and the last offset in each partition."""

    def add(self, count: int, total: int, partition: int, first: int, last: int) -> None:
        """Add records of a partition."""
        self.count += count
        self.total = (self.total + total) & ((1 << 128) - 1)
        extents = self.extents = {} if self.extents is None else self.extents
        known = extents.get(partition)
        extents[partition] = (first, last) if known is None else (min(known[0], first), max(known[1], last))


Sums = dict[int, GroupSum]


def add_rows(sums: Sums, codes: Numbers, counts: Numbers, words: Words, extents: Numbers, partition: int) -> None:
    """Add measured runs to the sums of their groups. `extents` has the first and last offset of each run."""
    if not len(codes):
        return
    order = np.argsort(codes, kind="stable")
    codes, counts, words, extents = codes[order], counts[order], words[order], extents[order]
    edges = np.flatnonzero(np.r_[True, codes[1:] != codes[:-1]])
    totals = add_sums(words, edges).tolist()
    numbers = np.add.reduceat(counts, edges).tolist()
    firsts, lasts = np.minimum.reduceat(extents[:, 0], edges), np.maximum.reduceat(extents[:, 1], edges)
    for code, number, (low, high), first, last in zip(
        codes[edges].tolist(), numbers, totals, firsts.tolist(), lasts.tolist(), strict=True
    ):
        sums.setdefault(code, GroupSum()).add(number, high << 64 | low, partition, first, last)


def regrouped(sums: Sums, *, by_partition: bool) -> Sums:
    """Return the sums of whole partitions (or of the topic), from those of their buckets."""
    whole: Sums = {}
    for group in sums.values():
        # With groups by partition, each has one. Otherwise the count goes with the first of them.
        count, total = group.count, group.total
        for partition, (first, last) in (group.extents or {}).items():
            whole.setdefault(partition if by_partition else 0, GroupSum()).add(count, total, partition, first, last)
            count = total = 0
    return whole


def unequal(left: Mapping[int, GroupSum], right: Mapping[int, GroupSum]) -> list[int]:
    """Return the groups that differ, sorted."""
    empty = GroupSum()
    return sorted(
        code
        for code in left.keys() | right.keys()
        if (a := left.get(code, empty)).count != (b := right.get(code, empty)).count or a.total != b.total
    )


@dataclass(frozen=True, slots=True)
class Cells:
    """Groups, or parts of groups: those whose hashes begin with `prefixes`, `bits` bits long."""

    codes: Numbers
    prefixes: Words
    bits: int

    def __len__(self) -> int:
        return len(self.codes)

    def locate(self, rows: Rows) -> Numbers:
        """Return the index of each record's cell, -1 if it is in none."""
        if not len(self):
            return np.full(len(rows.codes), -1, np.int64)
        if self.bits == 0:
            parents = np.searchsorted(self.codes, rows.codes)
            parents[parents == len(self)] = 0
            return np.where(self.codes[parents] == rows.codes, parents, -1)
        wanted = rows.low >> np.uint64(64 - self.bits)
        keys = _joint(self.codes, self.prefixes)
        found = np.searchsorted(keys, _joint(rows.codes, wanted))
        found[found == len(keys)] = 0
        is_there = (self.codes[found] == rows.codes) & (self.prefixes[found] == wanted)
        return np.where(is_there, found, -1)


def _joint(codes: Numbers, prefixes: Words) -> npt.NDArray[Any]:
    """Pairs that numpy can sort and search."""
    pairs = np.empty(len(codes), [("code", np.int64), ("prefix", np.uint64)])
    pairs["code"], pairs["prefix"] = codes, prefixes
    return pairs


def whole_groups(codes: Iterable[int]) -> Cells:
    """Return cells that are whole groups."""
    listed = np.array(sorted(codes), np.int64)
    return Cells(listed, np.zeros(len(listed), np.uint64), 0)


class Narrowing:
    """Compares the parts of cells: each is divided by the next bits of the hashes."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self.bits = cells.bits + BITS
        size = len(cells) << BITS
        self._counts = np.zeros((2, size), np.int64)
        self._sums = np.zeros((2, size, 2), np.uint64)

    def add(self, side: int, rows: Rows) -> None:
        """Add records of one side, 0 or 1. Those in none of the cells are ignored."""
        cells = self._cells.locate(rows)
        chosen = np.flatnonzero(cells >= 0)
        if not len(chosen):
            return
        next_bits = (rows.low[chosen] >> np.uint64(64 - self.bits)) & np.uint64((1 << BITS) - 1)
        places = (cells[chosen] << BITS) | next_bits.astype(np.int64)
        order = np.argsort(places, kind="stable")
        places = places[order]
        edges = np.flatnonzero(np.r_[True, places[1:] != places[:-1]])
        words = np.stack([rows.low[chosen][order], rows.high[chosen][order]], axis=1)
        where = places[edges]
        self._counts[side, where] += np.diff(np.r_[edges, len(places)])
        added = add_sums(words, edges)
        low = self._sums[side, where, 0] + added[:, 0]
        self._sums[side, where, 1] += added[:, 1] + (low < added[:, 0])
        self._sums[side, where, 0] = low

    def unequal(self) -> tuple[Cells, Numbers]:
        """Return the parts that differ, and how many records each has at most on one side."""
        differs = (self._counts[0] != self._counts[1]) | (self._sums[0] != self._sums[1]).any(axis=1)
        places = np.flatnonzero(differs)
        parents = places >> BITS
        prefixes = (self._cells.prefixes[parents] << np.uint64(BITS)) | (places & ((1 << BITS) - 1)).astype(np.uint64)
        return Cells(self._cells.codes[parents], prefixes, self.bits), self._counts[:, places].max(axis=0)


class Found(NamedTuple):
    """Records of one side that were collected, one entry each."""

    codes: Numbers
    low: Words
    high: Words
    partitions: Numbers
    offsets: Numbers
    times: Numbers

    def chosen(self, indexes: Iterable[int]) -> Found:
        """Copies of some of the records."""
        at = np.fromiter(indexes, np.int64)
        return Found(self.codes[at], self.low[at], self.high[at], self.partitions[at], self.offsets[at], self.times[at])


def found(parts: Iterable[tuple[int, Rows]]) -> Found:
    """Join the collected records of a side. Each part belongs to one partition."""
    listed = list(parts)
    rows = [part for _, part in listed]
    empty = np.empty(0, np.int64)
    return Found(
        np.concatenate([empty, *(part.codes for part in rows)]),
        np.concatenate([np.empty(0, np.uint64), *(part.low for part in rows)]),
        np.concatenate([np.empty(0, np.uint64), *(part.high for part in rows)]),
        np.concatenate([empty, *(np.full(len(part.offsets), partition, np.int64) for partition, part in listed)]),
        np.concatenate([empty, *(part.offsets for part in rows)]),
        np.concatenate([empty, *(part.times for part in rows)]),
    )


class Matched(NamedTuple):
    """What is left after matching, as indexes into the two sides."""

    moved: list[tuple[int, int]]
    """Copies that are in another group: (left, right)."""
    left_only: list[int]
    right_only: list[int]
    copied: list[int]
    """Those of the right that have an equal record on the left, which has a partner of its own: duplicates."""


def match(left: Found, right: Found) -> Matched:
    """Match equal records, those of the same group first and in the order of their offsets."""
    left_order, right_order = _by_content(left), _by_content(right)
    unmatched_left = _unpaired(left, left_order, right, right_order)
    unmatched_right = _unpaired(right, right_order, left, left_order)
    spare: dict[tuple[int, int], list[int]] = {}
    for index in unmatched_right:
        spare.setdefault((int(right.low[index]), int(right.high[index])), []).append(index)
    moved: list[tuple[int, int]] = []
    left_only: list[int] = []
    for index in unmatched_left:
        candidates = spare.get((int(left.low[index]), int(left.high[index])))
        if candidates:
            moved.append((index, candidates.pop(0)))
        else:
            left_only.append(index)
    rest = sorted(index for indexes in spare.values() for index in indexes)
    contents = set(zip(left.low.tolist(), left.high.tolist(), strict=True)) if rest else set()
    copied = [index for index in rest if (int(right.low[index]), int(right.high[index])) in contents]
    copies = set(copied)
    return Matched(moved, left_only, [index for index in rest if index not in copies], copied)


class Leftover(NamedTuple):
    """The records that matching has left, without those that have a partner in their group."""

    left: Found
    right: Found
    matched: Matched
    """Indexes into these."""


def leftover(left: Found, right: Found) -> Leftover:
    """Match records and keep what is left, which needs no memory of what was matched."""
    matched = match(left, right)
    on_the_left = [index for index, _ in matched.moved] + matched.left_only
    on_the_right = [index for _, index in matched.moved] + matched.right_only + matched.copied
    number = len(matched.moved)
    ends = number + len(matched.right_only)
    return Leftover(
        left.chosen(on_the_left),
        right.chosen(on_the_right),
        Matched(
            [(index, index) for index in range(number)],
            list(range(number, len(on_the_left))),
            list(range(number, ends)),
            list(range(ends, len(on_the_right))),
        ),
    )


def _by_content(side: Found) -> Numbers:
    return np.lexsort((side.offsets, side.partitions, side.codes, side.high, side.low))


def _unpaired(mine: Found, my_order: Numbers, theirs: Found, their_order: Numbers) -> list[int]:
    """Return the records of a side beyond the number of equal ones in the same group of the other side."""
    keys, ranks = _ranked(mine, my_order)
    other_keys, other_ranks = _ranked(theirs, their_order)
    number: dict[tuple[int, int, int], int] = {}
    for key, rank in zip(other_keys, other_ranks, strict=True):
        number[key] = rank + 1  # ranks rise within a key
    order = my_order.tolist()
    return sorted(index for index, key, rank in zip(order, keys, ranks, strict=True) if rank >= number.get(key, 0))


def _ranked(side: Found, order: Numbers) -> tuple[list[tuple[int, int, int]], list[int]]:
    """Return group and content of each record in this order, and its number among equal ones."""
    keys = list(zip(side.codes[order].tolist(), side.low[order].tolist(), side.high[order].tolist(), strict=True))
    ranks: list[int] = []
    rank = 0
    for index, key in enumerate(keys):
        rank = rank + 1 if index and keys[index - 1] == key else 0
        ranks.append(rank)
    return keys, ranks


class Fault(StrEnum):
    """What is wrong with a record."""

    MISSING = "missing"
    DUPLICATED = "duplicated"
    ALTERED = "altered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A record that differs between the left and the right side."""

    verdict: Fault
    side: str
    """The side whose partition and offset these are: of a missing record the side that has it, of a duplicated one the
    side with the extra copy, of an altered one the left."""
    partition: int
    offset: int
    key: bytes | None
    timestamp: float
    """Seconds since 1970."""
    other_partition: int | None = None
    """Where the record is on the other side, if it is there."""
    other_offset: int | None = None
    detail: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values; the key in base64."""
        return {
            "verdict": str(self.verdict),
            "side": self.side,
            "partition": self.partition,
            "offset": self.offset,
            "key": None if self.key is None else base64.b64encode(self.key).decode("ascii"),
            "timestamp": self.timestamp,
            "other_partition": self.other_partition,
            "other_offset": self.other_offset,
            "detail": self.detail or None,
        }
