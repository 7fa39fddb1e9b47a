"""Batches are measured by time: the same records and the same fingerprint as decoding them gives."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import CorruptBatch
from ottla.model import Fingerprint
from ottla.tally.slices import slices_of
from ottla.wire.batch import Batch, Codec, split
from ottla.wire.columns import from_list
from ottla.wire.decode import Decoder
from ottla.wire.draft import Draft
from ottla.wire.encode import ALL_ROWS, BatchLimits, fingerprint_of
from ottla.wire.kernels import tallying as k
from ottla.wire.measure import Measured, Measurer, has_append_time, measure_headers
from ottla.wire.scan import scan

from .rows import NOW, Row, columns_of, encoded, quick, raw_batch, record_bytes, row_lists, thorough

CODECS = list(Codec)


def log(input_rows: Sequence[Row], codec: Codec = Codec.NONE, *, per_batch: int = 4) -> bytes:
    """Batches one after another, with offsets."""
    data = b""
    for first in range(0, len(input_rows), per_batch):
        (batch,) = encoded(input_rows[first : first + per_batch], codec=codec)
        data += _placed(bytes(batch), first)
    return data


def _placed(batch: bytes, offset: int) -> bytes:
    return offset.to_bytes(8, "big") + batch[8:]


def fingerprint(measured: Measured) -> Fingerprint:
    total = sum(high << 64 | low for low, high in measured.sums.tolist())
    return Fingerprint(measured.records, total & ((1 << 128) - 1))


def size(row: Row) -> int:
    headers = sum(len(name.encode()) + len(value or b"") for name, value in row.headers)
    return len(row.key or b"") + len(row.value or b"") + headers


@thorough
@given(row_lists, st.sampled_from(CODECS), st.sampled_from([1, 1000, 600_000]), st.integers(0, 30), st.integers(0, 30))
def test_the_records_of_each_bucket_are_counted(
    rows: list[Row], codec: Codec, bucket: int, start: int, stop: int
) -> None:
    batches = list(split(log(rows, codec)))
    measured = Measurer(bucket).measure(batches, start=start, stop=stop)
    wanted = rows[start:stop] if start < stop else []
    expected: dict[int, list[int]] = {}
    for row in wanted:
        entry = expected.setdefault(row.time // bucket * bucket, [0, 0])
        entry[0] += 1
        entry[1] += size(row)
    counted: dict[int, list[int]] = {}
    for found in measured.rows.tolist():
        entry = counted.setdefault(found[k.BUCKET], [0, 0])
        entry[0] += found[k.RECORDS]
        entry[1] += found[k.BYTES]
        times = [row.time for row in wanted if row.time // bucket * bucket == found[k.BUCKET]]
        assert min(times) <= found[k.FIRST_TIME] <= found[k.LAST_TIME] <= max(times)
    assert counted == expected
    decoded = Decoder((), fingerprint=True).decode(batches, start=start, stop=stop)
    assert fingerprint(measured) == sum((part.fingerprint or Fingerprint() for part in decoded), Fingerprint())


@quick
@given(row_lists, st.sampled_from(CODECS))
def test_each_record_has_a_row_of_its_own_on_request(rows: list[Row], codec: Codec) -> None:
    measured = Measurer(0).measure(split(log(rows, codec)))
    assert measured.rows[:, k.FIRST_OFFSET].tolist() == list(range(len(rows)))
    assert measured.rows[:, k.FIRST_TIME].tolist() == [row.time for row in rows]
    for number, row in enumerate(rows):
        (alone,) = Decoder((), fingerprint=True).decode(split(log([row])))
        assert fingerprint(Measured(measured.rows[number : number + 1], measured.sums[number : number + 1])) == (
            alone.fingerprint
        )


def test_uncompressed_batches_are_measured_where_they_lie() -> None:
    rows = [Row(b"key", b"x" * 200, (), NOW + number) for number in range(500)]
    data = memoryview(log(rows, per_batch=50))
    (batches,) = scan(data, [(0, len(data))])
    assert batches is not None
    measured = Measurer(100).measure(batches)
    assert measured.records == 500
    assert len(measured.rows) == 5 + (NOW % 100 != 0)
    assert fingerprint(measured) == fingerprint(Measurer(100).measure(split(data)))


def test_control_batches_are_left_out() -> None:
    control = raw_batch(record_bytes(Row(b"\0\0\0\1", b""), time_delta=0, offset_delta=0), count=1, flags=0x30)
    assert Measurer(1000).measure([Batch.parse(control)]).records == 0
    measured, unclear = measure_headers([Batch.parse(control)], bucket_ms=1000, start=0, stop=10)
    assert (measured.records, unclear) == (0, [])


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_batch_is_reported(codec: Codec) -> None:
    data = bytearray(log([Row(b"key", b"value" * 20)] * 3, codec))
    data[-3] ^= 0x10
    with pytest.raises(CorruptBatch, match="checksum"):
        Measurer(1000).measure(split(bytes(data)))


@quick
@given(row_lists, st.integers(0, 30), st.integers(0, 30))
def test_headers_say_as_much_as_records_where_a_batch_is_in_one_bucket(rows: list[Row], start: int, stop: int) -> None:
    bucket = 1000
    rows = sorted(rows, key=lambda row: row.time)
    batches = list(split(log(rows)))
    measured, unclear = measure_headers(batches, bucket_ms=bucket, start=start, stop=stop)
    rest = Measurer(bucket).measure(unclear, start=start, stop=stop)
    counted: dict[int, int] = {}
    for row in np.concatenate([measured.rows, rest.rows]).tolist():
        counted[row[k.BUCKET]] = counted.get(row[k.BUCKET], 0) + row[k.RECORDS]
    expected: dict[int, int] = {}
    for record in rows[start:stop] if start < stop else []:
        expected[record.time // bucket * bucket] = expected.get(record.time // bucket * bucket, 0) + 1
    assert counted == expected
    assert all(batch.header.base_timestamp // bucket != batch.header.max_timestamp // bucket for batch in unclear)


def test_whose_times_a_batch_has_is_known() -> None:
    (made,) = split(log([Row(b"a", b"b")]))
    appended = Batch.parse(raw_batch(record_bytes(Row(b"a", b"b"), time_delta=0, offset_delta=0), count=1, flags=8))
    assert has_append_time([made]) == (False, True)
    assert has_append_time([appended]) == (True, False)
    assert has_append_time([made, appended]) == (True, True)


@thorough
@given(row_lists, st.sampled_from([1, 1000, 600_000]), st.data())
def test_rows_are_counted_as_they_are_encoded(rows: list[Row], bucket: int, data: st.DataObject) -> None:
    """In several steps and any order: the counts are those of the records that were written."""
    columns = columns_of(rows)
    draft = Draft(BatchLimits(), bucket_ms=bucket)
    picked = np.array(data.draw(st.permutations(range(len(rows)))), np.int64)
    picked.flags.writeable = False
    order = picked if data.draw(st.booleans()) else ALL_ROWS
    edges = sorted({0, len(rows), *data.draw(st.lists(st.integers(0, len(rows)), max_size=3))})
    for start, stop in pairwise(edges):
        draft.append(columns, rows=order, start=start, stop=stop, now_ms=NOW)
    counted = slices_of(draft.measured(bucket))
    plain = Draft(BatchLimits())
    plain.append(columns, rows=order, start=0, stop=len(rows), now_ms=NOW)
    assert counted == slices_of(plain.measured(bucket))
    assert sum(piece.count for piece in counted) == len(rows)


def test_rows_without_times_count_now_and_null_columns_as_such() -> None:
    columns = from_list([b"a" * 40, None, b"", b"b" * 33, b"c"])
    draft = Draft(BatchLimits(), bucket_ms=1000)
    draft.append(columns, start=0, stop=5, now_ms=NOW)
    (piece,) = slices_of(draft.measured(1000))
    assert (piece.count, piece.bytes, piece.start) == (5, 74, NOW // 1000)
    assert piece.total == fingerprint_of(columns).total
