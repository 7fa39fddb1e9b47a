"""Variable-length integers, zigzag encoded: seven bits per byte, least significant first.

Readers return the value and the next position. A position of `SHORT` means that the bytes ended first, `LONG` that the
integer is longer than its type allows.
"""

from __future__ import annotations

from typing import Any

from ottla.wire.kernels.calling import inlined

SHORT = -1
LONG = -2
_MAX = 0x7FFFFFFFFFFFFFFF


@inlined
def read_int(data: Any, at: Any, end: Any) -> Any:
    """Read a 32-bit integer of at most five bytes."""
    if at >= end:
        return 0, SHORT
    byte = int(data[at])
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    raw = byte & 0x7F
    shift = 7
    while shift < 35:
        if at >= end:
            return 0, SHORT
        byte = int(data[at])
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw > 0xFFFFFFFF:
                return 0, LONG
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
    return 0, LONG


@inlined
def read_long(data: Any, at: Any, end: Any) -> Any:
    """Read a 64-bit integer of at most ten bytes."""
    if at >= end:
        return 0, SHORT
    byte = int(data[at])
    at += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at
    raw = byte & 0x7F
    shift = 7
    while shift < 70:
        if at >= end:
            return 0, SHORT
        byte = int(data[at])
        at += 1
        if shift == 63 and byte > 1:
            return 0, LONG
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            # The sign bit of `raw` is data here, hence the logical shift.
            return ((raw >> 1) & _MAX) ^ -(raw & 1), at
        shift += 7
    return 0, LONG


@inlined
def int_size(value: Any) -> Any:
    """Return the number of bytes that `write` takes for a value of at most 64 bits."""
    raw = (value << 1) ^ (value >> 63)
    size = 1
    # A negative word has its top bit set: ten bytes. Compare before shifting so that the shift stays arithmetic-free.
    if raw < 0:
        return 10
    while raw > 0x7F:
        raw >>= 7
        size += 1
    return size


@inlined
def write(out: Any, at: Any, value: Any) -> Any:
    """Write a value of at most 64 bits and return the next position. The caller has made room."""
    raw = (value << 1) ^ (value >> 63)
    if 0 <= raw < 0x80:
        out[at] = raw
        return at + 1
    while True:
        byte = raw & 0x7F
        raw = (raw >> 7) & 0x01FFFFFFFFFFFFFF
        if raw == 0:
            out[at] = byte
            return at + 1
        out[at] = byte | 0x80
        at += 1
