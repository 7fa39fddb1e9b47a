"""Records as plain Python values, strategies that generate them, and a slow second encoder.

The functions here follow the format's description, one record at a time and without Ottla's code, so that the tests
compare two independent results. They can also write what Ottla's encoder never does: control batches, broker
timestamps, gaps in the offsets, header keys that are not text.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import crc32c
import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st

from ottla.wire.batch import Batch, Codec, split
from ottla.wire.codecs import compress
from ottla.wire.columns import Columns, from_arrow
from ottla.wire.decode import COLUMNS, Decoder
from ottla.wire.encode import BatchLimits, NewBatch, encode

NOW = 1_700_000_000_000
LATEST = 9_223_372_036_854_775  # the last millisecond that fits in 64-bit microseconds
HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

# The kernels are compiled before the first example or during it: a limit per example would fail at random.
thorough = settings(max_examples=100, deadline=None)
quick = settings(max_examples=30, deadline=None)


class Row(NamedTuple):
    """One record; the time is in milliseconds."""

    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    time: int = NOW


payloads = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=200)
header_entries = st.tuples(st.sampled_from(["", "a", "trace", "schlüssel", "鍵"]) | st.text(max_size=8), payloads)
times = st.integers(0, LATEST) | st.integers(NOW - 100_000, NOW + 100_000)
rows = st.builds(Row, payloads, payloads, st.lists(header_entries, max_size=4).map(tuple), times)
row_lists = st.lists(rows, min_size=1, max_size=25)


def columns_of(input_rows: Sequence[Row]) -> Columns:
    """The rows as Ottla takes them."""
    return from_arrow(
        pa.array([row.value for row in input_rows], pa.binary()),
        key=pa.array([row.key for row in input_rows], pa.binary()),
        headers=pa.array([[{"key": k, "value": v} for k, v in row.headers] for row in input_rows], HEADER_TYPE),
        timestamp=pa.array([row.time for row in input_rows], pa.int64()),
    )


def encoded(input_rows: Sequence[Row], **settings: Any) -> list[NewBatch]:
    """The rows in batches, encoded by Ottla."""
    return list(encode(columns_of(input_rows), now_ms=NOW, **settings))


def placed(batches: Iterable[NewBatch]) -> list[Batch]:
    """Batches as they would lie in a log that begins at offset 0."""
    stored, offset = [], 0
    for new in batches:
        data = struct.pack(">q", offset) + bytes(new)[8:]
        stored.append(Batch.parse(data))
        offset = stored[-1].header.next_offset
    return stored


def decoded(batches: Iterable[Batch], columns: Iterable[str] = COLUMNS, **settings: Any) -> pa.Table:
    """Everything in the batches as one table."""
    decoder = Decoder(tuple(columns), **settings)
    return pa.Table.from_batches([chunk.records for chunk in decoder.decode(batches)], decoder.schema)


def rows_of(table: pa.Table | pa.RecordBatch) -> list[Row]:
    """A decoded table as plain rows."""
    milliseconds = [time // 1000 for time in table["timestamp"].cast(pa.int64()).to_pylist()]
    columns = zip(
        table["key"].to_pylist(), table["value"].to_pylist(), table["headers"].to_pylist(), milliseconds, strict=True
    )
    return [Row(k, v, tuple((h["key"], h["value"]) for h in headers or ()), t) for k, v, headers, t in columns]


def small_batches(count: int) -> BatchLimits:
    """Limits that cut after a few records."""
    return BatchLimits(max_records=count)


def varint(value: int) -> bytes:
    """Zigzag, then seven bits per byte."""
    raw = value * 2 if value >= 0 else -value * 2 - 1
    out = bytearray()
    while raw > 127:
        out.append(128 + raw % 128)
        raw //= 128
    return bytes([*out, raw])


def _sized(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def record_bytes(row: Row, *, time_delta: int, offset_delta: int, raw_headers: bytes | None = None) -> bytes:
    """One record of a batch."""
    headers = varint(len(row.headers)) + b"".join(_sized(k.encode()) + _sized(v) for k, v in row.headers)
    body = b"\0" + varint(time_delta) + varint(offset_delta) + _sized(row.key) + _sized(row.value)
    body += headers if raw_headers is None else raw_headers
    return varint(len(body)) + body


def records_bytes(input_rows: Sequence[Row], deltas: Sequence[int] | None = None) -> bytes:
    """The records of one batch, uncompressed; `deltas` are their offsets from the batch's."""
    numbered = zip(input_rows, deltas or range(len(input_rows)), strict=True)
    first = input_rows[0].time
    return b"".join(record_bytes(row, time_delta=row.time - first, offset_delta=delta) for row, delta in numbered)


def raw_batch(
    records: bytes,
    *,
    count: int,
    codec: Codec = Codec.NONE,
    flags: int = 0,
    base_offset: int = 0,
    last_delta: int | None = None,
    base_time: int = NOW,
    max_time: int = NOW,
    producer: tuple[int, int, int] = (-1, -1, -1),
    magic: int = 2,
) -> bytes:
    """A batch around any bytes, with the checksum that belongs to it."""
    body = bytes(compress(codec, records))
    last = count - 1 if last_delta is None else last_delta
    checked = struct.pack(">hiqqqhii", codec | flags, last, base_time, max_time, *producer, count) + body
    crc = crc32c.crc32c(checked)
    return struct.pack(">qiibI", base_offset, len(checked) + 9, -1, magic, crc) + checked


def written(input_rows: Sequence[Row], deltas: Sequence[int] | None = None, **fields: Any) -> Batch:
    """A batch of these rows, encoded without Ottla."""
    fields = {
        "base_time": input_rows[0].time,
        "max_time": max(row.time for row in input_rows),
        "last_delta": max(deltas) if deltas else len(input_rows) - 1,
    } | fields
    return next(split(raw_batch(records_bytes(input_rows, deltas), count=len(input_rows), **fields)))
