"""The protocol's primitive types, for the two messages that are encoded by hand: Produce and Fetch.

Comes in: values, or a view of bytes. Goes out: bytes, or values. Byte strings come out as views and are never copied.
A length that exceeds the remaining bytes raises `WireError`.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ottla.errors import WireError

T = TypeVar("T")

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")

NO_TAGS = b"\x00"
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def unsigned_varint(value: int) -> bytes:
    """Encode an unsigned varint: seven bits per byte, least significant first."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_length(length: int) -> bytes:
    """Encode the length of a compact array, string or byte string; -1 stands for null."""
    return unsigned_varint(length + 1)


def compact_string(text: str | None) -> bytes:
    """Encode a compact, nullable string."""
    if text is None:
        return compact_length(-1)
    encoded = text.encode()
    return compact_length(len(encoded)) + encoded


class ByteReader:
    """Reads primitives from a response, one after another. Every method raises `WireError` if the bytes run out."""

    __slots__ = ("_data", "_end", "_position")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._position = 0
        self._end = len(data)

    def _take(self, size: int) -> int:
        start = self._position
        if size < 0 or size > self._end - start:
            raise WireError(f"response ends at byte {self._end}, but {size} bytes were due at byte {start}")
        self._position = start + size
        return start

    @property
    def position(self) -> int:
        """The byte it reads next."""
        return self._position

    def int8(self) -> int:
        return self._data[self._take(1)]

    def int16(self) -> int:
        value: int = _INT16.unpack_from(self._data, self._take(2))[0]
        return value

    def int32(self) -> int:
        value: int = _INT32.unpack_from(self._data, self._take(4))[0]
        return value

    def int64(self) -> int:
        value: int = _INT64.unpack_from(self._data, self._take(8))[0]
        return value

    def uuid(self) -> uuid.UUID:
        start = self._take(16)
        return uuid.UUID(bytes=bytes(self._data[start : start + 16]))

    def unpack(self, fields: struct.Struct) -> tuple[Any, ...]:
        """Read several fields of fixed size at once."""
        return fields.unpack_from(self._data, self._take(fields.size))

    def unsigned_varint(self) -> int:
        start = self._position
        if start < self._end and (first := self._data[start]) < 0x80:
            self._position = start + 1
            return first
        value = shift = 0
        while True:
            byte = self._data[self._take(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            # 32-bit values take at most five bytes.
            if shift > 28:
                raise WireError(f"a variable-length integer at byte {self._position} is too long")

    def compact_bytes(self) -> memoryview | None:
        """Return a view of a byte string, or None for null."""
        length = self.unsigned_varint() - 1
        if length < 0:
            return None
        start = self._take(length)
        return self._data[start : start + length]

    def compact_string(self) -> str | None:
        """Return text, or None for null. Bytes that are not UTF-8 are replaced."""
        data = self.compact_bytes()
        return None if data is None else str(data, "utf-8", "replace")

    def compact_array(self, read: Callable[[ByteReader], T], *, smallest: int) -> list[T]:
        """Return the entries of an array, each at least `smallest` bytes long. Null counts as empty.

        The check against the remaining bytes keeps a forged count from reserving memory.
        """
        count = self.unsigned_varint() - 1
        if count * smallest > self._end - self._position:
            raise WireError(
                f"an array of {count} entries cannot fit in the remaining {self._end - self._position} bytes"
            )
        return [read(self) for _ in range(count)]

    def tags(self) -> Iterator[tuple[int, ByteReader]]:
        """Yield the tagged fields: number and content. The caller must exhaust it to get past them."""
        for _ in range(self.unsigned_varint()):
            tag, size = self.unsigned_varint(), self.unsigned_varint()
            start = self._take(size)
            yield tag, ByteReader(self._data[start : start + size])

    def skip_tags(self) -> None:
        """Skip the tagged fields."""
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()
            self._take(self.unsigned_varint())

    def finish(self) -> None:
        """Raise `WireError` if bytes are left."""
        if self._position != self._end:
            raise WireError(f"response has {self._end - self._position} bytes after its last field")
