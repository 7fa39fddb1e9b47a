"""What was encoded comes back when it is decoded, and both sides agree with a second implementation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ConfigError, InputError
from ottla.wire.batch import Batch, Codec, split
from ottla.wire.codecs import parse_codec
from ottla.wire.columns import from_arrow
from ottla.wire.encode import BatchLimits, encode

from .rows import (
    NOW,
    Row,
    columns_of,
    decoded,
    encoded,
    placed,
    quick,
    record_bytes,
    records_bytes,
    row_lists,
    rows_of,
    thorough,
    written,
)

CODECS = list(Codec)
LEVELS = [
    *((Codec.GZIP, level) for level in range(1, 10)),
    *((Codec.LZ4, level) for level in range(17)),
    *((Codec.ZSTD, level) for level in range(-22, 23)),
]


@pytest.mark.parametrize("codec", CODECS)
@given(input_rows=row_lists)
@thorough
def test_every_record_comes_back_as_it_was(codec: Codec, input_rows: list[Row]) -> None:
    assert rows_of(decoded(placed(encoded(input_rows, codec=codec)))) == input_rows


@given(input_rows=row_lists)
@thorough
def test_the_bytes_are_those_of_a_second_encoder(input_rows: list[Row]) -> None:
    (batch,) = encoded(input_rows)
    assert bytes(batch) == bytes(written(input_rows, producer=(-1, -1, -1)).data)


@pytest.mark.parametrize("codec", CODECS)
@given(input_rows=row_lists)
@quick
def test_batches_of_a_second_encoder_are_read(codec: Codec, input_rows: list[Row]) -> None:
    table = decoded([written(input_rows, codec=codec, base_offset=1000)])
    assert rows_of(table) == input_rows
    assert table["offset"].to_pylist() == list(range(1000, 1000 + len(input_rows)))


@pytest.mark.parametrize(("codec", "level"), LEVELS)
def test_every_level_is_read_back(codec: Codec, level: int) -> None:
    input_rows = [Row(b"key", bytes([65 + i % 3]) * i, (("h", b"v"),), NOW + i) for i in range(200)]
    assert rows_of(decoded(placed(encoded(input_rows, codec=codec, level=level)))) == input_rows


@pytest.mark.parametrize(("codec", "level"), [(Codec.GZIP, 10), (Codec.LZ4, 17), (Codec.ZSTD, 23), (Codec.SNAPPY, 1)])
def test_a_level_that_does_not_exist_is_refused(codec: Codec, level: int) -> None:
    with pytest.raises(ConfigError, match=f"compression {codec.name.lower()} has .*level"):
        encoded([Row()], codec=codec, level=level)


def test_a_codec_has_a_name() -> None:
    assert [parse_codec(name) for name in ("none", "gzip", "snappy", "lz4", "ZSTD")] == CODECS
    assert parse_codec(Codec.LZ4) is Codec.LZ4
    with pytest.raises(ConfigError, match="'brotli' is not one of none, gzip, snappy, lz4, zstd"):
        parse_codec("brotli")


@given(input_rows=row_lists, max_bytes=st.integers(62, 600), max_records=st.integers(1, 30))
@thorough
def test_batches_stay_within_their_limits(input_rows: list[Row], max_bytes: int, max_records: int) -> None:
    batches = encoded(input_rows, limits=BatchLimits(max_bytes=max_bytes, max_records=max_records))
    for batch in batches:
        assert 0 < batch.header.count <= max_records
        assert batch.header.size_bytes <= max_bytes or batch.header.count == 1
    assert rows_of(decoded(placed(batches))) == input_rows


@given(input_rows=row_lists, max_bytes=st.integers(62, 600))
@quick
def test_a_batch_ends_only_when_the_next_record_does_not_fit(input_rows: list[Row], max_bytes: int) -> None:
    batches = encoded(input_rows, limits=BatchLimits(max_bytes=max_bytes))
    taken = 0
    for batch in batches[:-1]:
        following = input_rows[taken : taken + batch.header.count + 1]
        assert 61 + len(records_bytes(following)) > max_bytes
        taken += batch.header.count


def test_a_batch_may_be_exactly_as_large_as_its_limit() -> None:
    input_rows = [Row(value=b"x" * 50)] * 4
    two = 61 + len(records_bytes(input_rows[:2]))
    for limit, counts in ((two, [2, 2]), (two - 1, [1, 1, 1, 1]), (two + 1, [2, 2])):
        batches = encoded(input_rows, limits=BatchLimits(max_bytes=limit))
        assert [batch.header.count for batch in batches] == counts


@pytest.mark.parametrize("settings", [{"max_bytes": 61}, {"max_bytes": 1 << 31}, {"max_records": 0}])
def test_limits_that_cannot_be_kept_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(settings))} must be between .* got"):
        BatchLimits(**settings)


@given(input_rows=row_lists, data=st.data())
@thorough
def test_picked_rows_are_encoded_in_the_order_of_the_pick(input_rows: list[Row], data: st.DataObject) -> None:
    picks = data.draw(st.lists(st.integers(0, len(input_rows) - 1), max_size=40))
    limits = BatchLimits(max_bytes=data.draw(st.sampled_from([100, 1000, 1_000_000])))
    batches = encode(columns_of(input_rows), now_ms=NOW, limits=limits, rows=np.array(picks, np.int64))
    assert rows_of(decoded(placed(batches))) == [input_rows[i] for i in picks]


@pytest.mark.parametrize("picks", [[-1], [0, 3], [2**40]])
def test_picking_a_row_that_is_not_there_is_refused(picks: list[int]) -> None:
    columns = columns_of([Row(), Row(), Row()])
    with pytest.raises(InputError, match="there are rows 0 to 2"):
        list(encode(columns, now_ms=NOW, rows=np.array(picks, np.int64)))


@pytest.mark.parametrize(
    "picks", [np.arange(6, dtype=np.int32)[::2], np.array([0, 2, 4], ">u2"), [0, 2, 4], range(0, 6, 2)]
)
def test_picks_of_any_width_and_stride_are_taken(picks: Any) -> None:
    input_rows = [Row(value=b"%d" % i) for i in range(6)]
    batches = encode(columns_of(input_rows), now_ms=NOW, rows=picks)
    assert rows_of(decoded(placed(batches))) == input_rows[::2]


@pytest.mark.parametrize(
    ("picks", "words"),
    [
        (np.array([True, False, True]), "rows has type bool .*; numpy.flatnonzero makes them from a mask"),
        (np.array([0.9, 1.7]), "rows has type float64"),
        (np.array([[0, 1], [1, 2]]), "rows has type int64 in 2 dimensions"),
    ],
)
def test_picks_that_are_no_row_numbers_are_refused(picks: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        encode(columns_of([Row(), Row(), Row()]), now_ms=NOW, rows=picks)


@pytest.mark.parametrize("now", [1.7e12, -5, 2**63, None])
def test_a_clock_that_is_no_time_is_refused_at_the_call(now: Any) -> None:
    with pytest.raises(InputError, match=r"now_ms is .*; accepted are whole milliseconds since 1970"):
        encode(columns_of([Row()]), now_ms=now)


def test_a_codec_by_its_number_is_refused_and_not_just_written_into_the_header() -> None:
    with pytest.raises(ConfigError, match="compression 3 is not one of"):
        encode(columns_of([Row()]), now_ms=NOW, codec=3)  # type: ignore[arg-type]
    (batch,) = encode(columns_of([Row()]), now_ms=NOW, codec="lz4")
    assert batch.header.codec is Codec.LZ4


def test_a_row_that_no_batch_can_hold_is_named() -> None:
    size = 1 << 31  # never touched, so it takes no memory
    buffers = [None, pa.py_buffer(np.array([0, 1, size + 1])), pa.py_buffer(np.zeros(size + 1, np.uint8))]
    columns = from_arrow(pa.Array.from_buffers(pa.large_binary(), 2, buffers))
    with pytest.raises(InputError, match="row 1 takes 2147483663 bytes as a record; no batch can hold that"):
        list(encode(columns, now_ms=NOW, rows=[1]))


def test_a_small_batch_holds_little_memory() -> None:
    columns = columns_of([Row(value=b"x" * 100)] * 20_000)
    before = pa.total_allocated_bytes()
    kept = [batch for i in range(100) for batch in encode(columns, now_ms=NOW, rows=[i])]
    assert pa.total_allocated_bytes() - before < 2 * sum(map(len, (bytes(batch) for batch in kept)))


def test_no_rows_make_no_batch() -> None:
    assert encoded([]) == []
    assert list(encode(columns_of([Row()]), now_ms=NOW, rows=np.zeros(0, np.int64))) == []


def test_rows_without_a_time_get_the_callers_clock() -> None:
    columns = columns_of([Row(value=b"a"), Row(value=b"b")])._replace(times=np.zeros(0, np.int64))
    (batch,) = placed(encode(columns, now_ms=123_456))
    assert (batch.header.base_timestamp, batch.header.max_timestamp) == (123_456, 123_456)
    assert [row.time for row in rows_of(decoded([batch]))] == [123_456, 123_456]


def test_times_may_run_backwards() -> None:
    input_rows = [Row(time=time) for time in (NOW, 0, NOW + 5, NOW - 1)]
    (batch,) = placed(encoded(input_rows))
    assert (batch.header.base_timestamp, batch.header.max_timestamp) == (NOW, NOW + 5)
    assert [row.time for row in rows_of(decoded([batch]))] == [NOW, 0, NOW + 5, NOW - 1]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 1_048_575, 1_048_576, 3_000_000])
@pytest.mark.parametrize("codec", CODECS)
def test_values_of_every_length_class_survive(codec: Codec, size: int) -> None:
    input_rows = [Row(b"k", b"x" * size), Row(b"l", b"y")]
    assert rows_of(decoded(placed(encoded(input_rows, codec=codec)))) == input_rows


def test_a_record_larger_than_a_batch_becomes_a_batch_of_its_own() -> None:
    input_rows = [Row(value=b"a"), Row(value=b"b" * 5000), Row(value=b"c")]
    batches = encoded(input_rows, limits=BatchLimits(max_bytes=200))
    assert [batch.header.count for batch in batches] == [1, 1, 1]
    assert rows_of(decoded(placed(batches))) == input_rows


@given(input_rows=row_lists, codec=st.sampled_from(CODECS))
@quick
def test_the_header_tells_what_is_inside(input_rows: list[Row], codec: Codec) -> None:
    (new,) = encoded(input_rows, codec=codec)
    batch = Batch.parse(bytes(new))
    batch.verify()
    assert batch.header == new.header
    assert batch.header.codec is codec
    assert batch.header.count == batch.header.next_offset == len(input_rows)
    assert batch.header.max_timestamp == max(row.time for row in input_rows)
    assert b"".join(bytes(part) for part in new.parts()) == bytes(new) == bytes(batch.data)
    assert len(bytes(new)) == batch.header.size_bytes


@given(runs=st.lists(row_lists, max_size=4), cut=st.integers(1, 60))
@quick
def test_a_run_of_batches_is_split_and_its_cut_end_left_out(runs: list[list[Row]], cut: int) -> None:
    whole = b"".join(bytes(batch) for input_rows in runs for batch in encoded(input_rows))
    partial = bytes(encoded([Row(value=b"x" * 100)])[0])[:-cut]
    batches = list(split(whole + partial))
    assert b"".join(bytes(batch.data) for batch in batches) == whole
    assert [batch.header.count for batch in batches] == [len(input_rows) for input_rows in runs]


def test_batches_are_equal_when_their_bytes_are() -> None:
    batch, same, other = (written([Row(value=value)]) for value in (b"a", b"a", b"b"))
    moved = Batch.parse(b"xx" + bytes(batch.data), 2)
    assert batch == same == moved
    assert batch != other
    assert len({batch, same, moved}) == 1
    assert repr(batch) == "Batch(offsets=[0, 1), count=1, codec=none, bytes=69)"


def test_batches_are_found_in_every_kind_of_memory() -> None:
    batch = written([Row(value=b"\xff" * 106)])
    data = bytes(batch.data)
    assert len(data) % 4 == 0
    for memory in (pa.py_buffer(data), bytearray(data), np.frombuffer(data, np.int32), memoryview(data).cast("b")):
        assert list(split(memory)) == [Batch.parse(memory)] == [batch]  # type: ignore[arg-type]
    with pytest.raises(InputError, match="contiguous memory"):
        Batch.parse(memoryview(data)[::2])


def test_one_record_has_the_bytes_of_the_format() -> None:
    row = Row(b"k", None, (("h", None),), NOW)
    assert record_bytes(row, time_delta=-1, offset_delta=0).hex() == "1400010002" + "6b" + "01" + "02" + "0268" + "01"
    fields: dict[str, Any] = {"producer": (-1, -1, -1)}
    assert bytes(encoded([row])[0]) == bytes(written([row], **fields).data)
