"""Builds an uncompressed batch of one record, for a record that does not wait for others.

Comes in: value, key, time and producer. Goes out: a `NewBatch`, identical to what the kernels make. It is Python
because calling a kernel takes ten times as long as the work for one record.
"""

from __future__ import annotations

from ottla.wire.batch import CHECKED_FIELDS, HEADER_BYTES, LENGTH_END, MAGIC, BatchHeader, Codec
from ottla.wire.checksums import crc32c
from ottla.wire.encode import NO_EPOCH, NO_PRODUCER, NewBatch

_SHORT = 1 << 13
"""Lengths below this take two bytes at most."""


def one_record(
    value: bytes | None,
    key: bytes | None,
    *,
    now_ms: int,
    producer: tuple[int, int, int] = (NO_PRODUCER, NO_PRODUCER, NO_PRODUCER),
) -> NewBatch:
    """Return the record in its own batch. `producer` is id, epoch and sequence."""
    # Attributes, then the deltas of time and offset, which are 0 for the only record.
    body = b"\x00\x00\x00%b%b\x00" % (_field(key), _field(value))
    records = _varint(len(body)) + body
    length = HEADER_BYTES - LENGTH_END + len(records)
    fields = (int(Codec.NONE), 0, now_ms, now_ms, *producer, 1)
    crc = crc32c(records, crc32c(CHECKED_FIELDS.pack(*fields)))
    return NewBatch(BatchHeader(0, length, NO_EPOCH, MAGIC, crc, *fields), memoryview(records))


def _field(content: bytes | None) -> bytes:
    return b"\x01" if content is None else _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Encode a non-negative number in zigzag."""
    if number < 64:
        return bytes((number << 1,))
    if number < _SHORT:
        return bytes(((number << 1) & 0x7F | 0x80, number >> 6))
    out = bytearray()
    left = number << 1
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)
