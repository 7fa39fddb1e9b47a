"""Damaged and malformed batches: each raises an error with the batch and the position."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import CorruptBatch, UnsupportedFormat, WireError
from ottla.wire.batch import Batch, Codec, split
from ottla.wire.decode import Decoder

from .rows import (
    LATEST,
    NOW,
    Row,
    quick,
    raw_batch,
    record_bytes,
    varint,
    written,
)

AT = 4711
ROWS = [Row(b"key", b"value", (("h", b"v"),), NOW + i) for i in range(3)]
CODECS = list(Codec)


def read(batch: Batch) -> None:
    for _ in Decoder(fingerprint=True).decode([batch], topic="clicks", partition=3):
        pass


def fault_of(data: bytes, **settings: int) -> CorruptBatch:
    with pytest.raises(CorruptBatch) as caught:
        for _ in Decoder(**settings).decode([Batch.parse(data)], topic="clicks", partition=3):  # type: ignore[arg-type]
            pass
    return caught.value


def with_bytes(data: bytes, start: int, new: bytes) -> bytes:
    return data[:start] + new + data[start + len(new) :]


@pytest.mark.parametrize("magic", [0, 1])
def test_old_message_formats_get_advice(magic: int) -> None:
    data = raw_batch(b"x" * 20, count=1, magic=magic, base_offset=AT)
    words = f"message format {magic} at offset {AT}: Ottla reads format 2 .Kafka 0.11 and newer.; copy the topic once"
    with pytest.raises(UnsupportedFormat, match=words):
        Batch.parse(data)
    with pytest.raises(UnsupportedFormat, match=words):
        list(split(data))


@pytest.mark.parametrize(
    ("start", "new", "reason", "position"),
    [
        (16, b"\x03", "magic byte is 3, expected 2", 16),
        (16, b"\xff", "magic byte is -1, expected 2", 16),
        (8, struct.pack(">i", 48), "length 48 is shorter than a header", 8),
        (8, struct.pack(">i", -1), "length -1 is shorter than a header", 8),
        (23, struct.pack(">i", -1), "offset 4711 with last delta -1", 23),
        (23, struct.pack(">i", 1), "count 3 with last delta 1", 57),
        (57, struct.pack(">i", -1), "count -1 with last delta 2", 57),
        (57, struct.pack(">i", 2**31 - 1), "count 2147483647 with last delta 2", 57),
        (21, struct.pack(">h", 5), "codec 5 does not exist", 21),
        (21, struct.pack(">h", 7), "codec 7 does not exist", 21),
        (23, struct.pack(">i", 2**31 - 1) + b"\0" * 30 + struct.pack(">i", 10**6), "count 1000000 does not fit in", 57),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(start: int, new: bytes, reason: str, position: int) -> None:
    data = with_bytes(bytes(written(ROWS, base_offset=AT).data), start, new)
    with pytest.raises(CorruptBatch) as caught:
        Batch.parse(data)
    assert reason in caught.value.reason
    assert (caught.value.base_offset, caught.value.position) == (AT, position)


def test_a_negative_offset_is_refused() -> None:
    with pytest.raises(CorruptBatch, match="offset -5 with last delta 2"):
        Batch.parse(raw_batch(b"x" * 30, count=3, base_offset=-5))


@given(keep=st.integers(0, 90))
@quick
def test_a_batch_cut_short_is_refused(keep: int) -> None:
    data = bytes(written(ROWS, base_offset=AT).data)
    keep = min(keep, len(data) - 1)
    with pytest.raises(CorruptBatch, match=f"cut short: only {keep} bytes left") as caught:
        Batch.parse(data[:keep])
    assert caught.value.base_offset == (AT if keep >= 8 else None)
    assert list(split(data[:keep])) == []


def test_the_error_says_where_in_words() -> None:
    damaged = bytearray(written(ROWS, base_offset=AT).data)
    damaged[-1] ^= 1
    text = str(fault_of(bytes(damaged)))
    assert text.startswith("corrupt batch at offset 4711 of clicks-3, byte 17 of its bytes: checksum is 0x")
    assert "its header says 0x" in text
    with pytest.raises(CorruptBatch, match=r"^corrupt batch at offset 4711, byte 17 of its bytes"):
        list(Decoder().decode([Batch.parse(damaged)]))
    with pytest.raises(CorruptBatch, match=r"^corrupt batch without a whole header, byte 0 of its bytes: cut short"):
        Batch.parse(b"")


@pytest.mark.parametrize("codec", CODECS)
def test_any_flipped_bit_is_noticed(codec: Codec) -> None:
    """Also a bit that makes it look like a marker, or empty. Only base offset and leader epoch are not protected."""
    good = bytes(written(ROWS, codec=codec).data)
    unnoticed = [bit for bit in range(8 * 8, len(good) * 8) if not _is_refused(_flipped(good, bit))]
    assert {bit // 8 for bit in unnoticed} == {12, 13, 14, 15}


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _is_refused(data: bytes) -> bool:
    try:
        read(Batch.parse(data))
    except WireError:
        return True
    return False


def test_a_header_put_before_too_little_memory_is_refused() -> None:
    batch = written(ROWS)
    longer = Batch(batch.source, 0, batch.header._replace(length=1 << 20))
    with pytest.raises(CorruptBatch, match="has 1048588 bytes, more than the memory it lies in"):
        list(Decoder(verify_crc=False).decode([longer]))


def test_the_checksum_can_be_left_alone() -> None:
    damaged = with_bytes(bytes(written(ROWS).data), 17, b"\0\0\0\0")
    (chunk,) = Decoder(verify_crc=False).decode([Batch.parse(damaged)])
    assert chunk.records.num_rows == 3


def body(*parts: bytes) -> bytes:
    joined = b"".join(parts)
    return varint(len(joined)) + joined


START = b"\0" + varint(0) + varint(0)
NULL = varint(-1)
GOOD = record_bytes(Row(b"k", b"v"), time_delta=0, offset_delta=0)
NINE = b"\x80" * 9

# The records of a batch, how many it claims, what is wrong, and at which byte of the records.
BROKEN: list[tuple[bytes, int, str, int]] = [
    (b"\x80" * 8, 1, "longer than its type", 0),
    (b"\x80" * 4 + b"\x7f" + b"\0" * 9, 1, "longer than its type", 0),
    (varint(7) + b"\0" * 6, 1, "record's length is negative or runs over", 0),
    (varint(-1) + b"\0" * 6, 1, "record's length is negative or runs over", 0),
    (varint(2**31 - 1) + b"\0" * 9, 1, "record's length is negative or runs over", 0),
    (varint(0) + b"\0" * 6, 1, "ends before its length says", 0),
    (body(b"\0") + b"\0" * 6, 1, "integer runs over the end", 2),
    (body(b"\0", NINE + b"\x7f", b"\0" * 9), 1, "longer than its type", 2),
    (body(b"\0\0", b"\x80" * 5, b"\0" * 9), 1, "longer than its type", 3),
    (body(b"\0\0", b"\x80\x80") + b"\0" * 4, 1, "integer runs over the end", 3),
    (body(b"\0\0", varint(1), NULL, NULL, b"\0"), 1, "offsets inside the batch do not rise or leave", 3),
    (body(b"\0\0", varint(-1), NULL, NULL, b"\0"), 1, "offsets inside the batch do not rise or leave", 3),
    (GOOD + GOOD, 2, "offsets inside the batch do not rise or leave", len(GOOD) + 3),
    (body(START, varint(-2), NULL, b"\0"), 1, "key's length is invalid", 4),
    (body(START, varint(9), b"short", NULL), 1, "key's length is invalid", 4),
    (body(START, NULL, varint(-2), b"\0"), 1, "value's length is invalid", 5),
    (body(START, NULL, varint(9), b"short", b"\0"), 1, "value's length is invalid", 5),
    (body(START, varint(2), b"kk"), 1, "integer runs over the end", 7),
    (body(START, NULL, NULL) + b"\0", 1, "integer runs over the end", 6),
    (body(START, NULL, NULL, varint(-1)), 1, "number of headers is negative or cannot fit", 6),
    (body(START, NULL, NULL, varint(1), b"\0"), 1, "number of headers is negative or cannot fit", 6),
    (body(START, NULL, NULL, varint(2**31 - 1), b"\0"), 1, "number of headers is negative or cannot fit", 6),
    (body(START, NULL, NULL, varint(1), varint(-1), b"\0\0"), 1, "header key's length", 7),
    (body(START, NULL, NULL, varint(1), varint(5), b"abc"), 1, "header key's length", 7),
    (body(START, NULL, NULL, varint(1), varint(1), b"a", varint(-2)), 1, "header value's length", 9),
    (body(START, NULL, NULL, varint(1), varint(1), b"a", varint(3), b"xy"), 1, "header value's length", 9),
    (body(START, NULL, NULL, varint(1), varint(1), b"a"), 1, "integer runs over the end", 9),
    (body(START, NULL, NULL, b"\0", b"more"), 1, "ends before its length says", 7),
    (GOOD + b"more bytes", 1, "bytes after the last record", len(GOOD)),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("records", "count", "reason", "position"), BROKEN)
def test_a_broken_record_is_named_with_its_position(
    records: bytes, count: int, reason: str, position: int, codec: Codec
) -> None:
    fault = fault_of(raw_batch(records, count=count, codec=codec, base_offset=AT))
    assert reason in fault.reason
    assert fault.in_records is (codec is not Codec.NONE)
    assert fault.position == position + (61 if codec is Codec.NONE else 0)
    assert (fault.base_offset, fault.topic, fault.partition) == (AT, "clicks", 3)


@pytest.mark.parametrize("codec", CODECS)
def test_the_broken_batch_among_many_is_named(codec: Codec) -> None:
    good = [written(ROWS, codec=codec, base_offset=offset) for offset in (0, 3)]
    bad = Batch.parse(raw_batch(GOOD + b"more bytes", count=1, codec=codec, base_offset=6))
    joined = b"".join(bytes(batch.data) for batch in (*good, bad))
    with pytest.raises(CorruptBatch) as caught:
        list(Decoder().decode(split(joined)))
    assert caught.value.base_offset == 6
    assert caught.value.position == len(GOOD) + (61 if codec is Codec.NONE else 0)


@pytest.mark.parametrize("codec", CODECS)
def test_what_lies_before_the_damage_is_handed_out_first(codec: Codec) -> None:
    good = [written(ROWS, codec=codec, base_offset=offset) for offset in (0, 3)]
    flipped = bytearray(written(ROWS, codec=codec, base_offset=6).data)
    flipped[-1] ^= 1
    for bad in (bytes(flipped), raw_batch(GOOD + b"more bytes", count=1, codec=codec, base_offset=6)):
        offsets: list[int] = []
        chunks = Decoder().decode(split(b"".join(bytes(batch.data) for batch in good) + bad))
        with pytest.raises(CorruptBatch):
            offsets.extend(offset for chunk in chunks for offset in chunk.records["offset"].to_pylist())
        assert offsets == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("base", [LATEST + 1, -LATEST - 1, 2**63 - 1, -(2**63)])
def test_a_time_beyond_microseconds_becomes_the_nearest_one_that_fits(base: int) -> None:
    """A bug once: one such record, with a correct checksum, blocked its partition forever."""
    nearest = LATEST * 1000 if base > 0 else -LATEST * 1000
    for raw in (
        raw_batch(GOOD, count=1, base_time=base, base_offset=AT),
        raw_batch(GOOD, count=1, max_time=base, flags=8, base_offset=AT),
    ):
        (chunk,) = Decoder().decode([Batch.parse(raw)])
        assert chunk.records["timestamp"].cast(pa.int64()).to_pylist() == [nearest]
        assert (chunk.rows, chunk.clamped) == (1, 1)


@pytest.mark.parametrize(
    ("base", "delta", "time", "clamped"),
    [
        (LATEST, 0, LATEST, 0),
        (LATEST + 5, -5, LATEST, 0),
        (2**63 - 1, -(2**63 - 1), 0, 0),
        (-(2**63), 2**62, -LATEST, 1),
        (2**62, 2**62, LATEST, 1),
        (-(2**62), -(2**62) - 1, -LATEST, 1),
        (-1, 0, -1, 0),
        (0, 2**63 - 1, LATEST, 1),
        (0, -(2**63), -LATEST, 1),
    ],
)
def test_the_time_of_a_record_is_its_own_however_far_it_is_from_its_batch(
    base: int, delta: int, time: int, clamped: int
) -> None:
    record = record_bytes(Row(None, b"v", (), 0), time_delta=delta, offset_delta=0)
    (chunk,) = Decoder().decode([Batch.parse(raw_batch(record, count=1, base_time=base))])
    assert chunk.records["timestamp"].cast(pa.int64()).to_pylist() == [time * 1000]
    assert chunk.clamped == clamped


def test_a_time_that_is_not_requested_does_no_harm() -> None:
    batch = Batch.parse(raw_batch(GOOD, count=1, base_time=2**63 - 1))
    (chunk,) = Decoder(("value",)).decode([batch])
    assert chunk.records["value"].to_pylist() == [b"v"]


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_compressed_bytes_that_are_none_are_refused(codec: Codec) -> None:
    fault = fault_of(raw_batch(b"\xff\xfe this is not compressed at all", count=1, flags=int(codec), base_offset=AT))
    assert f"{codec.name.lower()} data is damaged" in fault.reason
    assert (fault.base_offset, fault.position, fault.in_records) == (AT, 61, False)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_decompression_bomb_stops_at_the_limit(codec: Codec) -> None:
    bomb = record_bytes(Row(value=b"\0" * 5_000_000), time_delta=0, offset_delta=0)
    fault = fault_of(raw_batch(bomb, count=1, codec=codec), max_batch_bytes=1_000_000)
    assert fault.reason.startswith("decompresses to more than the limit of 1,000,000 bytes (Fetching(max_batch_bytes")


@pytest.mark.parametrize("size", [100, 65_536, 65_537, 1_000_000])
@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_the_limit_of_decompression_is_exact(codec: Codec, size: int) -> None:
    records = record_bytes(Row(value=b"\0" * size), time_delta=0, offset_delta=0)
    data = raw_batch(records, count=1, codec=codec)
    (chunk,) = Decoder(max_batch_bytes=len(records)).decode([Batch.parse(data)])
    assert chunk.rows == 1
    assert "more than the limit" in fault_of(data, max_batch_bytes=len(records) - 1).reason


def test_a_plain_batch_beyond_the_limit_is_refused() -> None:
    fault = fault_of(raw_batch(GOOD * 100, count=1), max_batch_bytes=200)
    assert "the limit is 200" in fault.reason


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
def test_a_count_that_decompressed_bytes_cannot_hold_is_refused(codec: Codec) -> None:
    fault = fault_of(raw_batch(GOOD, count=10**6, codec=codec))
    assert fault.reason == f"count 1000000 does not fit in {len(GOOD)} decompressed bytes"
    assert fault.position == 57


SNAPPY_FRAME = b"\x82SNAPPY\0" + b"\0\0\0\1" * 2
FRAMINGS: list[Callable[[], bytes]] = [
    lambda: SNAPPY_FRAME + b"\0\0",
    lambda: SNAPPY_FRAME + b"\0\0\0\0",
    lambda: SNAPPY_FRAME + struct.pack(">i", -4) + b"abcd",
    lambda: SNAPPY_FRAME + struct.pack(">i", 5) + b"abcd",
]


@pytest.mark.parametrize("framing", FRAMINGS)
def test_broken_snappy_framing_is_refused(framing: Callable[[], bytes]) -> None:
    assert "snappy framing" in fault_of(raw_batch(framing(), count=1, flags=int(Codec.SNAPPY))).reason


@given(noise=st.binary(min_size=17, max_size=300), seed=st.integers(0, 255))
@quick
def test_noise_raises_nothing_but_our_errors(noise: bytes, seed: int) -> None:
    likely = with_bytes(noise, 8, struct.pack(">iib", len(noise) - 12, seed, 2))
    for data in (noise, likely):
        rows = 0
        try:
            for chunk in Decoder(verify_crc=False, max_batch_bytes=10_000).decode(split(data)):
                rows += chunk.rows
        except WireError:
            pass
        assert rows <= len(data) // 61 * 10_000 // 7  # what the limit allows for the batches that can be there
