"""Measures record batches by time bucket: how many records, how many bytes, their fingerprint, first and last.

Comes in: `Batch` values in log order, or records as an encoder wrote them. Goes out: `Measured`, a table with a row for
each run of records of one bucket. No columns are made and nothing is kept. Headers alone say less, but cost nothing
(`measure_headers`). A damaged batch raises `CorruptBatch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ottla.wire.batch import IS_CONTROL, IS_LOG_APPEND, Batch, BatchHeader, TimestampType
from ottla.wire.column_buffers import Fault
from ottla.wire.columns import Columns
from ottla.wire.decode import Decoder, holds_records, record_fault
from ottla.wire.kernels import decoding, scanning, summing
from ottla.wire.kernels import tallying as k
from ottla.wire.scan import Batches

_END_OF_LOG = (1 << 63) - 1
_BASE = decoding.BASE_OFFSET
_FEW_ROWS = 8
_MOST_ROWS = 1 << 16


class Measured(NamedTuple):
    """Runs of records of one bucket each. `rows` has the columns of `kernels.tallying`, `sums` the fingerprint sums."""

    rows: npt.NDArray[np.int64]
    sums: npt.NDArray[np.uint64]
    """The sum of the record hashes of each row modulo 2**128, the low word first."""

    @property
    def records(self) -> int:
        """The number of records."""
        return int(self.rows[:, k.RECORDS].sum())


NOTHING = Measured(np.empty((0, k.ROW_FIELDS), np.int64), np.empty((0, 2), np.uint64))


def joined(parts: Iterable[Measured]) -> Measured:
    """Return the rows of all parts, in their order."""
    listed = list(parts)
    if len(listed) == 1:
        return listed[0]
    if not listed:
        return NOTHING
    return Measured(np.concatenate([part.rows for part in listed]), np.concatenate([part.sums for part in listed]))


class Measurer(Decoder):
    """Measures batches with the same settings, reusing its memory. Use one per thread.

    With a bucket of 0 milliseconds each record has a row of its own.
    """

    def __init__(self, bucket_ms: int, *, max_batch_bytes: int = 128 << 20) -> None:
        super().__init__((), fingerprint=True, max_batch_bytes=max_batch_bytes)
        self._bucket_ms = bucket_ms

    def measure(self, batches: Iterable[Batch], *, start: int = 0, stop: int = _END_OF_LOG) -> Measured:
        """Return the runs of the records with offsets in `[start, stop)`, in the order of the log.

        Control batches are left out. Raises `CorruptBatch` for a damaged batch.
        """
        stop = min(stop, _END_OF_LOG)
        if isinstance(batches, Batches) and self._is_plain(batches):
            plain = self._measured_in_place(batches, start, stop)
            if plain is not None:
                return plain
        return joined(self._measured_in_chunks(batches, start, stop))

    def _measured_in_place(self, batches: Batches, start: int, stop: int) -> Measured | None:
        """Measure uncompressed batches where they lie. Returns None if anything is wrong with them."""
        table = batches.table
        table = table[(table[:, _BASE] + table[:, decoding.LAST_DELTA] >= start) & (table[:, _BASE] < stop)]
        if not self._are_intact(batches.source, table):
            return None
        segments = np.ascontiguousarray(table[holds_records(table)][:, : decoding.SEGMENT_FIELDS])
        measured = _run(np.frombuffer(batches.source, np.uint8), segments, start, stop, self._bucket_ms)
        return None if isinstance(measured, Fault) else measured

    def _measured_in_chunks(self, batches: Iterable[Batch], start: int, stop: int) -> Iterator[Measured]:
        for chunk in self._chunks(batches, start, stop):
            for source, owners, segments in chunk.stretches():
                data = self._scratch.view() if source is None else np.frombuffer(source, np.uint8)
                measured = _run(data, np.array(segments, np.int64), start, stop, self._bucket_ms)
                if isinstance(measured, Fault):
                    number = measured.segment
                    raise record_fault(owners[number], segments[number], measured, in_records=source is None)
                yield measured
            if chunk.fault is not None:
                raise chunk.fault


def measure_records(
    records: npt.NDArray[np.uint8], *, count: int, base_time: int, max_time: int, bucket_ms: int
) -> Measured:
    """Measure the uncompressed records of one batch as an encoder wrote them, without a header."""
    segment = np.array([[0, len(records), 0, count - 1, count, base_time, max_time, 0]], np.int64)
    measured = _run(records, segment, 0, _END_OF_LOG, bucket_ms)
    if isinstance(measured, Fault):
        raise AssertionError(f"an encoder wrote records that cannot be read: {decoding.REASONS[measured.code]}")
    return measured


class RowTally:
    """Measures rows of columns as they are encoded, which is cheaper than reading the records again.

    It gives up if the rows are in too many buckets, which `records` shows.
    """

    __slots__ = ("_bucket_ms", "_rows", "_state", "_sums", "records")

    def __init__(self, bucket_ms: int) -> None:
        self._bucket_ms = bucket_ms
        self._rows = np.empty((_FEW_ROWS, k.ROW_FIELDS), np.int64)
        self._sums = np.empty((_FEW_ROWS, 2), np.uint64)
        self._state = np.zeros(summing.STATE_FIELDS, np.int64)
        self.records = 0
        """How many were counted; -1 if not all of them could be."""

    def add(self, columns: Columns, *, rows: npt.NDArray[np.int64], start: int, stop: int, now_ms: int) -> None:
        """Add the rows `[start, stop)`, or those that `rows[start:stop]` picks."""
        if self.records < 0 or start >= stop:
            return
        code = summing.tally_rows(
            rows,
            start,
            stop,
            columns.key,
            columns.value,
            columns.headers,
            columns.times,
            now_ms,
            self._bucket_ms,
            self._state,
            self._rows,
            self._sums,
        )
        self.records = self.records + stop - start if code == summing.DONE else -1

    def measured(self) -> Measured:
        """The rows so far."""
        used = int(self._state[summing.WRITTEN])
        return Measured(self._rows[:used], self._sums[:used])


def measure_headers(batches: Iterable[Batch], *, bucket_ms: int, start: int, stop: int) -> tuple[Measured, list[Batch]]:
    """Measure batches by their headers alone, as far as these say enough.

    The bytes are those of whole batches as they are stored, and the sums are zero. A header has the time of the first
    record and the latest time: a record between them that is older than the first one counts as if it were not. Returns
    the batches for which headers do not suffice: those that reach into another bucket, and those that cross an edge of
    the range and have holes.
    """
    table = batches.table if isinstance(batches, Batches) else _table(batches)
    listed = batches if isinstance(batches, Batches) else list(batches)
    first, last = table[:, _BASE], table[:, _BASE] + table[:, decoding.LAST_DELTA]
    count, times = table[:, decoding.COUNT], table[:, decoding.APPEND_TIME]
    is_append = table[:, decoding.IS_APPEND_TIME] != 0
    # If the broker sets the time, the base timestamp is still that of the producer.
    base_times = np.where(is_append, times, table[:, decoding.BASE_TIME])
    wanted = holds_records(table) & (last >= start) & (first < stop)
    has_holes = count != last - first + 1
    crosses = (first < start) | (last >= stop)
    buckets, last_buckets = base_times // bucket_ms, times // bucket_ms
    unclear = wanted & ((buckets != last_buckets) | (has_holes & crosses))
    clear = wanted & ~unclear
    inside = np.minimum(last + 1, stop) - np.maximum(first, start)
    rows = np.empty((int(clear.sum()), k.ROW_FIELDS), np.int64)
    rows[:, k.BUCKET] = (buckets * bucket_ms)[clear]
    rows[:, k.RECORDS] = np.where(crosses, inside, count)[clear]
    rows[:, k.BYTES] = (table[:, decoding.END] - table[:, scanning.AT])[clear]
    rows[:, k.FIRST_TIME], rows[:, k.LAST_TIME] = base_times[clear], times[clear]
    rows[:, k.FIRST_OFFSET], rows[:, k.LAST_OFFSET] = np.maximum(first, start)[clear], np.minimum(last, stop - 1)[clear]
    left = [listed[number] for number in np.flatnonzero(unclear).tolist()]
    return Measured(rows, np.zeros((len(rows), 2), np.uint64)), left


def has_append_time(batches: Iterable[Batch]) -> tuple[bool, bool]:
    """Return whether any batch has the broker's time, and whether any has the producer's."""
    if isinstance(batches, Batches):
        if batches.any_attributes & IS_CONTROL:
            table = batches.table[holds_records(batches.table)]
            appended = table[:, decoding.IS_APPEND_TIME] != 0
            return bool(appended.any()), bool((~appended).any())
        return bool(batches.any_attributes & IS_LOG_APPEND), not batches.all_attributes & IS_LOG_APPEND
    kinds = {batch.header.timestamp_type for batch in batches if not batch.header.is_control}
    return TimestampType.LOG_APPEND in kinds, TimestampType.CREATE in kinds


def _table(batches: Iterable[Batch]) -> npt.NDArray[np.int64]:
    """Return the table that a scan would make of these batches."""
    rows = [_table_row(batch, batch.header) for batch in batches]
    return np.array(rows, np.int64).reshape(-1, scanning.BATCH_FIELDS)


def _table_row(batch: Batch, header: BatchHeader) -> tuple[int, ...]:
    end = batch.start + header.size_bytes
    return (
        *(batch.start, end, header.base_offset, header.last_offset_delta, header.count),
        *(header.base_timestamp, header.max_timestamp, header.attributes & IS_LOG_APPEND),
        *(batch.start, header.attributes, header.crc, header.leader_epoch),
    )


def _run(
    data: npt.NDArray[np.uint8], segments: npt.NDArray[np.int64], start: int, stop: int, bucket_ms: int
) -> Measured | Fault:
    """Run the kernel until all segments are measured, with more rows whenever it runs out of them."""
    if not len(segments):
        return NOTHING
    if data.flags.writeable:
        data = data.view()
        data.flags.writeable = False
    records = int(segments[:, decoding.COUNT].sum())
    capacity = records if bucket_ms <= 0 else min(records, _FEW_ROWS)
    state = np.zeros(k.STATE_FIELDS, np.int64)
    parts = []
    while True:
        rows, sums = np.empty((capacity, k.ROW_FIELDS), np.int64), np.empty((capacity, 2), np.uint64)
        code = k.tally_records(data, segments, state, start, stop, bucket_ms, rows, sums)
        used = int(state[k.ROWS])
        parts.append(Measured(rows[:used], sums[:used]))
        if code == decoding.DONE:
            return joined(parts)
        if code != k.FULL:
            return Fault(code, int(state[k.SEGMENT]), int(state[k.POSITION]))
        state[k.ROWS] = 0  # these rows are complete, or continue in a row of the next part
        capacity = min(4 * capacity, _MOST_ROWS)
