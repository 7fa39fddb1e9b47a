"""Reads messages of the socket that takes and forgets, many in one pass: dory's format, and the same with headers.

Comes in: bytes, and a span for each message. Goes out: a row for each, with where topic, key and value are, and a code
that says what is wrong. Topics are numbered in the order in which they come. `gateway/datagram/format.py` knows the
same rules.
"""

from __future__ import annotations

from typing import Any

from ottla.wire.kernels.calling import inlined, kernel, reads, table, writes
from ottla.wire.kernels.framing import SPAN_FIELDS, SPAN_START, SPAN_STOP

# Columns of a row. `KEY` is -1 for a null key. `HEADERS` is where the first header is, behind their number.
(CODE, TOPIC, TIME, PARTITION_KEY, HAS_PARTITION_KEY, KEY, KEY_STOP, VALUE, VALUE_STOP, HEADERS, HEADER_COUNT) = range(
    11
)
ROW_FIELDS = 11

# Columns of a topic: where its name is.
TOPIC_FIELDS = 2

# Fields of `state`: the next message, the topics so far.
MESSAGE, TOPICS = range(2)
STATE_FIELDS = 2

# Codes of a row.
SOUND, MALFORMED, UNSUPPORTED_KEY, UNSUPPORTED_VERSION = range(4)

# Return codes.
DONE, FULL = range(2)

ANY_PARTITION, BY_PARTITION_KEY, WITH_HEADERS = 256, 257, 258
HAS_HEADERS = 1
MOST_HEADERS = 1000

_KIND_BYTES, _FIXED_BYTES = 8, 10


@inlined
def _signed(data: Any, at: Any, size: Any) -> Any:
    """Read a signed big-endian number. The caller knows that its bytes are there."""
    value = int(data[at])
    if value >= 0x80:
        value -= 0x100
    for i in range(1, size):
        value = value * 256 + int(data[at + i])
    return value


@inlined
def _sized(data: Any, at: Any, stop: Any, least: Any) -> Any:
    """Read a size of 32 bits, at least `least`, and find what it measures. Returns (size, start), or (-2, at)."""
    if stop - at < 4:
        return -2, at
    size = _signed(data, at, 4)
    if size < least or size > stop - at - 4:
        return -2, at
    return size, at + 4


@inlined
def _headers_end(data: Any, at: Any, stop: Any, count: Any) -> Any:
    """Pass over the headers. Returns where they end, or -1."""
    for _ in range(count):
        if stop - at < 2:
            return -1
        size = _signed(data, at, 2)
        if size < 0 or size > stop - at - 2:
            return -1
        size, at = _sized(data, at + 2 + size, stop, -1)
        if size < -1:
            return -1
        if size > 0:
            at += size
    return at


@inlined
def _number_of(data: Any, start: Any, size: Any, topics: Any, count: Any) -> Any:
    """Return the number of a topic, or -1 if it is new. The last ones are the likeliest."""
    for back in range(count):
        number = count - 1 - back
        known = topics[number][0]
        if topics[number][1] - known != size:
            continue
        i = 0
        while i < size and data[known + i] == data[start + i]:
            i += 1
        if i == size:
            return number
    return -1


@inlined
def _read(data: Any, start: Any, stop: Any, row: Any) -> Any:
    """Fill a row but for its topic. Returns (code, start of the topic, its size)."""
    if stop - start < _KIND_BYTES or _signed(data, start, 4) != stop - start:
        return MALFORMED, 0, 0
    kind = _signed(data, start + 4, 2)
    if kind < ANY_PARTITION or kind > WITH_HEADERS:
        return UNSUPPORTED_KEY, 0, 0
    if _signed(data, start + 6, 2) != 0:
        return UNSUPPORTED_VERSION, 0, 0
    if stop - start < _FIXED_BYTES:
        return MALFORMED, 0, 0
    flags = _signed(data, start + 8, 2)
    if flags != 0 and not (kind == WITH_HEADERS and flags == HAS_HEADERS):
        return MALFORMED, 0, 0
    at = start + _FIXED_BYTES
    row[HAS_PARTITION_KEY] = 0
    row[PARTITION_KEY] = 0
    if kind == BY_PARTITION_KEY:
        if stop - at < 4:
            return MALFORMED, 0, 0
        row[HAS_PARTITION_KEY] = 1
        row[PARTITION_KEY] = _signed(data, at, 4) & 0xFFFFFFFF
        at += 4
    if stop - at < 2:
        return MALFORMED, 0, 0
    topic_size = _signed(data, at, 2)
    topic = at + 2
    if topic_size <= 0 or topic_size > stop - topic - 8:
        return MALFORMED, 0, 0
    at = topic + topic_size
    row[TIME] = _signed(data, at, 8)
    at += 8
    row[HEADERS] = 0
    row[HEADER_COUNT] = 0
    if flags == HAS_HEADERS:
        if stop - at < 2:
            return MALFORMED, 0, 0
        count = _signed(data, at, 2)
        if count < 0 or count > MOST_HEADERS:
            return MALFORMED, 0, 0
        row[HEADERS] = at + 2
        row[HEADER_COUNT] = count
        at = _headers_end(data, at + 2, stop, count)
        if at < 0:
            return MALFORMED, 0, 0
    size, at = _sized(data, at, stop, -1 if kind == WITH_HEADERS else 0)
    if size < -1:
        return MALFORMED, 0, 0
    # dory sends an empty key as a null one.
    is_null = size < 0 or (size == 0 and kind != WITH_HEADERS)
    row[KEY] = -1 if is_null else at
    row[KEY_STOP] = -1 if is_null else at + size
    at += max(size, 0)
    size, at = _sized(data, at, stop, -1 if kind == WITH_HEADERS else 0)
    if size < -1 or at + max(size, 0) != stop:
        return MALFORMED, 0, 0
    row[VALUE] = at if size >= 0 else -1
    row[VALUE_STOP] = stop if size >= 0 else -1
    return SOUND, topic, topic_size


@kernel(
    data=reads("uint8"),
    spans=table("int64", SPAN_FIELDS),
    rows=table("int64", ROW_FIELDS, written=True),
    topics=table("int64", TOPIC_FIELDS, written=True),
    state=writes("int64", STATE_FIELDS),
)
def read_datagrams(data: Any, spans: Any, rows: Any, topics: Any, state: Any) -> Any:
    """Fill a row for each span, from the message in `state`. Returns DONE, or FULL if there is no room for a topic."""
    while state[MESSAGE] < len(spans) and state[MESSAGE] < len(rows):
        number = state[MESSAGE]
        start = spans[number][SPAN_START]
        stop = spans[number][SPAN_STOP]
        row = rows[number]
        row[TOPIC] = -1
        if start < 0 or stop < start or stop > len(data):
            row[CODE] = MALFORMED
        else:
            code, topic, size = _read(data, start, stop, row)
            row[CODE] = code
            if code == SOUND:
                known = _number_of(data, topic, size, topics, state[TOPICS])
                if known < 0:
                    known = state[TOPICS]
                    if known >= len(topics):
                        return FULL
                    topics[known][0] = topic
                    topics[known][1] = topic + size
                    state[TOPICS] = known + 1
                row[TOPIC] = known
        state[MESSAGE] = number + 1
    return DONE


@kernel(
    data=reads("uint8"),
    rows=table("int64", ROW_FIELDS),
    entries=table("int64", 4, written=True),
)
def find_headers(data: Any, rows: Any, entries: Any) -> Any:
    """Write an entry for each header of the rows: where its name and its value begin and stop, -1 for a null value.

    The rows must be those of `read_datagrams`. Returns the number of entries, -1 if they do not fit.
    """
    count = 0
    for i in range(len(rows)):
        at = rows[i][HEADERS]
        for _ in range(rows[i][HEADER_COUNT]):
            if count >= len(entries) or at < 0 or at + 2 > len(data):
                return -1
            entry = entries[count]
            size = _signed(data, at, 2)
            entry[0] = at + 2
            entry[1] = at + 2 + size
            at += 2 + size
            if size < 0 or at + 4 > len(data):
                return -1
            size = _signed(data, at, 4)
            at += 4
            entry[2] = at if size >= 0 else -1
            entry[3] = at + size if size >= 0 else -1
            at += max(size, 0)
            count += 1
    return count
