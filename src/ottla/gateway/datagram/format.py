"""One message of the socket to write to and forget, as bytes and back.

dory's AnyPartition (256) and PartitionKey (257), big endian, and our 258: flag 1 says that headers come before the key,
and a size of -1 is a null key or value. A value comes in, bytes go out, and the other way round. Pure; for many
messages at once there is `reading.py`, which follows the same rules.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from ottla.errors import InputError
from ottla.wire.kernels import datagrams as k

_START = struct.Struct(">ihhh")
_KIND_BYTES = 8
_LARGEST = (1 << 31) - 1
_MOST_TOPIC_BYTES = (1 << 15) - 1


class Fault(IntEnum):
    """Why bytes are no message."""

    MALFORMED = k.MALFORMED
    UNSUPPORTED_KEY = k.UNSUPPORTED_KEY
    UNSUPPORTED_VERSION = k.UNSUPPORTED_VERSION


@dataclass(frozen=True, slots=True)
class Message:
    """What a program sends. `timestamp_ms` is in milliseconds since 1970."""

    topic: bytes
    value: bytes | None
    key: bytes | None = None
    timestamp_ms: int = 0
    partition_key: int | None = None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def write(message: Message) -> bytes:
    """Return the bytes of a message, in dory's format if it can say that. Raises `InputError`."""
    if not 0 < len(message.topic) <= _MOST_TOPIC_BYTES:
        raise InputError(f"the topic has {len(message.topic)} bytes, expected 1 to {_MOST_TOPIC_BYTES}")
    is_ours = bool(message.headers) or message.key == b"" or message.value is None
    if is_ours and message.partition_key is not None:
        raise InputError("a message with a partition key has no headers, no empty key and no null value")
    if len(message.headers) > k.MOST_HEADERS:
        raise InputError(f"the message has {len(message.headers)} headers, at most {k.MOST_HEADERS} are accepted")
    kind, flags, body = k.ANY_PARTITION, 0, b""
    if message.partition_key is not None:
        kind, body = k.BY_PARTITION_KEY, struct.pack(">I", message.partition_key & 0xFFFFFFFF)
    body += struct.pack(">h", len(message.topic)) + message.topic + struct.pack(">q", message.timestamp_ms)
    if is_ours:
        kind = k.WITH_HEADERS
        if message.headers:
            flags = k.HAS_HEADERS
            body += struct.pack(">h", len(message.headers))
            for name, content in message.headers:
                body += struct.pack(">h", len(name)) + name + _sized(content, null=True)
    body += _sized(message.key, null=is_ours) + _sized(message.value, null=is_ours)
    size = _START.size + len(body)
    if size > _LARGEST:
        raise InputError(f"the message has {size} bytes, at most {_LARGEST} are possible")
    return _START.pack(size, kind, 0, flags) + body


def read(data: bytes) -> Message | Fault:
    """Return the message that `data` is, or why it is none."""
    if len(data) < _KIND_BYTES or struct.unpack_from(">i", data)[0] != len(data):
        return Fault.MALFORMED
    kind, version = struct.unpack_from(">hh", data, 4)
    if kind not in (k.ANY_PARTITION, k.BY_PARTITION_KEY, k.WITH_HEADERS):
        return Fault.UNSUPPORTED_KEY
    if version != 0:
        return Fault.UNSUPPORTED_VERSION
    try:
        return _read_body(_Cursor(data, _KIND_BYTES), kind)
    except _Malformed:
        return Fault.MALFORMED


def _read_body(cursor: _Cursor, kind: int) -> Message:
    is_ours = kind == k.WITH_HEADERS
    flags = cursor.number("h")
    if flags != 0 and not (is_ours and flags == k.HAS_HEADERS):
        raise _Malformed
    partition_key = cursor.number("I") if kind == k.BY_PARTITION_KEY else None
    topic = cursor.take(cursor.number("h"))
    timestamp_ms = cursor.number("q")
    headers = []
    if flags == k.HAS_HEADERS:
        count = cursor.number("h")
        if not 0 <= count <= k.MOST_HEADERS:
            raise _Malformed
        for _ in range(count):
            name = cursor.take(cursor.number("h"))
            headers.append((name, cursor.sized(null=True)))
    key, value = cursor.sized(null=is_ours), cursor.sized(null=is_ours)
    if not topic or cursor.at != len(cursor.data):
        raise _Malformed
    key = key if key or is_ours else None  # dory sends an empty key as a null one
    return Message(topic, value, key, timestamp_ms, partition_key, tuple(headers))


def _sized(content: bytes | None, *, null: bool) -> bytes:
    if content is None:
        return struct.pack(">i", -1 if null else 0)
    return struct.pack(">i", len(content)) + content


class _Malformed(Exception):
    pass


class _Cursor:
    """Reads one message from front to back."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if not 0 <= size <= len(self.data) - self.at:
            raise _Malformed
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, kind: str) -> int:
        """Return the next number."""
        layout = struct.Struct(f">{kind}")
        return int(layout.unpack(self.take(layout.size))[0])

    def sized(self, *, null: bool) -> bytes | None:
        """Return what comes behind its size, None for -1."""
        size = self.number("i")
        return None if null and size == -1 else self.take(size)
