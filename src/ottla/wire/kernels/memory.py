"""Operations that numba would not compile well: block copies, eight-byte loads, and a folded product of two words.

Each is a Python function that defines exactly what it does (fuzzing runs it), with a compiled version of a few
instructions in `twins`.
"""

from __future__ import annotations

import ctypes
from typing import Any

_WORD = (1 << 64) - 1


def copy(out: Any, to: Any, data: Any, start: Any, count: Any) -> None:
    """`out[to : to + count] = data[start : start + count]`; the two must not overlap."""
    if to < 0 or start < 0 or count < 0 or to + count > len(out) or start + count > len(data):
        raise IndexError("copy outside its buffers")
    out[to : to + count] = data[start : start + count]


def load(data: Any, at: Any) -> Any:
    """Return the eight bytes at `at` as one little-endian unsigned word."""
    if at < 0 or at + 8 > len(data):
        raise IndexError("load outside its buffer")
    return int.from_bytes(bytes(data[at : at + 8]), "little")


def word_at(address: Any) -> Any:
    """Return the eight bytes at an address as one little-endian signed word. The caller knows that they exist."""
    return int.from_bytes(ctypes.string_at(int(address), 8), "little", signed=True)


def copy_from(out: Any, to: Any, address: Any, count: Any) -> None:
    """Copy like `copy`, from an address at which the caller knows `count` bytes to be."""
    if to < 0 or count < 0 or to + count > len(out):
        raise IndexError("copy outside its buffer")
    out[to : to + count] = bytearray(ctypes.string_at(int(address), int(count)))


def product(a: Any, b: Any) -> Any:
    """Return both halves of the 128-bit product of two unsigned words and the words themselves, combined by xor.

    The words themselves are included because a zero would otherwise erase the other word.
    """
    full = int(a) * int(b)
    return (full ^ (full >> 64) ^ int(a) ^ int(b)) & _WORD
