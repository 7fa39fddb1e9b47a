"""Profiles from headers against what decoding the same batches gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wire.rows import NOW, thorough

from ottla.fetch.profile import PartitionProfile, ProfileBuilder
from ottla.model import OffsetRange
from ottla.wire.batch import IS_LOG_APPEND, Batch, Codec
from ottla.wire.decode import Decoder

from .logs import marker, of_transaction, parse, plain


def profiled(batches: list[Batch], start: int, stop: int) -> PartitionProfile:
    tally = ProfileBuilder(OffsetRange("t", 0, start, stop))
    tally.add(batches)
    return tally.profile()


batch_shapes = st.lists(
    st.tuples(
        st.integers(0, 3),
        st.lists(st.booleans(), min_size=1, max_size=8),
        st.sampled_from([Codec.NONE, Codec.GZIP, Codec.LZ4, Codec.SNAPPY, Codec.ZSTD]),
    ),
    min_size=1,
    max_size=8,
)


@given(batch_shapes, st.integers(0, 40), st.integers(0, 40))
@thorough
def test_records_are_counted_as_if_they_had_been_decoded(
    shapes: list[tuple[int, list[bool], Codec]], start: int, length: int
) -> None:
    offset, batches = 0, []
    for gap, there, codec in shapes:
        offset += gap
        deltas = [delta for delta, is_there in enumerate(there) if is_there]
        batches += parse(plain(offset, deltas=deltas, last=len(there) - 1, codec=codec if deltas else Codec.NONE))
        offset += len(there)
    stop = start + length
    profile = profiled(batches, start, stop)
    assert profile.records == sum(part.rows for part in Decoder(("offset",)).decode(batches, start=start, stop=stop))
    within = [b.header for b in batches if b.header.next_offset > start and b.header.base_offset < stop]
    assert profile.batches == len(within)
    assert profile.bytes == sum(header.size_bytes for header in within)
    assert sum(profile.codecs.values()) == len(within)


def test_markers_are_counted_apart_from_records() -> None:
    profile = profiled(parse(of_transaction(0, 3, 7) + marker(3, 7) + plain(4, 2, producer=(8, 0, 0))), 0, 100)
    assert (profile.records, profile.batches, profile.transactional, profile.control, profile.producers) == (
        5,
        3,
        1,
        1,
        2,
    )
    assert profile.codecs == {"none": 2}


def test_times_are_those_of_the_records() -> None:
    profile = profiled(
        parse(plain(0, 3, base_time=NOW, max_time=NOW + 2) + plain(3, 1, base_time=50, max_time=50)), 0, 9
    )
    assert (profile.first_timestamp, profile.last_timestamp) == (50, NOW + 2)


def test_times_set_by_the_broker_are_those_that_readers_see() -> None:
    (batch,) = parse(plain(0, 3, flags=IS_LOG_APPEND, base_time=1, max_time=NOW))
    profile = profiled([batch], 0, 9)
    (decoded,) = Decoder(("timestamp",)).decode([batch])
    assert [time.timestamp() * 1000 for time in decoded.records.column("timestamp").to_pylist()] == [NOW] * 3
    assert (profile.first_timestamp, profile.last_timestamp) == (NOW, NOW)


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (50, 60)])
def test_a_range_without_records_has_no_times(start: int, stop: int) -> None:
    profile = profiled(parse(plain(0, 3)), start, stop)
    assert (profile.records, profile.batches, profile.bytes) == (0, 0, 0)
    assert (profile.first_timestamp, profile.last_timestamp) == (None, None)
