"""Ranges are cut so that every offset is in exactly one piece, and pieces are about equally large."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import InputError
from ottla.model import OffsetRange, TopicPartition
from ottla.plan import cut

SPANS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 10**6), st.integers(0, 5000)),
    max_size=8,
    unique_by=lambda span: span[:2],
)
COUNTS = st.none() | st.integers(1, 300)


def ranges_of(spans: list[tuple[str, int, int, int]]) -> list[OffsetRange]:
    return [OffsetRange(topic, partition, start, start + length) for topic, partition, start, length in spans]


def joined(pieces: list[OffsetRange]) -> list[OffsetRange]:
    """The pieces, with adjacent ones joined."""
    whole: list[OffsetRange] = []
    for piece in pieces:
        if whole and whole[-1].topic_partition == piece.topic_partition and whole[-1].stop == piece.start:
            piece = OffsetRange(piece.topic, piece.partition, whole.pop().start, piece.stop)
        whole.append(piece)
    return whole


@given(SPANS, COUNTS, COUNTS, COUNTS, st.floats(0.1, 1000))
def test_the_pieces_cover_exactly_the_ranges(
    spans: list[tuple[str, int, int, int]],
    at_least: int | None,
    max_records: int | None,
    max_bytes: int | None,
    record_bytes: float,
) -> None:
    ranges = ranges_of(spans)
    pieces = cut(ranges, at_least=at_least, max_records=max_records, max_bytes=max_bytes, record_bytes=record_bytes)
    assert joined(pieces) == sorted(span for span in ranges if len(span))
    assert all(len(piece) for piece in pieces)


@given(SPANS, COUNTS, st.integers(1, 300), st.integers(1, 100_000), st.floats(0.1, 1000))
def test_no_piece_is_over_a_limit_unless_it_is_one_offset(
    spans: list[tuple[str, int, int, int]], at_least: int | None, max_records: int, max_bytes: int, record_bytes: float
) -> None:
    pieces = cut(
        ranges_of(spans), at_least=at_least, max_records=max_records, max_bytes=max_bytes, record_bytes=record_bytes
    )
    for piece in pieces:
        assert len(piece) <= max_records
        # Equal pieces differ by one offset.
        assert len(piece) == 1 or (len(piece) - 1) * record_bytes <= max_bytes


@given(SPANS, st.integers(1, 300))
def test_there_are_as_many_pieces_as_asked_for_if_there_are_offsets(
    spans: list[tuple[str, int, int, int]], at_least: int
) -> None:
    ranges = ranges_of(spans)
    filled = [span for span in ranges if len(span)]
    assert len(cut(ranges, at_least=at_least)) == max(len(filled), min(at_least, sum(map(len, filled))))


@given(SPANS, COUNTS, st.randoms())
def test_the_order_of_the_ranges_does_not_matter(
    spans: list[tuple[str, int, int, int]], at_least: int | None, chance: object
) -> None:
    ranges = ranges_of(spans)
    shuffled = list(ranges)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert cut(shuffled, at_least=at_least) == cut(ranges, at_least=at_least)


def test_without_limits_a_partition_is_one_piece() -> None:
    ranges = [OffsetRange("a", 1, 5, 9), OffsetRange("a", 0, 3, 3)]
    assert cut(ranges) == [OffsetRange("a", 1, 5, 9)]


def test_the_heaviest_range_is_cut_first() -> None:
    light, heavy = OffsetRange("a", 0, 0, 100), OffsetRange("a", 1, 0, 100)
    sizes = {TopicPartition("a", 0): 10.0, TopicPartition("a", 1): 1000.0}
    pieces = cut([light, heavy], at_least=4, record_bytes=sizes)
    assert [piece.partition for piece in pieces] == [0, 1, 1, 1]


def test_a_partition_of_unknown_size_counts_as_the_others_do() -> None:
    ranges = [OffsetRange("a", 0, 0, 100), OffsetRange("a", 1, 0, 100)]
    pieces = cut(ranges, max_bytes=1000, record_bytes={TopicPartition("a", 0): 20.0})
    assert [piece.partition for piece in pieces] == [0, 0, 1, 1]


@pytest.mark.parametrize("name", ["at_least", "max_records", "max_bytes"])
def test_a_limit_below_one_is_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be at least 1, got 0"):
        cut([OffsetRange("a", 0, 0, 1)], **{name: 0})
