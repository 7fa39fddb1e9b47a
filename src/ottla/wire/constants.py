"""Columns with the same value in every row, built once and cut to the length of each batch.

Comes in: a value and a number of rows. Goes out: an Arrow array. It must not call Arrow's `repeat`, which takes longer
than decoding the records next to it.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa

_MIN_ROWS = 1 << 10
_MAX_CACHED_BYTES = 1 << 22
"""A longer column is built for its batch and not cached."""
_GENERATION_BYTES = 8 << 20
"""The cache has two generations of this size."""
_INT, _TEXT = pa.int32(), pa.string()


class _Column(NamedTuple):
    """The buffers of a value that is repeated `rows` times."""

    rows: int
    width: int
    """The bytes of the value."""
    ends: pa.Buffer | None
    """Only for text."""
    data: pa.Buffer

    @property
    def size_bytes(self) -> int:
        return int(self.data.size) + (0 if self.ends is None else int(self.ends.size))

    def array(self, rows: int) -> pa.Array:
        # Not a slice of an array: that would be pickled with all of its memory, a slice of a buffer is not.
        data = self.data.slice(0, rows * self.width)
        if self.ends is None:
            return pa.Array.from_buffers(_INT, rows, [None, data], 0)
        return pa.Array.from_buffers(_TEXT, rows, [None, self.ends.slice(0, 4 * (rows + 1)), data], 0)


class _Generation:
    """Columns that were used since the generation before was full."""

    def __init__(self) -> None:
        self.columns: dict[str | int, _Column] = {}
        self.size_bytes = 0


class _Cache:
    """Keeps the columns in use, and drops those that were not used for longest.

    Threads share it without a lock, which a fork or a signal handler could find taken. At worst two threads build the
    same column, or a generation gets a column too many.
    """

    def __init__(self) -> None:
        self._young, self._old = _Generation(), _Generation()

    def get(self, value: str | int, rows: int) -> _Column | None:
        """Return a column of this value with at least `rows` rows, if there is one."""
        column = self._young.columns.get(value)
        if column is None:
            column = self._old.columns.get(value)
            if column is not None and column.rows >= rows:
                self.put(value, column)
        return column if column is not None and column.rows >= rows else None

    def put(self, value: str | int, column: _Column) -> None:
        """Keep this column."""
        young = self._young
        if young.size_bytes + column.size_bytes > _GENERATION_BYTES:
            young, self._old = _Generation(), young
            self._young = young
        young.columns[value] = column
        young.size_bytes += column.size_bytes


_cache = _Cache()


def constant(value: str | int, rows: int) -> pa.Array:
    """Return the value repeated `rows` times, as Arrow string or int32. Batches may share its memory."""
    column = _cache.get(value, rows)
    if column is None:
        size = 1 << max(rows - 1, _MIN_ROWS - 1).bit_length()
        if size * _row_bytes(value) > _MAX_CACHED_BYTES:
            return _build(value, rows).array(rows)
        column = _build(value, size)
        _cache.put(value, column)
    return column.array(rows)


def _row_bytes(value: str | int) -> int:
    return 4 if isinstance(value, int) else 4 + len(value.encode())


def _build(value: str | int, rows: int) -> _Column:
    # Built from buffers: `pa.array` and `pa.scalar` import pandas if it is installed, which takes 45 MB.
    if isinstance(value, int):
        return _Column(rows, 4, None, pa.py_buffer(struct.pack("<i", value) * rows))
    text = value.encode()
    ends = np.arange(rows + 1, dtype=np.int32) * np.int32(len(text))
    return _Column(rows, len(text), pa.py_buffer(ends), pa.py_buffer(text * rows))
