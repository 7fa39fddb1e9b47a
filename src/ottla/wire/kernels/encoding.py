"""Writes rows of Arrow columns as the records of batches, as many as fit, in one pass.

Comes in: columns, a row to begin with, and memory to write to. Goes out: the bytes of the records, and for each batch
in `results` where it ended, its number of records and the times for its header. Sizes are computed before anything is
written, so nothing is written outside the memory. A first record that does not fit is reported, not cut.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ottla.wire.kernels.calling import NUMBER, inlined, kernel, reads, table, writes
from ottla.wire.kernels.hashing import NULL_LENGTH, SEED_HIGH, SEED_LOW, absorb, absorb_length, add_to, finish
from ottla.wire.kernels.memory import copy
from ottla.wire.kernels.varint import int_size, write

# Fields of a result. NEEDED is the size of the record that did not fit, 0 if all did.
NEXT_ROW, SIZE, COUNT, BASE_TIME, MAX_TIME, NEEDED = range(6)
RESULT_FIELDS = 6

# An upper bound of what a record adds to its content: length, attributes, time delta, offset delta, three counts.
RECORD_OVERHEAD = 5 + 1 + 10 + 5 + 5 + 5 + 5
HEADER_OVERHEAD = 5 + 5


class BinaryIn(NamedTuple):
    """A binary column: value i is `data[ends[i] : ends[i + 1]]`.

    `nulls` has a byte for each row, or is empty if there are no nulls. Empty `ends` mean a column of nulls.
    """

    ends: Any
    data: Any
    nulls: Any


class HeadersIn(NamedTuple):
    """The headers of row i are the entries `ends[i]` to `ends[i + 1]` of `keys` and `values`; no `ends`, no headers."""

    ends: Any
    nulls: Any
    keys: BinaryIn
    values: BinaryIn


@inlined
def length_of(column: Any, row: Any) -> Any:
    """Return the bytes of a value, -1 for null."""
    if len(column.ends) == 0 or (len(column.nulls) != 0 and column.nulls[row] != 0):
        return -1
    return column.ends[row + 1] - column.ends[row]


@inlined
def _write_value(out: Any, at: Any, column: Any, row: Any, length: Any) -> Any:
    """Write the length of a value and its bytes. Null is the length -1."""
    at = write(out, at, length)
    if length > 0:
        copy(out, at, column.data, column.ends[row], length)
        at += length
    return at


@inlined
def header_range(headers: Any, row: Any) -> Any:
    """Return the first and the last entry of a row's headers."""
    if len(headers.ends) == 0 or (len(headers.nulls) != 0 and headers.nulls[row] != 0):
        return 0, 0
    return headers.ends[row], headers.ends[row + 1]


@inlined
def _headers_size(headers: Any, first: Any, last: Any) -> Any:
    """Return the bytes that the headers of a record take, their count included."""
    size = int_size(last - first)
    for i in range(first, last):
        key = length_of(headers.keys, i)
        value = length_of(headers.values, i)
        size += int_size(key) + key + int_size(value) + max(value, 0)
    return size


@inlined
def _absorb_written(low: Any, high: Any, out: Any, end: Any, length: Any) -> Any:
    """Absorb what was just written up to `end` into the hash: it is still in the CPU's cache."""
    if length < 0:
        return absorb_length(low, high, NULL_LENGTH)
    return absorb(low, high, out, end - length, length)


@inlined
def _write_headers(out: Any, at: Any, headers: Any, first: Any, last: Any, hashing: Any, low: Any, high: Any) -> Any:
    """Write the entries of a row's headers, and absorb them into the hash."""
    for i in range(first, last):
        for column in (headers.keys, headers.values):
            length = length_of(column, i)
            at = _write_value(out, at, column, i, length)
            if hashing:
                low, high = _absorb_written(low, high, out, at, length)
    return at, low, high


@inlined
def _write_batch(
    out: Any,
    start: Any,
    end: Any,
    most_bytes: Any,
    most_records: Any,
    rows: Any,
    next_row: Any,
    last_row: Any,
    key: Any,
    value: Any,
    headers: Any,
    times: Any,
    default_time: Any,
    hashing: Any,
    sums: Any,
    result: Any,
) -> Any:
    """Continue the batch that begins at `start` with rows from `next_row` to `last_row`, or until it is full.

    `result` has the state of the batch (all zero for a new one) and is updated. `rows`, if not empty, picks the rows
    and their order. `most_bytes` limits the batch unless its first record alone is larger; the `end` of its memory in
    `out` always does. Returns the row to continue with.
    """
    at = start + result[SIZE]
    count = result[COUNT]
    base_time = result[BASE_TIME] if count != 0 else default_time
    max_time = result[MAX_TIME] if count != 0 else default_time
    result[NEEDED] = 0
    while next_row < last_row and count < most_records:
        row = rows[next_row] if len(rows) != 0 else next_row
        time = times[row] if len(times) != 0 else default_time
        if count == 0:
            base_time = time
            max_time = time
        key_size = length_of(key, row)
        value_size = length_of(value, row)
        first, last = header_range(headers, row)
        # A record has its own length in front, so its size must be known before it is written.
        body = 1 + int_size(time - base_time) + int_size(count)
        body += int_size(key_size) + max(key_size, 0) + int_size(value_size) + max(value_size, 0)
        body += _headers_size(headers, first, last) if last > first else 1
        size = int_size(body) + body
        # The first record of a batch may exceed the limit: it would fit in no other batch either.
        if count != 0 and at - start + size > most_bytes:
            break
        if size > end - at:
            result[NEEDED] = size
            break
        at = write(out, at, body)
        out[at] = 0
        at = write(out, at + 1, time - base_time)
        at = write(out, at, count)
        low = SEED_LOW
        high = SEED_HIGH
        at = _write_value(out, at, key, row, key_size)
        if hashing:
            low, high = _absorb_written(low, high, out, at, key_size)
        at = _write_value(out, at, value, row, value_size)
        if hashing:
            low, high = _absorb_written(low, high, out, at, value_size)
            low, high = absorb_length(low, high, np.uint64(last - first))
        at = write(out, at, last - first)
        if last > first:
            at, low, high = _write_headers(out, at, headers, first, last, hashing, low, high)
        if hashing:
            low, high = finish(low, high)
            add_to(sums, low, high)
        max_time = max(max_time, time)
        count += 1
        next_row += 1
    result[NEXT_ROW] = next_row
    result[SIZE] = at - start
    result[COUNT] = count
    result[BASE_TIME] = base_time
    result[MAX_TIME] = max_time
    return next_row


_BINARY = BinaryIn(reads("int64"), reads("uint8"), reads("uint8"))
_HEADERS = HeadersIn(reads("int64"), reads("uint8"), _BINARY, _BINARY)


@kernel(
    out=writes("uint8"),
    start=NUMBER,
    most_bytes=NUMBER,
    most_records=NUMBER,
    rows=reads("int64"),
    next_row=NUMBER,
    last_row=NUMBER,
    key=_BINARY,
    value=_BINARY,
    headers=_HEADERS,
    times=reads("int64"),
    default_time=NUMBER,
    hashing=NUMBER,
    sums=writes("uint64", 2),
    result=writes("int64", RESULT_FIELDS),
)
def encode_records(
    out: Any,
    start: Any,
    most_bytes: Any,
    most_records: Any,
    rows: Any,
    next_row: Any,
    last_row: Any,
    key: Any,
    value: Any,
    headers: Any,
    times: Any,
    default_time: Any,
    hashing: Any,
    sums: Any,
    result: Any,
) -> Any:
    """Write a batch, or continue one: see `_write_batch`."""
    limits = len(out), most_bytes, most_records
    columns = key, value, headers, times
    return _write_batch(out, start, *limits, rows, next_row, last_row, *columns, default_time, hashing, sums, result)


@kernel(
    out=writes("uint8"),
    most_bytes=NUMBER,
    most_records=NUMBER,
    rows=reads("int64"),
    next_row=NUMBER,
    last_row=NUMBER,
    key=_BINARY,
    value=_BINARY,
    headers=_HEADERS,
    times=reads("int64"),
    default_time=NUMBER,
    hashing=NUMBER,
    sums=table("uint64", 2, written=True),
    results=table("int64", RESULT_FIELDS, written=True),
)
def encode_batches(
    out: Any,
    most_bytes: Any,
    most_records: Any,
    rows: Any,
    next_row: Any,
    last_row: Any,
    key: Any,
    value: Any,
    headers: Any,
    times: Any,
    default_time: Any,
    hashing: Any,
    sums: Any,
    results: Any,
) -> Any:
    """Write batches one after the other. Returns how many, at most one for each of `results`.

    A batch that `out` would cut short is left to the next call, unless it is the first one and has at least one record.
    If even the first record does not fit, none is written and NEEDED of `results[0]` has its size.
    """
    at = 0
    for batch in range(len(results)):
        if next_row >= last_row:
            return batch
        result = results[batch]
        result[SIZE] = 0
        result[COUNT] = 0
        _write_batch(
            out,
            at,
            len(out),
            most_bytes,
            most_records,
            rows,
            next_row,
            last_row,
            key,
            value,
            headers,
            times,
            default_time,
            hashing,
            sums[batch],
            result,
        )
        # A batch that ran out of memory before its limit is complete only if it is the first one of the call.
        if result[NEEDED] != 0 and (batch != 0 or result[COUNT] == 0):
            return batch
        at += result[SIZE]
        next_row = result[NEXT_ROW]
    return len(results)


@kernel(
    memory=writes("uint8"),
    slot_bytes=NUMBER,
    most_bytes=NUMBER,
    most_records=NUMBER,
    rows=reads("int64"),
    edges=reads("int64"),
    partitions=reads("int64"),
    key=_BINARY,
    value=_BINARY,
    headers=_HEADERS,
    times=reads("int64"),
    default_time=NUMBER,
    reached=writes("int64"),
    results=table("int64", RESULT_FIELDS, written=True),
)
def encode_runs(
    memory: Any,
    slot_bytes: Any,
    most_bytes: Any,
    most_records: Any,
    rows: Any,
    edges: Any,
    partitions: Any,
    key: Any,
    value: Any,
    headers: Any,
    times: Any,
    default_time: Any,
    reached: Any,
    results: Any,
) -> Any:
    """Continue the batches of many partitions, each in its slot of `memory`. Returns how many runs are complete.

    Run i of `rows` goes to the slot of `partitions[i]`, and `reached[i]` is set to the row it reached. Runs without a
    slot are skipped. No batch outgrows its slot, not even with its first record.
    """
    whole = 0
    for run in range(len(partitions)):
        partition = partitions[run]
        reached[run] = edges[run]
        if partition < 0 or partition >= len(results) or (partition + 1) * slot_bytes > len(memory):
            continue
        start = partition * slot_bytes
        reached[run] = _write_batch(
            memory,
            start,
            start + slot_bytes,
            most_bytes,
            most_records,
            rows,
            edges[run],
            edges[run + 1],
            key,
            value,
            headers,
            times,
            default_time,
            False,
            memory,  # in place of sums: nothing is hashed
            results[partition],
        )
        whole += reached[run] == edges[run + 1]
    return whole
