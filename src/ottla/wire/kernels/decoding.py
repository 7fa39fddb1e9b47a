"""Decodes the records of many batches into Arrow buffers, in one pass.

Comes in: bytes, and a table of segments, one for each batch whose records lie (decompressed) in them. Goes out:
offsets, timestamps, keys, values and headers as columns, and the sums of the fingerprint. Every length is checked
against the end of its record, and every record against the end of its segment. The first contradiction ends the loop
with a code, and `state` has the segment and the byte.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ottla.wire.kernels.calling import NUMBER, inlined, kernel, reads, table, writes
from ottla.wire.kernels.hashing import NULL_LENGTH, SEED_HIGH, SEED_LOW, absorb, absorb_length, add_to, finish
from ottla.wire.kernels.memory import copy
from ottla.wire.kernels.varint import LONG, read_int, read_long

# Columns of the segment table.
START, END, BASE_OFFSET, LAST_DELTA, COUNT, BASE_TIME, APPEND_TIME, IS_APPEND_TIME = range(8)
SEGMENT_FIELDS = 8

# What the caller wants, as bits.
OFFSET, TIMESTAMP, KEY, VALUE, HEADERS, FINGERPRINT = 1, 2, 4, 8, 16, 32

# Fields of `state`: the position, and what was decoded so far.
SEGMENT, POSITION, INDEX, LAST, ROW, KEY_NULLS, VALUE_NULLS, BARE, HEADER, HEADER_NULLS, NEEDED, CLAMPED = range(12)
STATE_FIELDS = 12

# Return codes.
DONE = 0
GROW_HEADERS = 1
VARINT_SHORT = 2
VARINT_LONG = 3
RECORD_LENGTH = 4
KEY_LENGTH = 5
VALUE_LENGTH = 6
HEADER_COUNT = 7
HEADER_KEY_LENGTH = 8
HEADER_VALUE_LENGTH = 9
RECORD_END = 10
OFFSET_DELTA = 11
TRAILING = 12

REASONS = {
    VARINT_SHORT: "a variable-length integer runs over the end",
    VARINT_LONG: "a variable-length integer is longer than its type",
    RECORD_LENGTH: "a record's length is negative or runs over the end of the batch",
    KEY_LENGTH: "a key's length is invalid or runs over the end of its record",
    VALUE_LENGTH: "a value's length is invalid or runs over the end of its record",
    HEADER_COUNT: "a record's number of headers is negative or cannot fit in it",
    HEADER_KEY_LENGTH: "a header key's length is negative or runs over the end of its record",
    HEADER_VALUE_LENGTH: "a header value's length is invalid or runs over the end of its record",
    RECORD_END: "a record ends before its length says",
    OFFSET_DELTA: "offsets inside the batch do not rise or leave the batch",
    TRAILING: "there are bytes after the last record",
}

SMALLEST_HEADER = 2  # bytes: two lengths

# Milliseconds that still fit in 64 bits as microseconds, and those that fit in 64 bits at all.
TIME_LIMIT = 9_223_372_036_854_775
_LATEST, _EARLIEST = 2**63 - 1, -(2**63)


class BinaryOut(NamedTuple):
    """Buffers of a binary column: value i ends at `ends[i + 1]` in `data`; `valid` has a bit for each row."""

    ends: Any
    data: Any
    valid: Any


class HeadersOut(NamedTuple):
    """Buffers of the headers: a list for each row, and the keys and values of all lists."""

    ends: Any
    valid: Any
    keys: BinaryOut
    values: BinaryOut


@inlined
def _clear(valid: Any, row: Any) -> None:
    """Clear the bit of a row: the value is null."""
    valid[row >> 3] &= np.uint8(0xFF ^ (1 << (row & 7)))


@inlined
def _varint_error(next_position: Any) -> Any:
    """Return the code for a varint that could not be read."""
    return VARINT_LONG if next_position == LONG else VARINT_SHORT


@inlined
def _read_headers(
    data: Any, at: Any, end: Any, want: Any, keep: Any, headers: Any, state: Any, low: Any, high: Any
) -> Any:
    """Read the headers of a record. Returns (code, position, low, high); the position of the fault, if any."""
    count, following = read_int(data, at, end)
    if following < 0:
        return _varint_error(following), at, low, high
    if count < 0 or count > (end - following) // SMALLEST_HEADER:
        return HEADER_COUNT, at, low, high
    at = following
    store = keep and (want & HEADERS) != 0
    first = state[HEADER]
    if store and first + count > len(headers.keys.ends) - 1:
        # The caller grows the columns and calls again; the state still points to this record.
        state[NEEDED] = count
        return GROW_HEADERS, at, low, high
    hashing = (want & FINGERPRINT) != 0
    if hashing:
        low, high = absorb_length(low, high, np.uint64(count))
    for i in range(count):
        size, following = read_int(data, at, end)
        if following < 0:
            return _varint_error(following), at, low, high
        if size < 0 or size > end - following:
            return HEADER_KEY_LENGTH, at, low, high
        at = following
        slot = first + i
        if store:
            to = headers.keys.ends[slot]
            copy(headers.keys.data, to, data, at, size)
            headers.keys.ends[slot + 1] = to + size
        if hashing:
            low, high = absorb(low, high, data, at, size)
        at += size
        size, following = read_int(data, at, end)
        if following < 0:
            return _varint_error(following), at, low, high
        if size < -1 or size > end - following:
            return HEADER_VALUE_LENGTH, at, low, high
        at = following
        if size < 0:
            if store:
                headers.values.ends[slot + 1] = headers.values.ends[slot]
                _clear(headers.values.valid, slot)
                state[HEADER_NULLS] += 1
            if hashing:
                low, high = absorb_length(low, high, NULL_LENGTH)
            continue
        if store:
            to = headers.values.ends[slot]
            copy(headers.values.data, to, data, at, size)
            headers.values.ends[slot + 1] = to + size
        if hashing:
            low, high = absorb(low, high, data, at, size)
        at += size
    if store:
        state[HEADER] = first + count
        headers.ends[state[ROW] + 1] = first + count
        if count == 0:  # a zero count in more bytes than needed
            _clear(headers.valid, state[ROW])
            state[BARE] += 1
    return DONE, at, low, high


_BINARY = BinaryOut(writes("int32", 1), writes("uint8"), writes("uint8"))


@kernel(
    data=reads("uint8"),
    segments=table("int64", SEGMENT_FIELDS),
    state=writes("int64", STATE_FIELDS),
    want=NUMBER,
    start=NUMBER,
    stop=NUMBER,
    offsets=writes("int64"),
    timestamps=writes("int64"),
    key=_BINARY,
    value=_BINARY,
    headers=HeadersOut(writes("int32", 1), writes("uint8"), _BINARY, _BINARY),
    sums=writes("uint64", 2),
)
def decode_records(
    data: Any,
    segments: Any,
    state: Any,
    want: Any,
    start: Any,
    stop: Any,
    offsets: Any,
    timestamps: Any,
    key: Any,
    value: Any,
    headers: Any,
    sums: Any,
) -> Any:
    """Decode the records with offsets in `[start, stop)`, from the position in `state` to the last segment."""
    while state[SEGMENT] < len(segments):
        segment = segments[state[SEGMENT]]
        segment_end = segment[END]
        base_offset = segment[BASE_OFFSET]
        base_time = segment[BASE_TIME]
        append_time = segment[IS_APPEND_TIME] != 0
        if state[INDEX] == 0:
            state[POSITION] = segment[START]
            state[LAST] = -1
        while state[INDEX] < segment[COUNT]:
            # On GROW_HEADERS nothing of the record is stored yet, so that it is read again from here.
            record = state[POSITION]
            length, at = read_int(data, record, segment_end)
            if at < 0:
                return _varint_error(at)
            if length < 0 or length > segment_end - at:
                return RECORD_LENGTH
            end = at + length
            if length == 0:
                return RECORD_END
            at += 1  # attributes of a record: none are defined
            time_delta, following = read_long(data, at, end)
            if following < 0:
                state[POSITION] = at
                return _varint_error(following)
            at = following
            delta, following = read_int(data, at, end)
            if following < 0:
                state[POSITION] = at
                return _varint_error(following)
            if delta <= state[LAST] or delta > segment[LAST_DELTA]:
                state[POSITION] = at
                return OFFSET_DELTA
            at = following
            offset = base_offset + delta
            # Records outside the requested offsets are still checked, but not stored.
            keep = start <= offset < stop
            row = state[ROW]

            key_size, following = read_int(data, at, end)
            if following < 0:
                state[POSITION] = at
                return _varint_error(following)
            if key_size < -1 or key_size > end - following:
                state[POSITION] = at
                return KEY_LENGTH
            key_at = following
            at = key_at + max(key_size, 0)
            value_size, following = read_int(data, at, end)
            if following < 0:
                state[POSITION] = at
                return _varint_error(following)
            if value_size < -1 or value_size > end - following:
                state[POSITION] = at
                return VALUE_LENGTH
            value_at = following
            at = value_at + max(value_size, 0)

            low = SEED_LOW
            high = SEED_HIGH
            hashing = (want & FINGERPRINT) != 0
            if hashing:
                if key_size < 0:
                    low, high = absorb_length(low, high, NULL_LENGTH)
                else:
                    low, high = absorb(low, high, data, key_at, key_size)
                if value_size < 0:
                    low, high = absorb_length(low, high, NULL_LENGTH)
                else:
                    low, high = absorb(low, high, data, value_at, value_size)
            if at + 1 == end and data[at] == 0:
                # No headers is by far the most common case: avoid the call.
                code = DONE
                at = end
                if hashing:
                    low, high = absorb_length(low, high, np.uint64(0))
                if keep and want & HEADERS:
                    headers.ends[row + 1] = state[HEADER]
                    _clear(headers.valid, row)
                    state[BARE] += 1
            else:
                code, at, low, high = _read_headers(data, at, end, want, keep, headers, state, low, high)
            if code != DONE:
                if code != GROW_HEADERS:
                    state[POSITION] = at
                return code
            if at != end:
                state[POSITION] = at
                return RECORD_END

            if keep:
                if want & TIMESTAMP:
                    if append_time:
                        time = segment[APPEND_TIME]
                    # Saturating addition: compiled code would wrap around silently.
                    elif time_delta > 0 and base_time > _LATEST - time_delta:
                        time = _LATEST
                    elif time_delta < 0 and base_time < _EARLIEST - time_delta:
                        time = _EARLIEST
                    else:
                        time = base_time + time_delta
                    if not -TIME_LIMIT <= time <= TIME_LIMIT:
                        time = TIME_LIMIT if time > 0 else -TIME_LIMIT
                        state[CLAMPED] += 1
                    timestamps[row] = time * 1000
                if want & OFFSET:
                    offsets[row] = offset
                if want & KEY:
                    to = key.ends[row]
                    if key_size < 0:
                        key.ends[row + 1] = to
                        _clear(key.valid, row)
                        state[KEY_NULLS] += 1
                    else:
                        copy(key.data, to, data, key_at, key_size)
                        key.ends[row + 1] = to + key_size
                if want & VALUE:
                    to = value.ends[row]
                    if value_size < 0:
                        value.ends[row + 1] = to
                        _clear(value.valid, row)
                        state[VALUE_NULLS] += 1
                    else:
                        copy(value.data, to, data, value_at, value_size)
                        value.ends[row + 1] = to + value_size
                if hashing:
                    low, high = finish(low, high)
                    add_to(sums, low, high)
                state[ROW] = row + 1
            state[LAST] = delta
            state[POSITION] = end
            state[INDEX] += 1
        if state[POSITION] != segment_end:
            return TRAILING
        state[SEGMENT] += 1
        state[INDEX] = 0
    return DONE
