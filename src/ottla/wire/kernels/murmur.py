"""Kafka's murmur2 over keys: for a whole column at once, and for one key.

Comes in: the arrays of a binary column, and the partitions already chosen. Goes out: the partitions of the rows with a
key. The Java client chooses a partition with this hash, so a record goes where every other client puts its key. Words
are 32 bits wide and kept in 64, so a product of two never overflows. Test vectors pin it, and a Java class confirms
them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ottla.wire.kernels.calling import BYTES, NUMBER, inlined, kernel, reads, writes
from ottla.wire.kernels.memory import load

_SEED = np.uint64(0x9747B28C)
_FACTOR = np.uint64(0x5BD1E995)
_WORD = np.uint64(0xFFFFFFFF)
_POSITIVE = np.uint64(0x7FFFFFFF)
OPEN = -1
"""A row whose partition is not chosen yet."""


@inlined
def _times(word: Any) -> Any:
    return (word * _FACTOR) & _WORD


@inlined
def _absorb(hashed: Any, word: Any) -> Any:
    """Mix one word into the hash."""
    word = _times(word)
    return _times(hashed) ^ _times(word ^ (word >> np.uint64(24)))


@inlined
def _byte(data: Any, at: Any, place: Any) -> Any:
    """Return a byte as part of a little-endian word."""
    return np.uint64(data[at]) << np.uint64(8 * place)


@inlined
def _finish(hashed: Any, data: Any, at: Any, end: Any) -> Any:
    """Absorb the rest, four bytes per step and then up to three, and mix."""
    while at + 4 <= end:
        word = _byte(data, at, 0) | _byte(data, at + 1, 1) | _byte(data, at + 2, 2) | _byte(data, at + 3, 3)
        hashed = _absorb(hashed, word)
        at += 4
    if at < end:
        for place in range(end - at):
            hashed ^= _byte(data, at + place, place)
        hashed = _times(hashed)
    hashed = _times(hashed ^ (hashed >> np.uint64(13)))
    return hashed ^ (hashed >> np.uint64(15))


@inlined
def _hash(data: Any, at: Any, end: Any) -> Any:
    hashed = _SEED ^ np.uint64(end - at)
    while at + 8 <= end:
        words = load(data, at)
        hashed = _absorb(_absorb(hashed, words & _WORD), words >> np.uint64(32))
        at += 8
    return _finish(hashed, data, at, end)


# A kernel of a few nanoseconds: releasing the GIL for so little invites every other thread to take it. With three busy
# threads a call took 4.4 us instead of 0.9 (medians).
@kernel(keeps_gil=True, key=BYTES)
def hash_key(key: Any) -> Any:
    """Return the hash of a key as an unsigned word. Takes `bytes` directly: wrapping them in an array costs more."""
    return _finish(_SEED ^ np.uint64(len(key)), key, 0, len(key))


@kernel(ends=reads("int64"), data=reads("uint8"), nulls=reads("uint8"), partitions=NUMBER, out=writes("int32"))
def hash_rows(ends: Any, data: Any, nulls: Any, partitions: Any, out: Any) -> Any:
    """Choose a partition for each row that has a key and is open in `out`. Returns how many rows stay open.

    A column without `ends` has no keys. If the column ends too early or a key is outside `data`, it stops and returns
    -1 - row.
    """
    still_open = 0
    for row in range(len(out)):
        if out[row] != OPEN:
            continue
        if len(ends) == 0 or (row < len(nulls) and nulls[row] != 0):
            still_open += 1
            continue
        if row + 1 >= len(ends):
            return -1 - row
        start = ends[row]
        end = ends[row + 1]
        if start < 0 or end < start or end > len(data):
            return -1 - row
        out[row] = (_hash(data, start, end) & _POSITIVE) % np.uint64(partitions)
    return still_open
