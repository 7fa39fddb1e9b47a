"""Cuts what arrived on a connection into messages: syslog by octet counting or by line, and messages that begin with
their own size.

Comes in: the bytes that are not cut yet, and the position. Goes out: a span for each whole message. Nothing is parsed.
What is left behind the position belongs to a message that has not arrived whole.
"""

from __future__ import annotations

from typing import Any

from ottla.wire.kernels.calling import NUMBER, inlined, kernel, reads, table, writes

# Columns of a span. The mark says what is wrong with the frame.
SPAN_START, SPAN_STOP, SPAN_MARK = range(3)
SPAN_FIELDS = 3
WHOLE, TRUNCATED, CUT, DESYNCHRONISED = range(4)

# Fields of `state`. SKIP: how many bytes to pass over, -1 for all up to the end of the line. SCANNED: where the search
# for the end of the line goes on. COUNTED: whether the frame before had a count.
POSITION, SPANS, SKIP, SCANNED, COUNTED = range(5)
STATE_FIELDS = 5

# How frames are distinguished.
DETECT, COUNT_ONLY, LINES_ONLY = range(3)

# Return codes.
NEED_MORE, FULL, DESYNC = range(3)

_NUL, _LF, _CR, _SPACE, _ZERO, _NINE, _LESS = 0, 10, 13, 32, 48, 57, 60
_MOST_DIGITS = 7
SIZE_BYTES = 4


@inlined
def _line_end(data: Any, at: Any) -> Any:
    """Return where the next LF or NUL is, or the length of the data."""
    while at < len(data) and data[at] != _LF and data[at] != _NUL:
        at += 1
    return at


@inlined
def _count(data: Any, at: Any) -> Any:
    """Read a count and its space. Returns (count, start of the message), or (-1, 0) for none, (-2, 0) if cut off."""
    stop = len(data)
    start = at
    value = 0
    if data[at] == _ZERO:
        return -1, 0
    while at < stop and at - start < _MOST_DIGITS and _ZERO <= data[at] <= _NINE:
        value = value * 10 + int(data[at]) - _ZERO
        at += 1
    if at == start:
        return -1, 0
    if at == stop:
        return -2, 0
    if data[at] != _SPACE:
        return -1, 0
    return value, at + 1


@kernel(
    data=reads("uint8"),
    mode=NUMBER,
    most=NUMBER,
    spans=table("int64", SPAN_FIELDS, written=True),
    state=writes("int64", STATE_FIELDS),
)
def frame_syslog(data: Any, mode: Any, most: Any, spans: Any, state: Any) -> Any:
    """Write a span for each frame, from the position in `state`. What is longer than `most` bytes is truncated.

    Returns NEED_MORE, FULL if there is no span left, or DESYNC at a byte where no frame begins.
    """
    stop = len(data)
    at = state[POSITION]
    while 0 <= at < stop:
        if state[SKIP] > 0:
            step = min(state[SKIP], stop - at)
            state[SKIP] -= step
            at += step
        elif state[SKIP] < 0:
            at = _line_end(data, at)
            if at < stop:
                state[SKIP] = 0
        elif data[at] == _LF or data[at] == _CR or data[at] == _NUL:
            at += 1  # an empty line, or what some senders put behind a counted frame
        else:
            if state[SPANS] >= len(spans):
                state[POSITION] = at
                return FULL
            mark = WHOLE
            skip = 0
            is_digit = _ZERO <= data[at] <= _NINE
            if mode == COUNT_ONLY or (mode == DETECT and is_digit):
                size, start = _count(data, at)
                if size == -1:
                    state[POSITION] = at
                    return DESYNC
                taken = min(size, most)
                if size == -2 or stop - start < taken:
                    break
                if size > most:
                    mark = TRUNCATED
                    skip = size - most
                end = start + taken
                following = end
                state[COUNTED] = 1
            else:
                if mode == DETECT and state[COUNTED] == 1 and data[at] != _LESS:
                    state[POSITION] = at
                    return DESYNC  # a wrong count: this is the middle of a message
                start = at
                end = _line_end(data, max(at, state[SCANNED]))
                if end == stop and end - start <= most:
                    state[SCANNED] = stop
                    break
                following = end + 1
                if end - start > most:
                    mark = TRUNCATED
                    skip = -1 if end == stop else 0
                    following = min(following, stop)
                    end = start + most
                state[COUNTED] = 0
            span = spans[state[SPANS]]
            span[SPAN_START] = start
            span[SPAN_STOP] = end
            span[SPAN_MARK] = mark
            state[SPANS] += 1
            state[SKIP] = skip
            state[SCANNED] = 0
            at = following
    state[POSITION] = at
    return NEED_MORE


@kernel(
    data=reads("uint8"),
    least=NUMBER,
    most=NUMBER,
    spans=table("int64", SPAN_FIELDS, written=True),
    state=writes("int64", STATE_FIELDS),
)
def frame_sized(data: Any, least: Any, most: Any, spans: Any, state: Any) -> Any:
    """Write a span for each message that begins with its whole size as a signed big-endian number of 32 bits.

    Returns as `frame_syslog`; DESYNC at a size below `least` or above `most`.
    """
    at = state[POSITION]
    while 0 <= at <= len(data) - SIZE_BYTES:
        size = int(data[at]) << 24 | int(data[at + 1]) << 16 | int(data[at + 2]) << 8 | int(data[at + 3])
        if size < least or size > most:  # also if the sign is set: it is above every limit
            state[POSITION] = at
            return DESYNC
        if size > len(data) - at:
            break
        if state[SPANS] >= len(spans):
            state[POSITION] = at
            return FULL
        span = spans[state[SPANS]]
        span[SPAN_START] = at
        span[SPAN_STOP] = at + size
        span[SPAN_MARK] = WHOLE
        state[SPANS] += 1
        at += size
    state[POSITION] = at
    return NEED_MORE
