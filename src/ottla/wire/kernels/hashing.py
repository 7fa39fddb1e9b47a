"""The content hash behind fingerprints: 128 bits over key, value and headers of a record.

Two 64-bit lanes take the same words, sixteen bytes per step, each folding a full product of two words (the idea of the
wyhash family). Lengths are hashed too, and null has its own length, so `null`, `b""` and shifted boundaries differ.
Timestamps, offsets and partitions are not part of the content. The hash detects accidents: an attacker who chooses the
data and knows the constants could construct collisions. Any change here changes every stored fingerprint; the vectors
in the tests pin it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ottla.wire.kernels.calling import inlined
from ottla.wire.kernels.memory import load, product

# Fractional digits of pi. The values do not matter, as long as they are odd and irregular.
_A = np.uint64(0x243F6A8885A308D3)
_B = np.uint64(0x13198A2E03707345)
_C = np.uint64(0xA4093822299F31D1)
_D = np.uint64(0x082EFA98EC4E6C89)
_E = np.uint64(0x452821E638D01377)
_F = np.uint64(0xBE5466CF34E90C6D)
NULL_LENGTH = np.uint64(0xFFFFFFFFFFFFFFFF)

SEED_LOW = _E
SEED_HIGH = _F


@inlined
def _short(data: Any, at: Any, count: Any) -> Any:
    """Return up to seven bytes as one little-endian word."""
    if at + 8 <= len(data):  # one load and a mask: the bytes behind them may be anything
        return load(data, at) & ((np.uint64(1) << np.uint64(8 * count)) - np.uint64(1))
    word = np.uint64(0)
    for i in range(count):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@inlined
def absorb_length(low: Any, high: Any, length: Any) -> Any:
    """Absorb the length of what follows, or `NULL_LENGTH`, into both lanes."""
    return product(low ^ length, _A), product(high ^ length, _C)


@inlined
def absorb(low: Any, high: Any, data: Any, at: Any, count: Any) -> Any:
    """Absorb `count` bytes, after their length, into both lanes."""
    low, high = absorb_length(low, high, np.uint64(count))
    return absorb_rest(low, high, data, at, at + count)


@inlined
def absorb_block(low: Any, high: Any, data: Any, at: Any) -> Any:
    """Absorb sixteen bytes into both lanes."""
    x = load(data, at)
    y = load(data, at + 8)
    return product(x ^ _A, y ^ low), product(x ^ _C, y ^ high)


@inlined
def absorb_rest(low: Any, high: Any, data: Any, at: Any, end: Any) -> Any:
    """Absorb the bytes from `at` to `end`, which are all that is left, into both lanes."""
    while at + 16 <= end:
        low, high = absorb_block(low, high, data, at)
        at += 16
    if at < end:
        if at + 8 <= end:
            x = load(data, at)
            y = _short(data, at + 8, end - at - 8)
        else:
            x = _short(data, at, end - at)
            y = np.uint64(0)
        low = product(x ^ _B, y ^ low)
        high = product(x ^ _D, y ^ high)
    return low, high


@inlined
def finish(low: Any, high: Any) -> Any:
    """Mix the two lanes."""
    mixed = product(low ^ _B, high ^ _D)
    return mixed, product(low ^ high ^ _C, mixed ^ _A)


@inlined
def add_to(sums: Any, low: Any, high: Any) -> None:
    """Compute `sums += high:low` modulo 2**128, with `sums` as two words, the low one first."""
    before = sums[0]
    after = before + low
    sums[0] = after
    sums[1] += high
    if after < before:
        sums[1] += np.uint64(1)
