"""From measured batches and Arrow records to slices: the sums of each bucket, added up without a loop over records."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.tally.values import Slice, as_hex
from ottla.wire.columns import from_arrow
from ottla.wire.encode import encode
from ottla.wire.kernels import tallying as k
from ottla.wire.measure import Measured, joined, measure_records

_HALF = np.uint64(32)
_LOW_HALF = np.uint64(0xFFFFFFFF)


def slices_of(measured: Measured, *, partition: int = 0, has_sums: bool = True) -> list[Slice]:
    """Return the slices of a partition, sorted by bucket. `has_sums` is false if only headers were read."""
    rows, sums = measured
    if len(rows) > 1:
        rows, sums = _merged(rows, sums)
    return [
        Slice(
            start=row[k.BUCKET] // 1000,
            count=row[k.RECORDS],
            bytes=row[k.BYTES],
            fingerprint=as_hex(high << 64 | low) if has_sums else None,
            first=row[k.FIRST_TIME] / 1000,
            last=row[k.LAST_TIME] / 1000,
            partition=partition,
        )
        for row, (low, high) in zip(rows.tolist(), sums.tolist(), strict=True)
    ]


def slices_of_records(
    records: pa.RecordBatch | pa.Table,
    *,
    bucket_seconds: int,
    partition: int = 0,
    times: npt.NDArray[np.int64] | None = None,
) -> list[Slice]:
    """Return the slices of Arrow records with the columns key, value, headers and timestamp.

    `times` replaces the timestamps: microseconds since 1970, one per record. The fingerprint is that of the columns,
    which differs from that of the log where a header's name is not UTF-8.
    """
    if not records.num_rows:
        return []
    stamps = records.column("timestamp") if times is None else pa.array(times // 1000, pa.int64())
    columns = from_arrow(
        records.column("value"), key=records.column("key"), headers=records.column("headers"), timestamp=stamps
    )
    parts = []
    for batch in encode(columns, now_ms=0):
        header = batch.header
        parts.append(
            measure_records(
                np.frombuffer(batch.records, np.uint8),
                count=header.count,
                base_time=header.base_timestamp,
                max_time=header.max_timestamp,
                bucket_ms=bucket_seconds * 1000,
            )
        )
    return slices_of(joined(parts), partition=partition)


def _merged(
    rows: npt.NDArray[np.int64], sums: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Add up the rows of each bucket."""
    order = np.argsort(rows[:, k.BUCKET], kind="stable")
    rows, sums = rows[order], sums[order]
    edges = np.flatnonzero(np.r_[True, rows[1:, k.BUCKET] != rows[:-1, k.BUCKET]])
    merged = np.empty((len(edges), k.ROW_FIELDS), np.int64)
    merged[:, k.BUCKET] = rows[edges, k.BUCKET]
    for column in (k.RECORDS, k.BYTES):
        merged[:, column] = np.add.reduceat(rows[:, column], edges)
    for column in (k.FIRST_TIME, k.FIRST_OFFSET):
        merged[:, column] = np.minimum.reduceat(rows[:, column], edges)
    for column in (k.LAST_TIME, k.LAST_OFFSET):
        merged[:, column] = np.maximum.reduceat(rows[:, column], edges)
    return merged, add_sums(sums, edges)


def add_sums(sums: npt.NDArray[np.uint64], edges: npt.NDArray[np.intp]) -> npt.NDArray[np.uint64]:
    """Add up 128-bit sums from each edge to the next, modulo 2**128.

    Halves of words are added, so that nothing overflows before 2**32 rows.
    """
    lows = np.add.reduceat(sums[:, 0] & _LOW_HALF, edges)
    carried = lows >> _HALF
    mids = np.add.reduceat(sums[:, 0] >> _HALF, edges) + carried
    low = (lows & _LOW_HALF) | ((mids & _LOW_HALF) << _HALF)
    high = np.add.reduceat(sums[:, 1], edges) + (mids >> _HALF)  # wraps around, as it should
    return np.stack([low, high], axis=1)
