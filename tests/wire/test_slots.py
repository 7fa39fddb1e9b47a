"""Batches of many partitions in one block of memory: each has its own rows, and no bytes of others."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.areas import Walled

from ottla.wire.columns import Columns
from ottla.wire.encode import BatchLimits
from ottla.wire.slots import ELSEWHERE, Appended, Slots

from .rows import Row, columns_of, decoded, placed, rows_of

LIMITS = BatchLimits(max_bytes=1_000_000)
PARTITIONS = 5


def readonly(numbers: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    array = np.array(numbers, np.int64)
    array.flags.writeable = False
    return array


def append(slots: Slots, columns: Columns, runs: dict[int, list[int]], limits: BatchLimits = LIMITS) -> Appended:
    """Rows by partition."""
    rows = [row for listed in runs.values() for row in listed]
    edges = np.cumsum([0, *map(len, runs.values())]).tolist()
    return slots.append(
        columns,
        limits=limits,
        rows=readonly(rows),
        edges=readonly(edges),
        partitions=readonly(list(runs)),
        now_ms=7,
    )


def test_each_partition_gets_its_rows_in_their_order() -> None:
    rows = [Row(b"k%d" % i, bytes(i), (("h", b"%d" % i),) if i % 3 else (), 100 + i) for i in range(30)]
    slots = Slots(PARTITIONS)
    open_ones = {partition: slots.begin(partition) for partition in (0, 2, 4)}
    first = append(slots, columns_of(rows), {4: [1, 5, 9], 0: [2], 2: [3, 4]})
    assert (first.reached, first.firsts) == ([3, 4, 6], [0, 0, 0])
    assert first.grown == [open_ones[partition].size_bytes for partition in (4, 0, 2)]
    second = append(slots, columns_of(rows), {0: [10, 11], 4: [12]})
    assert (second.reached, second.firsts) == ([2, 3], [1, 3])
    batches = {}
    for partition, slot in open_ones.items():
        count, size = slot.count, slot.size_bytes
        batch = slot.leave(LIMITS).seal()
        assert (batch.header.count, len(batch.records)) == (count, size)
        assert (slot.count, slot.size_bytes) == (0, 0)
        batches[partition] = rows_of(decoded(placed([batch])))
    assert batches == {4: [rows[i] for i in (1, 5, 9, 12)], 0: [rows[i] for i in (2, 10, 11)], 2: [rows[3], rows[4]]}


def test_a_draft_that_has_left_its_slot_goes_on_where_the_slot_ended() -> None:
    rows = [Row(None, b"%d" % i, (), 100 + i) for i in range(4000)]
    slots = Slots(2)
    slot = slots.begin(1)
    append(slots, columns_of(rows), {1: [0, 1]})
    draft = slot.leave(LIMITS)
    assert draft.append(columns_of(rows), start=2, stop=4000, now_ms=0) == 4000
    assert rows_of(decoded(placed([draft.seal()]))) == rows


def test_what_has_no_slot_and_what_does_not_fit_is_left_out() -> None:
    rows = [Row(None, bytes(size), (), 5) for size in (10, 100_000, 20)]
    slots = Slots(PARTITIONS)
    first, second = slots.begin(1), slots.begin(2)
    runs = {1: [0, 1, 2], ELSEWHERE: [0, 2], 2: [1]}
    assert append(slots, columns_of(rows), runs).reached == [1, 3, 5]
    assert (first.count, second.count, second.size_bytes) == (1, 0, 0)


@pytest.mark.parametrize("limits", [BatchLimits(max_bytes=200), BatchLimits(max_bytes=1_000_000, max_records=4)])
def test_limits_of_a_batch_hold_in_a_slot(limits: BatchLimits) -> None:
    rows = [Row(None, bytes(20), (), 5) for _ in range(10)]
    slots = Slots(PARTITIONS)
    slot = slots.begin(3)
    assert append(slots, columns_of(rows), {3: list(range(10))}, limits).reached == [slot.count]
    assert slot.count == 4 or 200 - 61 - 27 <= slot.size_bytes <= 200 - 61
    before = slot.size_bytes
    append(slots, columns_of(rows), {3: [0]}, limits)
    assert slot.size_bytes == before


def test_a_slot_begins_empty_whatever_became_of_the_batch_before() -> None:
    rows = [Row(None, b"lost", (), 5), Row(None, b"new", (), 6)]
    slots = Slots(PARTITIONS)
    slots.begin(0)
    append(slots, columns_of(rows), {0: [0]})
    slot = slots.begin(0)
    append(slots, columns_of(rows), {0: [1]})
    assert rows_of(decoded(placed([slot.leave(LIMITS).seal()]))) == [rows[1]]


@given(st.integers(), st.sampled_from([50, 200, 5000]))
def test_no_byte_is_written_outside_of_a_slot(seed: int, most: int) -> None:
    """Neighboring slots do not change, and protected pages surround the memory."""
    chance = random.Random(seed)
    rows = [Row(None, chance.randbytes(chance.randrange(most)), (), chance.randrange(10**6)) for _ in range(60)]
    area = Walled()
    area.begin(chance.randrange(4))
    slots = Slots(PARTITIONS)
    slots._slot_bytes = 2048
    slots._memory = area.octets(PARTITIONS * 2048, 0xEE)
    used = chance.sample(range(PARTITIONS), 3)
    open_ones = {partition: slots.begin(partition) for partition in used}
    for _ in range(3):
        append(slots, columns_of(rows), {p: sorted(chance.sample(range(60), chance.randrange(60))) for p in used})
    for partition in range(PARTITIONS):
        written = open_ones[partition].size_bytes if partition in open_ones else 0
        assert written <= 2048
        assert (slots._memory[partition * 2048 + written : (partition + 1) * 2048] == 0xEE).all()
