"""Decodes a few records into columns in Python: for so few, calling a kernel takes longer than the work.

Comes in: segments of a chunk, as in `decode`. Goes out: the same columns as from `ColumnBuffers`. Anything unusual
(headers, times that do not fit in microseconds, damage) must be left to the kernels, which can report it.
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
"""Times between these certainly fit in microseconds."""
_NO_HEADERS = 0


class SmallDecode:
    """The columns of a few records without headers: what `ColumnBuffers` is for the kernels."""

    clamped = 0

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._times: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []

    @property
    def rows(self) -> int:
        """The number of records decoded so far."""
        return len(self._offsets)

    def fill(self, source: memoryview, segments: Sequence[tuple[int, ...]], start: int, stop: int) -> bool:
        """Decode the records of uncompressed `segments` with offsets in `[start, stop)`. False if the kernels must."""
        try:
            return all(
                self._read(bytes(source[segment[k.START] : segment[k.END]]), segment, start, stop)
                for segment in segments
            )
        except IndexError:
            return False  # the data ends within a record

    def _read(self, data: bytes, segment: tuple[int, ...], start: int, stop: int) -> bool:
        base_offset, base_time = segment[k.BASE_OFFSET], segment[k.BASE_TIME]
        position, last = 0, -1
        for _ in range(segment[k.COUNT]):
            length, position = _varint(data, position)
            end = position + length
            time_delta, position = _varint(data, position + 1)  # skips the attributes of a record: none are defined
            delta, position = _varint(data, position)
            key_size, key_start = _varint(data, position)
            value_size, value_start = _varint(data, key_start + max(key_size, 0))
            position = value_start + max(value_size, 0)
            time = segment[k.APPEND_TIME] if segment[k.IS_APPEND_TIME] else base_time + time_delta
            # Whatever the kernel would report as a fault or treat specially is left to it.
            if (
                not last < delta <= segment[k.LAST_DELTA]
                or min(key_size, value_size) < -1
                or position + 1 != end
                or data[position] != _NO_HEADERS
                or not _EARLIEST_MS <= time <= _LATEST_MS
            ):
                return False
            position, last = end, delta
            if start <= base_offset + delta < stop:
                self._offsets.append(base_offset + delta)
                self._times.append(time * 1000)
                self._keys.append(None if key_size < 0 else data[key_start : key_start + key_size])
                self._values.append(None if value_size < 0 else data[value_start : value_start + value_size])
        return position == len(data)

    def column(self, name: str, data_type: pa.DataType) -> pa.Array:
        """Return a column as an Arrow array."""
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


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Return a zigzag number and the position after it. Raises `IndexError` if the data ends or it is too long."""
    byte = data[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    number, shift = byte & 0x7F, 7
    for index in range(position + 1, position + 5):
        byte = data[index]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), index + 1
        shift += 7
    raise IndexError


def _numbers(data_type: pa.DataType, numbers: list[int]) -> pa.Array:
    """Build a column of 64-bit numbers without numpy."""
    packed = pa.py_buffer(struct.pack(f"<{len(numbers)}q", *numbers))
    return pa.Array.from_buffers(data_type, len(numbers), [None, packed])


def _binary(data_type: pa.DataType, contents: list[bytes | None]) -> pa.Array:
    """Build a column of byte strings: validity bitmap, offsets, data."""
    present = [content for content in contents if content is not None]
    if not present:
        return _nulls(data_type, len(contents))
    ends, bits, end = [0], 0, 0
    for row, content in enumerate(contents):
        if content is not None:
            end += len(content)
            bits |= 1 << row
        ends.append(end)
    nulls = len(contents) - len(present)
    valid = pa.py_buffer(bits.to_bytes(-(-len(contents) // 8), "little")) if nulls else None
    packed = pa.py_buffer(struct.pack(f"<{len(ends)}i", *ends))
    buffers = [valid, packed, pa.py_buffer(b"".join(present))]
    return pa.Array.from_buffers(data_type, len(contents), buffers, nulls)


@lru_cache(maxsize=4 * MOST_RECORDS)
def _nulls(data_type: pa.DataType, rows: int) -> pa.Array:
    return pa.nulls(rows, data_type)
