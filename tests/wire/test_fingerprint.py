"""The fingerprint: the same for the same records no matter how they were moved, another for any other records.

The reference below is written from the description in `kernels/hashing.py`, with Python's own integers. The vectors pin
the result: fingerprints are stored, so a change here is a change of every archive.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.model import Fingerprint
from ottla.wire.batch import Codec
from ottla.wire.decode import Decoder

from .rows import NOW, Row, encoded, placed, quick, row_lists, rows, small_batches, thorough

WORD = (1 << 64) - 1
A, B, C = 0x243F6A8885A308D3, 0x13198A2E03707345, 0xA4093822299F31D1
D, E, F = 0x082EFA98EC4E6C89, 0x452821E638D01377, 0xBE5466CF34E90C6D


def fold(a: int, b: int) -> int:
    return (a * b & WORD) ^ (a * b >> 64) ^ a ^ b


class Reference:
    """The content hash of one record."""

    def __init__(self) -> None:
        self.low, self.high = E, F

    def number(self, value: int) -> None:
        self.low, self.high = fold(self.low ^ value, A), fold(self.high ^ value, C)

    def content(self, data: bytes | None) -> None:
        if data is None:
            self.number(WORD)
            return
        self.number(len(data))
        for start in range(0, len(data), 16):
            block = data[start : start + 16]
            last = len(block) < 16
            x = int.from_bytes(block[:8], "little")
            y = int.from_bytes(block[8:], "little")
            self.low = fold(x ^ (B if last else A), y ^ self.low)
            self.high = fold(x ^ (D if last else C), y ^ self.high)

    def value(self) -> int:
        mixed = fold(self.low ^ B, self.high ^ D)
        return fold(self.low ^ self.high ^ C, mixed ^ A) << 64 | mixed


def reference(input_rows: list[Row]) -> Fingerprint:
    total = Fingerprint()
    for row in input_rows:
        record = Reference()
        record.content(row.key)
        record.content(row.value)
        record.number(len(row.headers))
        for key, value in row.headers:
            record.content(key.encode())
            record.content(value)
        total += Fingerprint(1, record.value())
    return total


def when_written(input_rows: list[Row], codec: Codec = Codec.NONE, size: int = 1000) -> Fingerprint:
    batches = encoded(input_rows, codec=codec, limits=small_batches(size), fingerprint=True)
    return sum((batch.fingerprint for batch in batches if batch.fingerprint), Fingerprint())


def when_read(
    input_rows: list[Row], codec: Codec = Codec.NONE, size: int = 1000, chunk_bytes: int = 1 << 20
) -> Fingerprint:
    batches = placed(encoded(input_rows, codec=codec, limits=small_batches(size)))
    chunks = Decoder(("offset",), fingerprint=True, chunk_bytes=chunk_bytes).decode(batches)
    return sum((chunk.fingerprint for chunk in chunks if chunk.fingerprint), Fingerprint())


def of(*input_rows: Row) -> Fingerprint:
    return when_written(list(input_rows))


@given(input_rows=row_lists)
@thorough
def test_writer_reader_and_reference_agree(input_rows: list[Row]) -> None:
    assert when_written(input_rows) == when_read(input_rows) == reference(input_rows)


@pytest.mark.parametrize("size", range(70))
def test_contents_of_every_small_length_agree_with_the_reference(size: int) -> None:
    input_rows = [Row(bytes(range(size)), bytes(reversed(range(size))), (("h" * size, b"\xff" * size),))]
    assert when_written(input_rows) == when_read(input_rows) == reference(input_rows)


@given(input_rows=row_lists, codec=st.sampled_from(list(Codec)), data=st.data())
@thorough
def test_order_batches_codecs_and_chunks_do_not_matter(
    input_rows: list[Row], codec: Codec, data: st.DataObject
) -> None:
    shuffled = data.draw(st.permutations(input_rows))
    size = data.draw(st.integers(1, 10))
    assert when_written(shuffled, codec, size) == when_written(input_rows)
    assert when_read(shuffled, codec, size, data.draw(st.integers(1, 1000))) == when_written(input_rows)


@given(input_rows=row_lists, later=st.integers(0, 10**9))
@quick
def test_times_are_not_content(input_rows: list[Row], later: int) -> None:
    assert when_written([row._replace(time=NOW + later) for row in input_rows]) == when_written(input_rows)


@given(input_rows=row_lists, extra=rows)
@quick
def test_one_more_record_and_one_less_are_seen(input_rows: list[Row], extra: Row) -> None:
    whole = when_written([*input_rows, extra])
    assert whole != when_written(input_rows)
    assert whole == when_written(input_rows) + of(extra)
    assert whole - of(extra) == when_written(input_rows)


@given(input_rows=st.lists(rows, min_size=2, max_size=10, unique_by=lambda row: row[:3]))
@quick
def test_a_duplicate_cannot_hide_a_loss(input_rows: list[Row]) -> None:
    lost = [input_rows[0], *input_rows[:-1]]
    assert when_written(lost).count == when_written(input_rows).count
    assert when_written(lost) != when_written(input_rows)


@given(row=rows, other=rows)
@quick
def test_records_with_other_content_have_another_fingerprint(row: Row, other: Row) -> None:
    assert (of(row) == of(other)) is (row[:3] == other[:3])


def test_the_same_bytes_in_other_places_differ() -> None:
    alike = [
        Row(None, None),
        Row(b"", None),
        Row(None, b""),
        Row(b"", b""),
        Row(b"ab", b""),
        Row(b"a", b"b"),
        Row(b"", b"ab"),
        Row(b"b", b"a"),
        Row(b"ab", None),
        Row(None, b"ab"),
        Row(None, b"ab\0"),
        Row(None, b"ab" + b"\0" * 6),
        Row(None, b"ab" + b"\0" * 14),
        Row(None, b"ab" + b"\0" * 15),
        Row(None, None, (("a", b"b"),)),
        Row(None, None, (("ab", b""),)),
        Row(None, None, (("ab", None),)),
        Row(None, None, (("", b"ab"),)),
        Row(None, None, (("a", None), ("b", None))),
        Row(None, None, (("b", None), ("a", None))),
        Row(None, b"a", (("b", None),)),
        Row(b"a", None, (("b", None),)),
    ]
    assert len({of(row).total for row in alike}) == len(alike)


def test_sums_wrap_at_128_bits() -> None:
    most = Fingerprint(1, (1 << 128) - 1)
    assert most + Fingerprint(2, 2) == Fingerprint(3, 1)
    assert Fingerprint(3, 1) - Fingerprint(2, 2) == most
    assert sum([most, most], Fingerprint()) == Fingerprint(2, (1 << 128) - 2)
    assert str(Fingerprint(2, 255)) == "2:000000000000000000000000000000ff"


@given(parts=st.lists(row_lists, min_size=2, max_size=4))
@quick
def test_fingerprints_of_parts_add_up_to_that_of_the_whole(parts: list[list[Row]]) -> None:
    whole = when_written([row for part in parts for row in part])
    assert sum((when_written(part) for part in parts), Fingerprint()) == whole
    assert whole - when_written(parts[0]) == when_written([row for part in parts[1:] for row in part])


def test_many_records_do_not_collide() -> None:
    chance = random.Random(1)
    input_rows = [Row(b"%d" % i, chance.randbytes(i % 50)) for i in range(5000)]
    assert len({of(row).total for row in input_rows}) == len(input_rows)


VECTORS = [
    ([Row()], "1:75f1d4d7e391ac2ca55d2cb70ed6a906"),
    ([Row(b"", b"")], "1:376bac4c3e53c7f43df4543b68bc3cad"),
    ([Row(b"key", b"value")], "1:bfdb5894db78860b11a5de3ba55b7e30"),
    ([Row(None, bytes(range(256)))], "1:36e54f665240acec3cce9d3ae1359786"),
    (
        [Row(b"k", b"v", (("trace", b"\0\1"), ("trace", None), ("schlüssel", b"")))],
        "1:5f0ef91ce8bc1f80f2fb00f51cd89332",
    ),
    (
        [Row(b"%d" % i, b"value %d" % i, (("n", b"%d" % i),) * (i % 3)) for i in range(1000)],
        "1000:a1c20dad2075cbf8f148d02b1088c20d",
    ),
]


def test_no_value_wipes_out_what_was_hashed_before_it() -> None:
    # A word that equals a constant makes a factor zero; the product of that alone would forget the key.
    words = [A, 0, C, 0, B, 0, D, 0]
    value = b"".join(word.to_bytes(8, "little") for word in words)
    assert of(Row(b"alice", value)) != of(Row(b"bob", value))


@pytest.mark.parametrize(("input_rows", "pinned"), VECTORS)
def test_the_value_of_a_fingerprint_never_changes(input_rows: list[Row], pinned: str) -> None:
    assert str(reference(input_rows)) == pinned
    assert str(when_written(input_rows)) == pinned
    assert str(when_read(input_rows, Codec.ZSTD, 10)) == pinned
