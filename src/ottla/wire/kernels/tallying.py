"""Counts the records of many batches by time, without columns: count, content bytes, hash sums, times and offsets.

Comes in: bytes, a table of segments as the decoder takes them, and the length of a time bucket. Goes out: a row for
each run of records of one bucket, or for each record if the length is 0. Every length is checked as in `decoding`; the
first contradiction ends the loop with its code, and `state` has the segment and the byte.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ottla.wire.kernels.calling import NUMBER, inlined, kernel, reads, table, writes
from ottla.wire.kernels.decoding import APPEND_TIME as SEGMENT_APPEND_TIME
from ottla.wire.kernels.decoding import (
    BASE_OFFSET,
    BASE_TIME,
    COUNT,
    DONE,
    END,
    HEADER_COUNT,
    HEADER_KEY_LENGTH,
    HEADER_VALUE_LENGTH,
    IS_APPEND_TIME,
    KEY_LENGTH,
    LAST_DELTA,
    OFFSET_DELTA,
    RECORD_END,
    RECORD_LENGTH,
    SEGMENT_FIELDS,
    SMALLEST_HEADER,
    START,
    TIME_LIMIT,
    TRAILING,
    VALUE_LENGTH,
    VARINT_LONG,
    VARINT_SHORT,
)
from ottla.wire.kernels.hashing import NULL_LENGTH, SEED_HIGH, SEED_LOW, absorb, absorb_length, add_to, finish
from ottla.wire.kernels.varint import LONG, read_int, read_long

# Fields of `state`: the position, and the number of rows so far.
SEGMENT, POSITION, INDEX, LAST, ROWS = range(5)
STATE_FIELDS = 5

# Columns of a row. The bucket is its first millisecond, or the record's own time if each record has a row.
BUCKET, RECORDS, BYTES, FIRST_TIME, LAST_TIME, FIRST_OFFSET, LAST_OFFSET = range(7)
ROW_FIELDS = 7

FULL = -1
"""Returned if there is no row left: the caller takes the rows and calls again."""


@inlined
def _fault(next_position: Any) -> Any:
    """Return the code for a varint that could not be read."""
    return VARINT_LONG if next_position == LONG else VARINT_SHORT


@inlined
def _hash_headers(data: Any, at: Any, end: Any, low: Any, high: Any) -> Any:
    """Hash the headers of a record. Returns (code, position, low, high, content bytes)."""
    content = 0
    count, following = read_int(data, at, end)
    if following < 0:
        return _fault(following), at, low, high, content
    if count < 0 or count > (end - following) // SMALLEST_HEADER:
        return HEADER_COUNT, at, low, high, content
    at = following
    low, high = absorb_length(low, high, np.uint64(count))
    for _ in range(count):
        size, following = read_int(data, at, end)
        if following < 0:
            return _fault(following), at, low, high, content
        if size < 0 or size > end - following:
            return HEADER_KEY_LENGTH, at, low, high, content
        low, high = absorb(low, high, data, following, size)
        content += size
        at = following + size
        size, following = read_int(data, at, end)
        if following < 0:
            return _fault(following), at, low, high, content
        if size < -1 or size > end - following:
            return HEADER_VALUE_LENGTH, at, low, high, content
        if size < 0:
            low, high = absorb_length(low, high, NULL_LENGTH)
            at = following
        else:
            low, high = absorb(low, high, data, following, size)
            content += size
            at = following + size
    return DONE, at, low, high, content


@kernel(
    data=reads("uint8"),
    segments=table("int64", SEGMENT_FIELDS),
    state=writes("int64", STATE_FIELDS),
    start=NUMBER,
    stop=NUMBER,
    bucket=NUMBER,
    rows=table("int64", ROW_FIELDS, written=True),
    sums=table("uint64", 2, written=True),
)
def tally_records(
    data: Any, segments: Any, state: Any, start: Any, stop: Any, bucket: Any, rows: Any, sums: Any
) -> Any:
    """Count the records with offsets in `[start, stop)`, from the position in `state` to the last segment.

    A run continues in the last row; new rows are set, not added to. Returns DONE, FULL, or the code of a fault.
    """
    # The bounds of the last row's bucket, so that most records need no division.
    row = state[ROWS] - 1
    bucket_start = 0
    bucket_end = 0
    if bucket > 0 and row >= 0 and row < len(rows):
        bucket_start = rows[row][BUCKET]
        bucket_end = bucket_start + bucket
    while state[SEGMENT] < len(segments):
        segment = segments[state[SEGMENT]]
        segment_end = segment[END]
        base_offset = segment[BASE_OFFSET]
        base_time = segment[BASE_TIME]
        is_append_time = segment[IS_APPEND_TIME] != 0
        if state[INDEX] == 0:
            state[POSITION] = segment[START]
            state[LAST] = -1
        if segment[START] < 0 or segment_end > len(data) or state[POSITION] < segment[START]:
            return RECORD_LENGTH
        while state[INDEX] < segment[COUNT]:
            record = state[POSITION]
            length, at = read_int(data, record, segment_end)
            if at < 0:
                return _fault(at)
            if length < 0 or length > segment_end - at:
                return RECORD_LENGTH
            end = at + length
            if length == 0:
                return RECORD_END
            at += 1  # attributes of a record: none are defined
            time_delta, following = read_long(data, at, end)
            if following < 0:
                state[POSITION] = at
                return _fault(following)
            at = following
            delta, following = read_int(data, at, end)
            if following < 0:
                state[POSITION] = at
                return _fault(following)
            if delta <= state[LAST] or delta > segment[LAST_DELTA]:
                state[POSITION] = at
                return OFFSET_DELTA
            at = following
            offset = base_offset + delta

            key_size, following = read_int(data, at, end)
            if following < 0:
                state[POSITION] = at
                return _fault(following)
            if key_size < -1 or key_size > end - following:
                state[POSITION] = at
                return KEY_LENGTH
            low = SEED_LOW
            high = SEED_HIGH
            content = 0
            if key_size < 0:
                low, high = absorb_length(low, high, NULL_LENGTH)
                at = following
            else:
                low, high = absorb(low, high, data, following, key_size)
                content = key_size
                at = following + key_size
            value_size, following = read_int(data, at, end)
            if following < 0:
                state[POSITION] = at
                return _fault(following)
            if value_size < -1 or value_size > end - following:
                state[POSITION] = at
                return VALUE_LENGTH
            if value_size < 0:
                low, high = absorb_length(low, high, NULL_LENGTH)
                at = following
            else:
                low, high = absorb(low, high, data, following, value_size)
                content += value_size
                at = following + value_size
            if at + 1 == end and data[at] == 0:  # no headers: by far the most common case
                low, high = absorb_length(low, high, np.uint64(0))
                at = end
            else:
                code, at, low, high, more = _hash_headers(data, at, end, low, high)
                content += more
                if code != DONE:
                    state[POSITION] = at
                    return code
            if at != end:
                state[POSITION] = at
                return RECORD_END

            if start <= offset < stop:
                # Saturating arithmetic, as in `decoding`: compiled code would wrap around silently.
                if is_append_time:
                    time = segment[SEGMENT_APPEND_TIME]
                elif time_delta > 0 and base_time > TIME_LIMIT - time_delta:
                    time = TIME_LIMIT
                elif time_delta < 0 and base_time < -TIME_LIMIT - time_delta:
                    time = -TIME_LIMIT
                else:
                    time = base_time + time_delta
                if time > TIME_LIMIT:
                    time = TIME_LIMIT
                elif time < -TIME_LIMIT:
                    time = -TIME_LIMIT
                if bucket <= 0 or row < 0 or time < bucket_start or time >= bucket_end:
                    if row + 1 >= len(rows) or row + 1 >= len(sums):
                        return FULL  # nothing of this record is counted yet: it is read again
                    row += 1
                    state[ROWS] = row + 1
                    bucket_start = time
                    if bucket > 0:
                        bucket_start = time // bucket * bucket
                        bucket_end = bucket_start + bucket
                    rows[row][BUCKET] = bucket_start
                    rows[row][RECORDS] = 0
                    rows[row][BYTES] = 0
                    rows[row][FIRST_TIME] = time
                    rows[row][LAST_TIME] = time
                    rows[row][FIRST_OFFSET] = offset
                    sums[row][0] = np.uint64(0)
                    sums[row][1] = np.uint64(0)
                rows[row][RECORDS] += 1
                rows[row][BYTES] += content
                if time < rows[row][FIRST_TIME]:
                    rows[row][FIRST_TIME] = time
                if time > rows[row][LAST_TIME]:
                    rows[row][LAST_TIME] = time
                rows[row][LAST_OFFSET] = offset
                low, high = finish(low, high)
                add_to(sums[row], low, high)
            state[LAST] = delta
            state[POSITION] = end
            state[INDEX] += 1
        if state[POSITION] != segment_end:
            return TRAILING
        state[SEGMENT] += 1
        state[INDEX] = 0
    return DONE
