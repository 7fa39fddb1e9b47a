"""Copies pieces of memory one after the other: what a parser found, into the content of a column.

Comes in: two sources, where each piece begins, and where each one ends in the column. A piece that begins at -1 - n
begins at n of the second source. Goes out: the content. Every piece is checked before it is copied.
"""

from __future__ import annotations

from typing import Any

from ottla.wire.kernels.calling import kernel, reads, writes
from ottla.wire.kernels.memory import copy

UNFIT = -1


@kernel(data=reads("uint8"), constants=reads("uint8"), starts=reads("int64"), ends=reads("int64"), out=writes("uint8"))
def copy_pieces(data: Any, constants: Any, starts: Any, ends: Any, out: Any) -> Any:
    """Fill `out`. `ends` has one entry more than `starts` and begins with 0. Returns the bytes written, or UNFIT."""
    if len(ends) != len(starts) + 1 or ends[0] != 0:
        return UNFIT
    for i in range(len(starts)):
        start = starts[i]
        to = ends[i]
        size = ends[i + 1] - to
        if size < 0 or ends[i + 1] > len(out):
            return UNFIT
        if size == 0:
            continue
        if start >= 0:
            if start > len(data) - size:
                return UNFIT
            copy(out, to, data, start, size)
        else:
            start = -1 - start
            if start > len(constants) - size:
                return UNFIT
            copy(out, to, constants, start, size)
    return ends[len(starts)]
