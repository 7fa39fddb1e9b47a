"""A few records into columns, in Python: for so few the way into a kernel and back takes longer than the work.

Segments of a chunk come in, as in `decode`; columns go out, the same as from a `Room`. Whatever is out of the ordinary
(headers, times beyond microseconds, damage) is left to the kernels, which know what to say of it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa

from ottla.wire.kernels import decoding as k

MOST_RECORDS = 8
MOST_BYTES = 1 << 14
_EARLIEST_MS, _LATEST_MS = 0, 1 << 52
"""Of these times it is clear that they fit in microseconds."""
_NO_HEADERS = 0


class SmallDecode:
    """Where a few records without headers are laid out: what `Room` is to the kernels."""

    clamped = 0

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []

    @property
    def rows(self) -> int:
        """Records laid out so far."""
        return len(self._offsets)

    def fill(self, source: memoryview, segments: Sequence[tuple[int, ...]], start: int, stop: int) -> bool:
        """Lays out the records of uncompressed `segments` with offsets in `[start, stop)`; False if kernels must."""
        try:
            return all(
                self._read(bytes(source[segment[k.START] : segment[k.END]]), segment, start, stop)
                for segment in segments
            )
        except IndexError:
            return False  # it ends within a record

    def _read(self, data: bytes, segment: tuple[int, ...], start: int, stop: int) -> bool:
        base_offset, base_time = segment[k.BASE_OFFSET], segment[k.BASE_TIME]
        at, last = 0, -1
        for _ in range(segment[k.COUNT]):
            length, at = _varint(data, at)
            end = at + length
            time_delta, at = _varint(data, at + 1)  # past the attributes of a record: none are defined
            delta, at = _varint(data, at)
            key_size, key_at = _varint(data, at)
            value_size, value_at = _varint(data, key_at + max(key_size, 0))
            at = value_at + max(value_size, 0)
            time = segment[k.APPEND_TIME] if segment[k.IS_APPEND_TIME] else base_time + time_delta
            if (
                not last < delta <= segment[k.LAST_DELTA]
                or min(key_size, value_size) < -1
                or at + 1 != end
                or data[at] != _NO_HEADERS
                or not _EARLIEST_MS <= time <= _LATEST_MS
            ):
                return False
            at, last = end, delta
            if start <= base_offset + delta < stop:
                self._offsets.append(base_offset + delta)
                self._times.append(time * 1000)
                self._keys.append(None if key_size < 0 else data[key_at : key_at + key_size])
                self._values.append(None if value_size < 0 else data[value_at : value_at + value_size])
        return at == len(data)

    def column(self, name: str, data_type: pa.DataType) -> pa.Array:
        """One of the columns that vary, as an Arrow array."""
        match name:
            case "offset":
                return _numbers(data_type, self._offsets)
            case "timestamp":
                return _numbers(data_type, self._times)
            case "key":
                return _binary(data_type, self._keys)
            case "value":
                return _binary(data_type, self._values)
            case _:
                return _nulls(data_type, self.rows)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in zigzag and where the next one begins. IndexError where the data ends, or for one that is too long."""
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    number, shift = byte & 0x7F, 7
    for following in range(at + 1, at + 5):
        byte = data[following]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), following + 1
        shift += 7
    raise IndexError


def _numbers(data_type: pa.DataType, numbers: list[int]) -> pa.Array:
    packed = pa.py_buffer(struct.pack(f"<{len(numbers)}q", *numbers))
    return pa.Array.from_buffers(data_type, len(numbers), [None, packed])


def _binary(data_type: pa.DataType, contents: list[bytes | None]) -> pa.Array:
    there = [content for content in contents if content is not None]
    if not there:
        return _nulls(data_type, len(contents))
    ends, bits, reached = [0], 0, 0
    for number, content in enumerate(contents):
        if content is not None:
            reached += len(content)
            bits |= 1 << number
        ends.append(reached)
    nulls = len(contents) - len(there)
    valid = pa.py_buffer(bits.to_bytes(-(-len(contents) // 8), "little")) if nulls else None
    packed = pa.py_buffer(struct.pack(f"<{len(ends)}i", *ends))
    buffers = [valid, packed, pa.py_buffer(b"".join(there))]
    return pa.Array.from_buffers(data_type, len(contents), buffers, nulls)


@lru_cache(maxsize=4 * MOST_RECORDS)
def _nulls(data_type: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, data_type)
