"""A limited batch takes a share of every partition and starves none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import InputError
from ottla.model import TopicPartition
from ottla.plan import limit, limit_bytes

BACKLOGS = st.dictionaries(
    st.integers(0, 20), st.tuples(st.integers(0, 10**12), st.integers(0, 10**9)), min_size=1, max_size=12
)
A, B, C = (TopicPartition("t", number) for number in range(3))


def offsets(backlogs: dict[int, tuple[int, int]]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    start = {TopicPartition("t", number): first for number, (first, _) in backlogs.items()}
    end = {TopicPartition("t", number): first + size for number, (first, size) in backlogs.items()}
    return start, end


@given(BACKLOGS, st.integers(1, 10**9))
def test_a_portion_lies_between_start_and_end_and_is_about_as_large_as_the_limit(
    backlogs: dict[int, tuple[int, int]], most: int
) -> None:
    start, end = offsets(backlogs)
    places = limit(start, end, most)
    assert places.keys() == end.keys()
    assert all(start[tp] <= places[tp] <= end[tp] for tp in end)
    taken = sum(places[tp] - start[tp] for tp in end)
    waiting = sum(end[tp] - start[tp] for tp in end)
    assert min(waiting, most) - len(end) <= taken <= min(waiting, max(most, most + len(end) - 1))


@given(BACKLOGS, st.integers(1, 10**9))
def test_every_partition_with_a_backlog_gets_something(backlogs: dict[int, tuple[int, int]], most: int) -> None:
    start, end = offsets(backlogs)
    for places in (limit(start, end, most), limit_bytes(start, end, most, 100.0)):
        assert all(places[tp] > start[tp] for tp in end if end[tp] > start[tp])


def test_shares_are_in_proportion_to_the_backlog() -> None:
    assert limit({A: 100, B: 0, C: 0}, {A: 1100, B: 100, C: 0}, 110) == {A: 200, B: 10, C: 0}


def test_bytes_take_the_same_part_of_every_backlog() -> None:
    sizes = {A: 10.0, B: 1000.0}
    assert limit_bytes({A: 0, B: 0}, {A: 1000, B: 1000}, 101_000, sizes) == {A: 100, B: 100}


def test_what_fits_is_taken_whole() -> None:
    assert limit({A: 5}, {A: 15}, 10) == {A: 15}
    assert limit_bytes({A: 5}, {A: 15}, 1000, 100.0) == {A: 15}


def test_an_end_before_its_start_stays_for_the_caller_to_notice() -> None:
    assert limit({A: 100, B: 0}, {A: 50, B: 1000}, 10) == {A: 50, B: 10}


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1, got 0"):
        limit({A: 0}, {A: 1}, 0)
