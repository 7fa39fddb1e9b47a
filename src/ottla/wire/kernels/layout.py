"""Where CPython and numpy store what a kernel needs of its arguments, and a check that they do.

The machine code reads arrays, named tuples and bytes in place: asking each of twenty arrays for its address from Python
takes longer than decoding many records. The offsets are those of 64-bit CPython with a GIL, and part of numpy's binary
interface. If they differ, `is_known` returns False and numba unpacks the arguments instead.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from ottla.wire.kernels.calling import Array

# In an object. The items of a tuple and the content of bytes are in the object itself; a list has the address of its
# items. Since CPython 3.14 the hash of a tuple comes before its items.
TYPE, SIZE, LIST_ITEMS, CONTENT = 8, 16, 24, 32
TUPLE_ITEMS = tuple.__basicsize__
# In an array.
DATA, DIMENSIONS, SHAPE, DTYPE, FLAGS = 16, 24, 32, 56, 64
IN_ONE_PIECE, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400


def known(kinds: Iterable[Any]) -> list[Any]:
    """Return the objects that machine code compares parts of its arguments with, in the order it gets them."""
    objects: list[Any] = [None, np.ndarray, bytes, list]
    for kind in kinds:
        inner: list[Any] = []
        if isinstance(kind, Array):
            inner = [np.dtype(kind.dtype)]
        elif isinstance(kind, tuple):
            inner = [type(kind), *known(kind)]
        objects += [candidate for candidate in inner if not any(candidate is present for present in objects)]
    return objects


def is_known() -> bool:
    """Whether machine code of an image runs here and finds its arguments."""
    if (sys.implementation.name, sys.platform, os.uname().machine) != ("cpython", "linux", "x86_64"):
        return False
    if object.__basicsize__ != TYPE + 8 or np.ndarray.__basicsize__ < FLAGS + 4 or bytes.__basicsize__ != CONTENT + 1:
        return False
    array = np.zeros((3, 5), np.int32)
    array.flags.writeable = False
    content, pair = b"some bytes", (array, array)
    sequence = [content, array, content]
    (shape,), (items,) = _read("P", array, SHAPE), _read("P", sequence, LIST_ITEMS)
    return (
        _read("P", array, TYPE) == (id(np.ndarray),)
        and _read("P", array, DATA) == (array.ctypes.data,)
        and _read("i", array, DIMENSIONS) == (2,)
        and struct.unpack("2q", ctypes.string_at(shape, 16)) == array.shape
        and _read("P", array, DTYPE) == (id(np.dtype(np.int32)),)
        and _read("i", array, FLAGS)[0] & (IN_ONE_PIECE | ALIGNED | WRITEABLE) == IN_ONE_PIECE | ALIGNED
        and _read("2P", pair, TUPLE_ITEMS) == (id(array), id(array))
        and _read("q", sequence, SIZE) == (len(sequence),)
        and struct.unpack("3P", ctypes.string_at(items, 24)) == tuple(map(id, sequence))
        and _read("P", content, TYPE) == (id(bytes),)
        and _read("q", content, SIZE) == (len(content),)
        and ctypes.string_at(id(content) + CONTENT, len(content)) == content
    )


def _read(layout: str, owner: Any, place: int) -> tuple[Any, ...]:
    return struct.unpack(layout, ctypes.string_at(id(owner) + place, struct.calcsize(layout)))
