"""The batches of a whole response, found by a kernel: the same as `split` finds, or none at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import WireError
from ottla.wire.batch import IS_LOG_APPEND, Batch, split
from ottla.wire.scan import scan

from .rows import Row, quick, written

ROWS = [Row(b"k", b"value %d" % number) for number in range(5)]


def log(*counts: int, base: int = 0, flags: int = 0) -> bytes:
    """Batches with these numbers of records, one after another."""
    data = b""
    for count in counts:
        data += bytes(written(ROWS[:count], base_offset=base, flags=flags).data)
        base += count
    return data


def good(data: bytes) -> list[Batch] | None:
    """What `split` finds; None if something is wrong, or there is nothing."""
    try:
        batches = list(split(data))
    except WireError:
        return None
    reached = 0
    for batch in batches:
        if batch.header.base_offset < reached:
            return None
        reached = batch.header.next_offset
    return batches or None


def laid_out(*parts: bytes) -> tuple[memoryview, list[tuple[int, int]]]:
    """All parts in one buffer, with other bytes between them."""
    data, spans = b"", []
    for part in parts:
        data += b"\xff" * 7
        spans.append((len(data), len(data) + len(part)))
        data += part
    return memoryview(data), spans


def test_the_batches_of_every_span_are_found() -> None:
    parts = [log(3, 2), b"", log(1, base=70), log(5, 5, 5, base=9)]
    first, nothing, second, third = scan(*laid_out(*parts))
    assert nothing is None
    assert first is not None
    assert second is not None
    assert third is not None
    assert list(first) == good(parts[0])
    assert [third[0], third[-1]] == [third[:][0], third[1:][-1]]
    assert (first.first_offset, first.next_offset, len(first)) == (0, 5, 2)
    assert (second.first_offset, second.next_offset) == (70, 71)
    assert (third.first_offset, third.next_offset) == (9, 24)


def test_a_partial_batch_at_the_end_is_left_out() -> None:
    whole = log(3, 2)
    for cut in range(len(whole)):
        (batches,) = scan(*laid_out(whole[:cut]))
        assert (None if batches is None else list(batches)) == good(whole[:cut])


def test_there_may_be_any_number_of_batches() -> None:
    parts = [log(*[1] * 1000), log(*[1] * 3000)]
    spans = scan(*laid_out(*parts))
    assert [None if batches is None else len(batches) for batches in spans] == [1000, 3000]
    assert spans[1] is not None
    assert [batch.header.base_offset for batch in spans[1]] == list(range(3000))


def test_attributes_that_any_or_all_have_are_reported() -> None:
    (batches,) = scan(*laid_out(log(1) + log(1, base=1, flags=IS_LOG_APPEND)))
    assert batches is not None
    assert (batches.any_attributes, batches.all_attributes) == (IS_LOG_APPEND, 0)


def test_batches_that_go_back_are_not_taken() -> None:
    assert scan(*laid_out(log(2, base=5) + log(2, base=4))) == [None]


@pytest.mark.parametrize("span", [(0, 1000), (-1, 10), (5, 4)])
def test_a_span_outside_the_memory_has_nothing(span: tuple[int, int]) -> None:
    assert scan(memoryview(log(2)), [span]) == [None]


@quick
@given(data=st.data())
def test_changed_bytes_give_the_same_answer_as_one_by_one(data: st.DataObject) -> None:
    whole = bytearray(log(2, 3, 1))
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(whole) - 1))
        whole[position] = data.draw(st.sampled_from([0, 1, 2, 127, 128, 255]))
    (batches,) = scan(*laid_out(bytes(whole)))
    assert (None if batches is None else list(batches)) == good(bytes(whole))
