"""A few records are decoded in Python, with exactly the result of the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.wire.rows import NOW, Row, encoded, payloads, placed, rows, thorough

from ottla.errors import OttlaError
from ottla.wire import decode
from ottla.wire.batch import Batch, Codec
from ottla.wire.column_buffers import ColumnBuffers
from ottla.wire.decode import COLUMNS, Decoder
from ottla.wire.small_decode import MOST_BYTES, MOST_RECORDS, SmallDecode

plain = st.builds(Row, payloads, payloads, st.just(()), st.integers(NOW - 100_000, NOW + 100_000))


def read(batches: list[Batch], **bounds: int) -> tuple[list[pa.RecordBatch], list[tuple[int, ...]], str]:
    """Return the records, their metadata, and the text of the error that ended it."""
    chunks: list[decode.Decoded] = []
    error_text = ""
    try:
        for chunk in Decoder().decode(batches, topic="t", partition=3, **bounds):
            chunk.records.validate(full=True)
            chunks.append(chunk)
    except OttlaError as error:
        error_text = str(error)
    return (
        [chunk.records for chunk in chunks],
        [(chunk.rows, chunk.next_offset, chunk.left_out, chunk.clamped) for chunk in chunks],
        error_text,
    )


def by_kernels(batches: list[Batch], **bounds: int) -> tuple[list[pa.RecordBatch], list[tuple[int, ...]], str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SmallDecode, "fill", lambda *_: False)
        return read(batches, **bounds)


@thorough
@given(st.lists(rows | plain, min_size=1, max_size=MOST_RECORDS + 1), st.integers(0, 9), st.integers(0, 9))
@example([Row(b"k", None), Row(None, b"v"), Row(b"", b"")], 0, 9)
@example([Row(None, bytes(MOST_BYTES))], 0, 9)
def test_the_result_equals_that_of_the_kernels(input_rows: list[Row], start: int, stop: int) -> None:
    batches = placed(encoded(input_rows))
    assert read(batches, start=start, stop=stop) == by_kernels(batches, start=start, stop=stop)


@thorough
@given(st.lists(plain, min_size=1, max_size=4), st.data())
def test_damage_is_reported_as_by_the_kernels(input_rows: list[Row], data: st.DataObject) -> None:
    (batch,) = placed(encoded(input_rows))
    raw = bytearray(batch.data)
    position = data.draw(st.integers(61, len(raw) - 1))
    raw[position] = data.draw(st.integers(0, 255))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batch, "verify", lambda _: None)  # otherwise the checksum would reveal the damage
        damaged = [Batch.parse(bytes(raw))]
        assert read(damaged) == by_kernels(damaged)


def test_a_few_do_without_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "ColumnBuffers", None)
    input_rows = [Row(b"k", b"v"), Row(None, None)]
    records, _, _ = read(placed(encoded(input_rows)))
    assert [batch.column("value").to_pylist() for batch in records] == [[b"v", None]]
    with pytest.raises(TypeError):
        read(placed(encoded(input_rows, codec=Codec.LZ4)))
    with pytest.raises(TypeError):
        read(placed(encoded(input_rows * MOST_RECORDS)))


def test_columns_that_are_not_requested_are_absent() -> None:
    batches = placed(encoded([Row(b"k", b"v")]))
    for name in COLUMNS:
        (chunk,) = Decoder((name,)).decode(batches, topic="t")
        assert chunk.records.schema.names == [name]
    (none,) = Decoder(()).decode(batches, topic="t")
    assert none.rows == 1


def test_a_fingerprint_is_still_computed() -> None:
    (chunk,) = Decoder(fingerprint=True).decode(placed(encoded([Row(b"k", b"v")])))
    assert chunk.fingerprint is not None
    assert chunk.fingerprint.count == 1


def test_the_first_records_load_the_kernels_for_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug once: the kernel was loaded for writable data, but received records are read-only."""
    kinds: set[bool] = set()

    class Noted(ColumnBuffers):
        def fill(self, data: npt.NDArray[np.uint8], *rest: Any) -> Any:
            kinds.add(data.flags.writeable)
            return super().fill(data, *rest)

    monkeypatch.setattr(decode, "ColumnBuffers", Noted)
    decode._load_kernel.__wrapped__()
    loaded = set(kinds)
    kinds.clear()
    for codec in (Codec.NONE, Codec.LZ4):
        read(placed(encoded([Row(b"k", b"v")] * (MOST_RECORDS + 1), codec=codec)))
    assert kinds
    assert kinds <= loaded
