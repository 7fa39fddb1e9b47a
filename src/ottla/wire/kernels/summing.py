"""Counts rows of columns by time as they are encoded: count, bytes, hash sums, times. The hashes are those of records.

Comes in: the columns, rows and times that an encoder got. Goes out: rows as `tallying` writes them, without offsets.
Two rows are hashed at a time: a hash is a chain of products, and the processor works on two chains in the time that one
takes. Hashing columns saves reading the records again.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ottla.wire.kernels.calling import NUMBER, inlined, kernel, reads, table, writes
from ottla.wire.kernels.encoding import BinaryIn, HeadersIn, header_range, length_of
from ottla.wire.kernels.hashing import (
    NULL_LENGTH,
    SEED_HIGH,
    SEED_LOW,
    absorb,
    absorb_block,
    absorb_length,
    absorb_rest,
    add_to,
    finish,
)
from ottla.wire.kernels.tallying import (
    BUCKET,
    BYTES,
    FIRST_OFFSET,
    FIRST_TIME,
    LAST_OFFSET,
    LAST_TIME,
    RECORDS,
    ROW_FIELDS,
)

# Fields of `state`: the row to continue with, and the number of rows written.
NEXT, WRITTEN = range(2)
STATE_FIELDS = 2
DONE = 0
FULL = -1

_BINARY = BinaryIn(reads("int64"), reads("uint8"), reads("uint8"))
_HEADERS = HeadersIn(reads("int64"), reads("uint8"), _BINARY, _BINARY)


@inlined
def _begin(key: Any, row: Any, size: Any) -> Any:
    """Hash the key of a row and the length of its value."""
    low = SEED_LOW
    high = SEED_HIGH
    key_size = length_of(key, row)
    if key_size < 0:
        low, high = absorb_length(low, high, NULL_LENGTH)
    else:
        low, high = absorb(low, high, key.data, key.ends[row], key_size)
    if size < 0:
        return absorb_length(low, high, NULL_LENGTH)
    return absorb_length(low, high, np.uint64(size))


@inlined
def _end(headers: Any, row: Any, low: Any, high: Any) -> Any:
    """Hash the headers of a row. Returns the hash, and the bytes of the headers."""
    first, last = header_range(headers, row)
    low, high = absorb_length(low, high, np.uint64(last - first))
    content = 0
    for entry in range(first, last):
        size = length_of(headers.keys, entry)
        low, high = absorb(low, high, headers.keys.data, headers.keys.ends[entry], max(size, 0))
        content += max(size, 0)
        size = length_of(headers.values, entry)
        if size < 0:
            low, high = absorb_length(low, high, NULL_LENGTH)
        else:
            low, high = absorb(low, high, headers.values.data, headers.values.ends[entry], size)
            content += size
    low, high = finish(low, high)
    return low, high, content


@inlined
def _add(out: Any, sums: Any, at: Any, time: Any, content: Any, low: Any, high: Any) -> None:
    """Add a record to the last row."""
    row = out[at]
    row[RECORDS] += 1
    row[BYTES] += content
    if time < row[FIRST_TIME]:
        row[FIRST_TIME] = time
    if time > row[LAST_TIME]:
        row[LAST_TIME] = time
    add_to(sums[at], low, high)


@kernel(
    rows=reads("int64"),
    first_row=NUMBER,
    last_row=NUMBER,
    key=_BINARY,
    value=_BINARY,
    headers=_HEADERS,
    times=reads("int64"),
    default_time=NUMBER,
    bucket=NUMBER,
    state=writes("int64", STATE_FIELDS),
    out=table("int64", ROW_FIELDS, written=True),
    sums=table("uint64", 2, written=True),
)
def tally_rows(
    rows: Any,
    first_row: Any,
    last_row: Any,
    key: Any,
    value: Any,
    headers: Any,
    times: Any,
    default_time: Any,
    bucket: Any,
    state: Any,
    out: Any,
    sums: Any,
) -> Any:
    """Count the rows from `first_row` to `last_row`, or those that `rows` picks. Continues in the last row of `out`.

    The columns must be as the encoder takes them. Returns FULL if `out` has no row left: then nothing more is counted.
    """
    data = value.data
    at = state[WRITTEN] - 1
    bucket_start = 0
    bucket_end = 0
    if at >= 0 and at < len(out):
        bucket_start = out[at][BUCKET]
        bucket_end = bucket_start + bucket
    number = first_row
    while number < last_row:
        row = rows[number] if len(rows) != 0 else number
        time = times[row] if len(times) != 0 else default_time
        if at < 0 or time < bucket_start or time >= bucket_end:
            if at + 1 >= len(out) or at + 1 >= len(sums) or bucket <= 0:
                return FULL
            at += 1
            state[WRITTEN] = at + 1
            bucket_start = time // bucket * bucket
            bucket_end = bucket_start + bucket
            current = out[at]
            current[BUCKET] = bucket_start
            current[RECORDS] = 0
            current[BYTES] = 0
            current[FIRST_TIME] = time
            current[LAST_TIME] = time
            current[FIRST_OFFSET] = 0
            current[LAST_OFFSET] = 0
            sums[at][0] = np.uint64(0)
            sums[at][1] = np.uint64(0)
        # Two rows of the same bucket at a time, as long as there are.
        if number + 2 <= last_row:
            row1 = rows[number + 1] if len(rows) != 0 else number + 1
            time1 = times[row1] if len(times) != 0 else default_time
            if bucket_start <= time1 < bucket_end:
                size0 = length_of(value, row)
                size1 = length_of(value, row1)
                low0, high0 = _begin(key, row, size0)
                low1, high1 = _begin(key, row1, size1)
                size0 = max(size0, 0)
                size1 = max(size1, 0)
                start0 = value.ends[row] if size0 else 0
                start1 = value.ends[row1] if size1 else 0
                common = min(size0, size1) // 16 * 16
                for step in range(0, common, 16):
                    low0, high0 = absorb_block(low0, high0, data, start0 + step)
                    low1, high1 = absorb_block(low1, high1, data, start1 + step)
                low0, high0 = absorb_rest(low0, high0, data, start0 + common, start0 + size0)
                low1, high1 = absorb_rest(low1, high1, data, start1 + common, start1 + size1)
                low0, high0, more0 = _end(headers, row, low0, high0)
                low1, high1, more1 = _end(headers, row1, low1, high1)
                _add(out, sums, at, time, size0 + max(length_of(key, row), 0) + more0, low0, high0)
                _add(out, sums, at, time1, size1 + max(length_of(key, row1), 0) + more1, low1, high1)
                number += 2
                continue
        size = length_of(value, row)
        low, high = _begin(key, row, size)
        if size > 0:
            low, high = absorb_rest(low, high, data, value.ends[row], value.ends[row] + size)
        low, high, more = _end(headers, row, low, high)
        _add(out, sums, at, time, max(size, 0) + max(length_of(key, row), 0) + more, low, high)
        number += 1
    return DONE
