"""Where CPython and numpy keep what a kernel needs of its arguments, and a look whether they do.

The machine code reads arrays, named tuples and bytes where they lie: asking each of twenty arrays for its address from
Python takes longer than decoding many records. These places are those of 64-bit CPython with a GIL and are part of
numpy's binary interface; where they are others, `is_known` says so and numba looks at the arguments instead.
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

# In an object; the items of a tuple and the content of bytes lie in the object itself, those of a list elsewhere: it
# has their address in the place of the first one.
TYPE, SIZE, ITEMS, CONTENT = 8, 16, 24, 32
# In an array.
DATA, DIMENSIONS, SHAPE, DTYPE, FLAGS = 16, 24, 32, 56, 64
IN_ONE_PIECE, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400


def known(kinds: Iterable[Any]) -> list[Any]:
    """The objects with which machine code compares parts of its arguments, in the order in which it is given them."""
    found: list[Any] = [None, np.ndarray, bytes, list]
    for kind in kinds:
        inner: list[Any] = []
        if isinstance(kind, Array):
            inner = [np.dtype(kind.dtype)]
        elif isinstance(kind, tuple):
            inner = [type(kind), *known(kind)]
        found += [other for other in inner if not any(other is there for there in found)]
    return found


def is_known() -> bool:
    """Whether machine code of an image runs here, and finds its arguments."""
    if (sys.implementation.name, sys.platform, os.uname().machine) != ("cpython", "linux", "x86_64"):
        return False
    if object.__basicsize__ != TYPE + 8 or np.ndarray.__basicsize__ < FLAGS + 4 or bytes.__basicsize__ != CONTENT + 1:
        return False
    array = np.zeros((3, 5), np.int32)
    array.flags.writeable = False
    content, pair = b"some bytes", (array, array)
    listed = [content, array, content]
    (shape,), (items,) = _read("P", array, SHAPE), _read("P", listed, ITEMS)
    return (
        _read("P", array, TYPE) == (id(np.ndarray),)
        and _read("P", array, DATA) == (array.ctypes.data,)
        and _read("i", array, DIMENSIONS) == (2,)
        and struct.unpack("2q", ctypes.string_at(shape, 16)) == array.shape
        and _read("P", array, DTYPE) == (id(np.dtype(np.int32)),)
        and _read("i", array, FLAGS)[0] & (IN_ONE_PIECE | ALIGNED | WRITEABLE) == IN_ONE_PIECE | ALIGNED
        and _read("2P", pair, ITEMS) == (id(array), id(array))
        and _read("q", listed, SIZE) == (len(listed),)
        and struct.unpack("3P", ctypes.string_at(items, 24)) == tuple(map(id, listed))
        and _read("P", content, TYPE) == (id(bytes),)
        and _read("q", content, SIZE) == (len(content),)
        and ctypes.string_at(id(content) + CONTENT, len(content)) == content
    )


def _read(layout: str, of: Any, place: int) -> tuple[Any, ...]:
    return struct.unpack(layout, ctypes.string_at(id(of) + place, struct.calcsize(layout)))
