"""The protocol's primitive types, for the two messages that are written and read by hand: Produce and Fetch.

Comes in: values or a view on bytes. Goes out: bytes or values; byte strings are views, never copies. A length that
does not fit in what is left raises `WireError`.
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
    """Seven bits a byte, least significant first."""
    if value < 0x80:
        return _ONE_BYTE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_length(length: int) -> bytes:
    """The length of a compact array, string or byte string; -1 stands for null."""
    return unsigned_varint(length + 1)


def compact_string(text: str | None) -> bytes:
    """A compact, nullable string."""
    if text is None:
        return compact_length(-1)
    encoded = text.encode()
    return compact_length(len(encoded)) + encoded


class ByteReader:
    """Reads primitives one after another from a response."""

    __slots__ = ("_at", "_data", "_end")

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0
        self._end = len(data)

    def _take(self, size: int) -> int:
        at = self._at
        if size < 0 or size > self._end - at:
            raise WireError(f"response ends at byte {self._end}, but {size} bytes were due at byte {at}")
        self._at = at + size
        return at

    @property
    def at(self) -> int:
        """How far it is."""
        return self._at

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
        at = self._take(16)
        return uuid.UUID(bytes=bytes(self._data[at : at + 16]))

    def unpack(self, fields: struct.Struct) -> tuple[Any, ...]:
        """Several fields of fixed size at once."""
        return fields.unpack_from(self._data, self._take(fields.size))

    def unsigned_varint(self) -> int:
        at = self._at
        if at < self._end and (first := self._data[at]) < 0x80:
            self._at = at + 1
            return first
        value = shift = 0
        while True:
            byte = self._data[self._take(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise WireError(f"a variable-length integer at byte {self._at} is too long")

    def compact_bytes(self) -> memoryview | None:
        """A view on a byte string, or None for null."""
        length = self.unsigned_varint() - 1
        if length < 0:
            return None
        at = self._take(length)
        return self._data[at : at + length]

    def compact_string(self) -> str | None:
        """Text, or None for null; what is not UTF-8 is replaced."""
        data = self.compact_bytes()
        return None if data is None else str(data, "utf-8", "replace")

    def compact_array(self, read: Callable[[ByteReader], T], *, smallest: int) -> list[T]:
        """The entries of an array (null counts as empty), each of at least `smallest` bytes."""
        count = self.unsigned_varint() - 1
        if count * smallest > self._end - self._at:
            raise WireError(f"an array of {count} entries cannot fit in the {self._end - self._at} bytes that are left")
        return [read(self) for _ in range(count)]

    def tags(self) -> Iterator[tuple[int, ByteReader]]:
        """The tagged fields: number and content. They must be walked to get past them."""
        for _ in range(self.unsigned_varint()):
            tag, size = self.unsigned_varint(), self.unsigned_varint()
            at = self._take(size)
            yield tag, ByteReader(self._data[at : at + size])

    def skip_tags(self) -> None:
        """Go past the tagged fields."""
        for _ in range(self.unsigned_varint()):
            self.unsigned_varint()
            self._take(self.unsigned_varint())

    def finish(self) -> None:
        """Make sure that nothing is left."""
        if self._at != self._end:
            raise WireError(f"response has {self._end - self._at} bytes after its last field")
