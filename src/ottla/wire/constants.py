"""Columns with the same value in every row, built once and sliced for each batch.

Comes in: a value and a number of rows. Goes out: an Arrow array. It must not call Arrow's `repeat`, which takes longer
than decoding the records next to it.
"""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa

_MIN_ROWS = 1 << 10
_MAX_CACHED_BYTES = 1 << 22
"""A longer column is built for its batch and not cached."""
_MAX_VALUES = 256
_cache: dict[str | int, pa.Array] = {}


def constant(value: str | int, rows: int) -> pa.Array:
    """Return the value repeated `rows` times, as Arrow string or int32. Batches may share its memory."""
    column = _cache.get(value)
    if column is None or len(column) < rows:
        size = 1 << max(rows - 1, _MIN_ROWS - 1).bit_length()
        if size * _row_bytes(value) > _MAX_CACHED_BYTES:
            return _build(value, rows)
        column = _build(value, size)
        if len(_cache) >= _MAX_VALUES:
            _cache.clear()  # a program with this many topics: those in use come back at once
        _cache[value] = column
    return column.slice(0, rows)


def _row_bytes(value: str | int) -> int:
    return 4 if isinstance(value, int) else 4 + len(value.encode())


def _build(value: str | int, rows: int) -> pa.Array:
    # Built from buffers: `pa.array` and `pa.scalar` import pandas if it is installed, which takes 45 MB.
    if isinstance(value, int):
        return pa.Array.from_buffers(pa.int32(), rows, [None, pa.py_buffer(struct.pack("<i", value) * rows)])
    text = value.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return pa.Array.from_buffers(pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(text * rows)])
