"""Reads bytes objects in place: their lengths, and their content one after the other.

Comes in: a list of bytes and None, which the caller keeps and must not change meanwhile. Goes out: where each one ends,
which are None, and the content. Of any other object only the type is read. The offsets that are read here are in
`layout`; callers must check `loading.is_possible` first.
"""

from __future__ import annotations

from typing import Any

from ottla.wire.kernels.calling import ITEMS, NUMBER, kernel, reads, writes
from ottla.wire.kernels.layout import CONTENT, SIZE, TYPE
from ottla.wire.kernels.memory import copy_from, word_at

UNFIT = -1


@kernel(keeps_gil=True, items=ITEMS, kind=NUMBER, none=NUMBER, ends=writes("int64", 1), nulls=writes("uint8"))
def measure(items: Any, kind: Any, none: Any, ends: Any, nulls: Any) -> Any:
    """Fill `ends` and `nulls`. Returns the number of Nones, or UNFIT if there is anything other than bytes and None.

    `kind` is the address of the type `bytes`, `none` that of None.
    """
    if len(ends) != len(items) + 1 or len(nulls) != len(items):
        return UNFIT
    total = 0
    missing = 0
    ends[0] = 0
    for i in range(len(items)):
        item = items[i]
        nulls[i] = 0
        if item == none:
            nulls[i] = 1
            missing += 1
        elif word_at(item + TYPE) == kind:
            total += word_at(item + SIZE)
        else:
            return UNFIT
        ends[i + 1] = total
    return missing


@kernel(keeps_gil=True, items=ITEMS, none=NUMBER, ends=reads("int64"), out=writes("uint8"))
def gather(items: Any, none: Any, ends: Any, out: Any) -> Any:
    """Copy the content of what `measure` accepted. Returns the bytes written, or UNFIT if it has changed."""
    if len(ends) != len(items) + 1 or ends[len(items)] > len(out):
        return UNFIT
    at = 0
    for i in range(len(items)):
        item = items[i]
        if item == none:
            continue
        size = word_at(item + SIZE)
        if at != ends[i] or size != ends[i + 1] - at:
            return UNFIT
        copy_from(out, at, item + CONTENT, size)
        at += size
    return at
