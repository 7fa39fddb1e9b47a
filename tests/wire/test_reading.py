"""What a reader gets: the requested columns and offsets, in chunks, and only data."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ConfigError
from ottla.wire.batch import Batch, Codec, TimestampType
from ottla.wire.codecs import Scratch, compress
from ottla.wire.decode import COLUMNS, SCHEMA, Decoder

from .rows import (
    NOW,
    Row,
    decoded,
    encoded,
    placed,
    quick,
    raw_batch,
    record_bytes,
    row_lists,
    rows_of,
    small_batches,
    thorough,
    varint,
    written,
)

LOG_APPEND, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20
CODECS = list(Codec)


def numbered(count: int, size: int = 10) -> list[Row]:
    return [Row(b"%d" % i, b"v" * size, (), NOW + i) for i in range(count)]


def test_the_columns_are_those_of_sparks_kafka_source() -> None:
    assert COLUMNS == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
    batch = written([Row(b"k", b"v", (("h", b"x"),), 1_234)], base_offset=7)
    ((records, count, fingerprint, reached, left_out, _),) = Decoder().decode([batch], topic="clicks", partition=3)
    assert (count, fingerprint, reached, left_out) == (1, None, 8, 0)
    assert records.schema == SCHEMA
    (row,) = records.to_pylist()
    assert row.pop("timestamp").isoformat() == "1970-01-01T00:00:01.234000+00:00"
    assert row == {
        "key": b"k",
        "value": b"v",
        "topic": "clicks",
        "partition": 3,
        "offset": 7,
        "timestampType": 0,
        "headers": [{"key": "h", "value": b"x"}],
    }


def test_a_record_without_headers_has_none() -> None:
    table = decoded([written([Row(), Row(headers=(("a", None),)), Row()])])
    assert table["headers"].to_pylist() == [None, [{"key": "a", "value": None}], None]


@given(input_rows=row_lists, columns=st.sets(st.sampled_from(COLUMNS)), codec=st.sampled_from(CODECS))
@thorough
def test_only_the_columns_asked_for_are_read(input_rows: list[Row], columns: set[str], codec: Codec) -> None:
    batches = placed(encoded(input_rows, codec=codec, limits=small_batches(7)))
    selected = decoded(batches, columns)
    assert selected.schema.names == [name for name in COLUMNS if name in columns]
    whole = decoded(batches)
    for name in selected.schema.names:
        assert selected[name] == whole[name]


def test_reading_no_column_still_counts() -> None:
    ((records, count, fingerprint, reached, *_),) = Decoder((), fingerprint=True).decode([written(numbered(5))])
    assert (records.num_columns, count, reached) == (0, 5, 5)
    assert fingerprint is not None
    assert fingerprint.count == 5


def test_a_column_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown columns blue, red; there are key, value, topic"):
        Decoder(("key", "red", "blue"))


@pytest.mark.parametrize(("batch", "chunk"), [(0, 1), (1, 0), (-1, 1), (1 << 31, 1), ((1 << 31) - 2, 2)])
def test_sizes_that_cannot_be_kept_are_refused(batch: int, chunk: int) -> None:
    with pytest.raises(ConfigError, match="max_batch_bytes and chunk_bytes must be positive, and below"):
        Decoder(max_batch_bytes=batch, chunk_bytes=chunk)


@given(
    input_rows=row_lists,
    codec=st.sampled_from(CODECS),
    size=st.integers(1, 6),
    bounds=st.tuples(st.integers(0, 30), st.integers(0, 30)),
)
@thorough
def test_only_the_offsets_asked_for_are_read(
    input_rows: list[Row], codec: Codec, size: int, bounds: tuple[int, int]
) -> None:
    batches = placed(encoded(input_rows, codec=codec, limits=small_batches(size), fingerprint=True))
    start, stop = bounds
    chunks = list(Decoder(fingerprint=True).decode(batches, start=start, stop=stop))
    table = pa.Table.from_batches([chunk.records for chunk in chunks], SCHEMA)
    assert table["offset"].to_pylist() == list(range(len(input_rows)))[start:stop]
    assert rows_of(table) == input_rows[start:stop]
    assert sum(chunk.fingerprint.count for chunk in chunks if chunk.fingerprint) == len(input_rows[start:stop])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_every_start_and_stop_is_kept_exactly(codec: Codec) -> None:
    batches = placed(encoded(numbered(8), codec=codec, limits=small_batches(3)))
    decoder = Decoder(("offset",))
    for start in range(10):
        for stop in range(10):
            chunks = decoder.decode(batches, start=start, stop=stop)
            offsets = [offset for chunk in chunks for offset in chunk.records["offset"].to_pylist()]
            assert offsets == list(range(8))[start:stop]


def test_batches_outside_the_range_are_not_looked_into() -> None:
    broken = Batch.parse(bytes(written(numbered(3), base_offset=0).data)[:-1] + b"!")
    whole = written(numbered(3), base_offset=3)
    after = Batch.parse(bytes(written(numbered(3), base_offset=6).data)[:-1] + b"!")
    ((records, *_),) = Decoder().decode([broken, whole, after], start=3, stop=6)
    assert records["offset"].to_pylist() == [3, 4, 5]


def test_holes_that_compaction_left_are_kept() -> None:
    batch = written(numbered(3), [0, 4, 9], base_offset=100, last_delta=12)
    assert batch.header.next_offset == 113
    assert decoded([batch])["offset"].to_pylist() == [100, 104, 109]


def test_a_batch_that_compaction_emptied_is_passed_over() -> None:
    empty = Batch.parse(raw_batch(b"", count=0, last_delta=5))
    assert empty.header.next_offset == 6
    assert decoded([empty, written(numbered(2), base_offset=6)])["offset"].to_pylist() == [6, 7]
    assert list(Decoder().decode([empty])) == []


@given(input_rows=row_lists, codec=st.sampled_from(CODECS), chunk_bytes=st.integers(1, 2000))
@quick
def test_chunks_change_nothing_but_their_number(input_rows: list[Row], codec: Codec, chunk_bytes: int) -> None:
    batches = placed(encoded(input_rows, codec=codec, limits=small_batches(3)))
    assert decoded(batches, chunk_bytes=chunk_bytes).combine_chunks() == decoded(batches).combine_chunks()


def test_a_chunk_ends_before_it_is_too_large() -> None:
    batches = placed(encoded(numbered(100, size=100), limits=small_batches(10)))
    sizes = [chunk.records.num_rows for chunk in Decoder(chunk_bytes=3 * batches[0].header.size_bytes).decode(batches)]
    assert sizes == [30, 30, 30, 10]


def test_a_batch_larger_than_a_chunk_comes_out_whole() -> None:
    batches = placed(encoded(numbered(90, size=100), limits=small_batches(30)))
    sizes = [chunk.records.num_rows for chunk in Decoder(chunk_bytes=100).decode(batches)]
    assert sizes == [30, 30, 30]


def test_chunks_stay_as_they_are_when_the_next_ones_are_read() -> None:
    batches = placed(encoded(numbered(60), codec=Codec.ZSTD, limits=small_batches(10)))
    chunks = [chunk.records for chunk in Decoder(chunk_bytes=1).decode(batches)]
    assert len(chunks) == 6
    assert rows_of(pa.Table.from_batches(chunks)) == numbered(60)
    for chunk in chunks:
        chunk.validate(full=True)


def test_columns_hold_little_more_memory_than_their_content() -> None:
    data = [written(numbered(2000, size=100))]
    before = pa.total_allocated_bytes()
    chunks = [chunk.records for _ in range(20) for chunk in Decoder().decode(data)]
    assert pa.total_allocated_bytes() - before < 1.5 * sum(chunk.nbytes for chunk in chunks)
    for chunk in chunks:
        chunk.validate(full=True)
        assert rows_of(chunk) == numbered(2000, size=100)


def test_large_chunks_of_small_batches_are_not_copied_again_and_again() -> None:
    scratch = Scratch()
    records = compress(Codec.LZ4, b"x" * 30_000)
    areas = set()
    for i in range(1000):
        assert scratch.append(Codec.LZ4, records, 1 << 20) == (i * 30_000, (i + 1) * 30_000)
        areas.add(len(scratch.data))
    assert len(areas) < 20
    assert bytes(scratch.view()) == b"x" * 30_000_000


def test_one_decoder_reads_again_and_again() -> None:
    decoder = Decoder()
    for codec in CODECS:
        batches = placed(encoded(numbered(50), codec=codec))
        assert [rows_of(chunk.records) for chunk in decoder.decode(batches)] == [numbered(50)]


@given(runs=st.lists(st.tuples(row_lists, st.sampled_from(CODECS)), min_size=1, max_size=6))
@quick
def test_codecs_may_change_from_batch_to_batch(runs: list[tuple[list[Row], Codec]]) -> None:
    batches = placed(batch for input_rows, codec in runs for batch in encoded(input_rows, codec=codec))
    joined = b"".join(bytes(batch.data) for batch in batches)
    in_one_buffer = [Batch.parse(joined, len(joined) - left) for left in _sizes_to_the_end(batches)]
    expected = [row for input_rows, _ in runs for row in input_rows]
    assert rows_of(decoded(batches)) == expected
    assert rows_of(decoded(in_one_buffer)) == expected


def _sizes_to_the_end(batches: list[Batch]) -> list[int]:
    return [sum(batch.header.size_bytes for batch in batches[i:]) for i in range(len(batches))]


@pytest.mark.parametrize("codec", CODECS)
def test_the_brokers_time_replaces_those_of_the_producer(codec: Codec) -> None:
    appended = written(numbered(3), codec=codec, flags=LOG_APPEND, max_time=NOW + 999)
    assert appended.header.timestamp_type is TimestampType.LOG_APPEND
    table = decoded([appended])
    assert [row.time for row in rows_of(table)] == [NOW + 999] * 3
    assert table["timestampType"].to_pylist() == [1, 1, 1]


def test_both_kinds_of_time_may_follow_one_another() -> None:
    kept = written(numbered(2))
    appended = written(numbered(2), flags=LOG_APPEND, base_offset=2, max_time=NOW + 999)
    later = written(numbered(1), base_offset=4)
    table = decoded([kept, appended, later])
    assert table["timestampType"].to_pylist() == [0, 0, 1, 1, 0]
    assert [row.time for row in rows_of(table)] == [NOW, NOW + 1, NOW + 999, NOW + 999, NOW]


def test_markers_of_transactions_are_hidden() -> None:
    data = written(numbered(2), flags=TRANSACTIONAL, producer=(9, 1, 0))
    marker = written([Row(b"\0\0\0\1", b"\0\0\0\0\0\0")], flags=TRANSACTIONAL | CONTROL, base_offset=2)
    after = written(numbered(1), base_offset=3)
    assert (data.header.is_transactional, data.header.is_control) == (True, False)
    assert (marker.header.is_transactional, marker.header.is_control) == (True, True)
    assert (data.header.producer_id, data.header.producer_epoch, data.header.base_sequence) == (9, 1, 0)
    assert decoded([data, marker, after])["offset"].to_pylist() == [0, 1, 3]
    assert list(Decoder().decode([marker])) == []


@pytest.mark.parametrize("codec", CODECS)
def test_many_headers_on_few_records_are_read(codec: Codec) -> None:
    input_rows = [
        Row(b"k", b"v", tuple((f"key-{i}-{j}", None if j % 5 == 0 else b"%d" % j) for j in range(i * 37)), NOW)
        for i in range(20)
    ]
    table = decoded(placed(encoded(input_rows, codec=codec, limits=small_batches(4))))
    assert rows_of(table) == input_rows
    table.validate(full=True)


def test_header_keys_that_are_no_text_are_replaced() -> None:
    odd = varint(2) + varint(3) + b"a\xffb" + varint(1) + b"1" + varint(4) + b"\xe9\x8d\xb5!" + varint(-1)
    records = record_bytes(Row(value=b"v"), time_delta=0, offset_delta=0, raw_headers=odd)
    (headers,) = decoded([Batch.parse(raw_batch(records, count=1))])["headers"].to_pylist()
    assert headers == [{"key": "a\ufffdb", "value": b"1"}, {"key": "鍵!", "value": None}]


def test_header_counts_may_be_written_in_more_bytes_than_needed() -> None:
    padded = [varint(0), b"\x80\x00", b"\x80\x80\x00"]
    records = b"".join(
        record_bytes(Row(value=b"v"), time_delta=0, offset_delta=i, raw_headers=headers)
        for i, headers in enumerate(padded)
    )
    table = decoded([Batch.parse(raw_batch(records, count=3))])
    assert table["headers"].to_pylist() == [None, None, None]


def test_snappy_in_the_framing_of_the_java_client_is_read() -> None:
    import cramjam

    records = b"".join(record_bytes(row, time_delta=i, offset_delta=i) for i, row in enumerate(numbered(300)))
    blocks = [bytes(cramjam.snappy.compress_raw(records[i : i + 1000])) for i in range(0, len(records), 1000)]
    framed = b"\x82SNAPPY\0" + b"\0\0\0\1" * 2 + b"".join(len(block).to_bytes(4, "big") + block for block in blocks)
    assert rows_of(decoded([Batch.parse(raw_batch(framed, count=300, flags=int(Codec.SNAPPY)))])) == numbered(300)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("checksums", [False, True])
def test_lz4_frames_of_every_kind_are_read(linked: bool, sized: bool, checksums: bool) -> None:
    import lz4.frame

    input_rows = [Row(b"%d" % i, b"value %d" % (i % 50) * 20, (), NOW) for i in range(2000)]
    records = b"".join(record_bytes(row, time_delta=0, offset_delta=i) for i, row in enumerate(input_rows))
    frame = lz4.frame.compress(
        records, block_linked=linked, store_size=sized, content_checksum=checksums, block_checksum=checksums
    )
    batch = Batch.parse(raw_batch(frame, count=2000, flags=int(Codec.LZ4)))
    assert rows_of(decoded([batch])) == input_rows
