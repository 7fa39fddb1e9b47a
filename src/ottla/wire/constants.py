"""Columns that hold the same value in every row, made once and sliced for each batch.

Comes in: a value and a number of rows. Goes out: an Arrow array. Arrow's own `repeat` takes longer than decoding the
records beside it.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

_FEWEST_ROWS = 1 << 10
_KEPT_BYTES = 1 << 22
"""A longer column is made for its batch and not kept."""
_MOST_VALUES = 256
_kept: dict[str | int, pa.Array] = {}


def constant(value: str | int, rows: int) -> pa.Array:
    """`rows` times the value, as Arrow's string or int32. Batches may share its memory."""
    kept = _kept.get(value)
    if kept is None or len(kept) < rows:
        size = 1 << max(rows - 1, _FEWEST_ROWS - 1).bit_length()
        if size * _row_bytes(value) > _KEPT_BYTES:
            return _made(value, rows)
        kept = _made(value, size)
        if len(_kept) >= _MOST_VALUES:
            _kept.clear()  # a program with that many topics; those in use come back at once
        _kept[value] = kept
    return kept.slice(0, rows)


def _row_bytes(value: str | int) -> int:
    return 4 if isinstance(value, int) else 4 + len(value.encode())


def _made(value: str | int, rows: int) -> pa.Array:
    # From buffers: `pa.array` and `pa.scalar` import pandas where it is installed, which takes 45 MB.
    if isinstance(value, int):
        return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(struct.pack("<i", value) * rows)])
    text = value.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(text * rows)])
