"""Batches found by a kernel are decoded from their table, with the same result as one by one."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import CorruptBatch
from ottla.wire import constants, decode
from ottla.wire.batch import IS_CONTROL, IS_LOG_APPEND, Batch, split
from ottla.wire.constants import constant
from ottla.wire.decode import COLUMNS, Decoder
from ottla.wire.scan import Batches, scan

from .rows import NOW, Row, raw_batch, records_bytes, row_lists, thorough

LARGE = Row(b"key", bytes(20_000))
"""Small answers take another way."""
Piece = tuple[Sequence[Row], int, int]
"""Records, flags, and the offsets that compaction has removed behind them."""
pieces = st.lists(
    st.tuples(row_lists, st.sampled_from([0, 0, 0, IS_CONTROL]), st.integers(0, 3)), min_size=1, max_size=8
)


def log(parts: Iterable[Piece], *, base: int = 0, flags: int = 0) -> bytes:
    """One batch for each part, the first one with a large record."""
    data = b""
    for number, (rows, more, hole) in enumerate(parts):
        input_rows = [LARGE, *rows] if number == 0 else list(rows)
        first = input_rows[0].time
        data += raw_batch(
            records_bytes(input_rows),
            count=len(input_rows),
            flags=more | flags,
            base_offset=base,
            last_delta=len(input_rows) - 1 + hole,
            base_time=first,
            max_time=NOW,
        )
        base += len(input_rows) + hole
    return data


def scanned(data: bytes) -> Batches:
    (batches,) = scan(memoryview(data), [(0, len(data))])
    assert batches is not None
    return batches


def outcome(decoder: Decoder, batches: Sequence[Batch], **where: Any) -> tuple[pa.Table, list[Any], str]:
    """Return the rows, the sums over all chunks, and the error at the end."""
    chunks: list[decode.Decoded] = []
    error = ""
    try:
        for chunk in decoder.decode(batches, topic="t", partition=3, **where):
            chunks += [chunk]
    except CorruptBatch as corrupt:
        error = str(corrupt)
    outcome_values: list[Any] = [sum(chunk.rows for chunk in chunks), sum(chunk.clamped for chunk in chunks)]
    outcome_values += [sum(chunk.left_out for chunk in chunks), chunks[-1].next_offset if chunks else None]
    prints = [chunk.fingerprint for chunk in chunks]
    total = (
        None
        if not prints or prints[0] is None
        else sum((fingerprint for fingerprint in prints[1:] if fingerprint), prints[0])
    )
    return pa.Table.from_batches([chunk.records for chunk in chunks], decoder.schema), [*outcome_values, total], error


def same(data: bytes, *, columns: Sequence[str] = COLUMNS, chunk_bytes: int = 2 << 20, **where: Any) -> str:
    """Compare both ways of decoding. Returns the error of both."""
    fingerprint = where.pop("fingerprint", False)
    decoder = Decoder(columns, chunk_bytes=chunk_bytes, fingerprint=fingerprint)
    table, details, error = outcome(decoder, scanned(data), **where)
    expected, also_told, same_error = outcome(decoder, list(split(data)), **where)
    assert table.equals(expected)
    assert (details, error) == (also_told, same_error)
    return error


@thorough
@given(pieces, st.sampled_from([0, IS_LOG_APPEND]), st.sampled_from([1, 25_000, 2 << 20]), st.booleans())
def test_the_same_rows_come_out(parts: list[Piece], flags: int, chunk_bytes: int, fingerprint: bool) -> None:
    assert same(log(parts, flags=flags), chunk_bytes=chunk_bytes, fingerprint=fingerprint) == ""


@thorough
@given(pieces, st.integers(0, 40), st.integers(0, 40), st.sampled_from([1, 25_000, 2 << 20]))
def test_the_same_part_of_them(parts: list[Piece], start: int, length: int, chunk_bytes: int) -> None:
    same(log(parts), start=start, stop=start + length, chunk_bytes=chunk_bytes)


@thorough
@given(pieces, st.data(), st.sampled_from([1, 25_000, 2 << 20]))
def test_what_is_damaged_is_reported_after_all_that_is_not(parts: list[Piece], data: st.DataObject, size: int) -> None:
    whole = log(parts)
    batches = list(split(whole))
    batch = data.draw(st.sampled_from(batches))
    position = data.draw(st.integers(61, batch.header.size_bytes - 1))
    start = batch.start + position
    damaged = whole[:start] + bytes([whole[start] ^ 0x40]) + whole[start + 1 :]
    assert "checksum" in same(damaged, chunk_bytes=size)


@pytest.mark.parametrize("verify_crc", [True, False])
def test_records_that_contradict_themselves_are_reported_as_ever(verify_crc: bool) -> None:
    good = log([([Row(b"a", b"b")], 0, 0)] * 3)
    bad = raw_batch(b"\x7f" + records_bytes([LARGE])[1:], count=1, base_offset=7)
    decoder = Decoder(verify_crc=verify_crc)
    table, _, error = outcome(decoder, scanned(good + bad))
    assert error
    assert (table.num_rows, error) == (4, outcome(decoder, list(split(good + bad)))[2])


def test_no_batch_is_made_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    data = log([([Row(None, b"v")], 0, 0)] * 5)
    monkeypatch.setattr(decode, "_Chunk", None)
    assert sum(chunk.rows for chunk in Decoder().decode(scanned(data))) == 6


def test_memory_of_empty_columns_is_used_again_and_that_of_others_is_not() -> None:
    """A chunk without keys leaves its memory to the next one, which has keys; the first stays what it was."""
    decoder = Decoder(("key", "value", "headers"))
    bare = [Row(None, struct.pack(">q", number) * 4_000) for number in range(3)]
    full = [Row(b"k%d" % number * 4_000, b"v" * 9_000, (("h", b"x" * 4_000),)) for number in range(3)]
    tables = []
    for rows in (bare, full, bare, full):
        data = raw_batch(records_bytes(rows), count=len(rows))
        tables += [chunk.records for chunk in decoder.decode(scanned(data))]
    for rows, table in zip((bare, full, bare, full), tables, strict=True):
        table.validate(full=True)
        assert table["key"].to_pylist() == [row.key for row in rows]
        assert table["value"].to_pylist() == [row.value for row in rows]
        headers = [[(h["key"], h["value"]) for h in of or ()] for of in table["headers"].to_pylist()]
        assert headers == [list(row.headers) for row in rows]


@pytest.mark.parametrize("value", ["", "clicks", "ü" * 300, 0, -7])
@pytest.mark.parametrize("rows", [0, 1, 1_000, 1_025, 5_000, 300_000])
def test_a_constant_column_has_its_value_in_every_row(value: str | int, rows: int) -> None:
    column = constant(value, rows)
    column.validate(full=True)
    assert len(column) == rows
    assert column.to_pylist() == [value] * rows
    assert column.type == (pa.string() if isinstance(value, str) else pa.int32())


@pytest.mark.parametrize("value", ["clicks", 3])
def test_a_constant_column_is_pickled_without_the_rows_of_others(value: str | int) -> None:
    """Regression: after a large read, a batch of one row took two megabytes in a pickle."""
    constant(value, 50_000)
    column = constant(value, 2)
    assert len(pickle.dumps(column)) < 1_000
    assert pickle.loads(pickle.dumps(column)).equals(column)


def test_constant_columns_are_kept_within_a_limit_and_those_in_use_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: columns of up to 256 values were kept, 4 MB each."""
    cache = constants._Cache()
    monkeypatch.setattr(constants, "_cache", cache)

    def kept_bytes() -> int:
        generations = cache._young, cache._old
        return sum(column.size_bytes for kept in generations for column in kept.columns.values())

    in_use = constant("clicks", 60_000)
    for partition in range(200):
        constant(partition, 60_000)
        assert constant("clicks", 60_000).buffers()[2].address == in_use.buffers()[2].address
        assert kept_bytes() <= 16 << 20
    assert kept_bytes() > 4 << 20
