"""Buffers for decoded columns: sized for the worst case, filled by the kernel, handed to Arrow without a copy.

Comes in: the largest possible number of records and bytes. Goes out: Arrow arrays. The memory must come from Arrow's
own pool, which keeps freed pages: fresh pages from the system cost more than the decoding itself.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.model import Fingerprint
from ottla.wire.kernels import decoding as k

# Arrow's list and binary types have 32-bit offsets; record offsets and times are 64-bit.
_SMALL = np.dtype(np.int32)
_WIDE = np.dtype(np.int64)


class Fault(NamedTuple):
    """Where the kernel stopped and why: a code of `kernels.decoding`, the segment, and the byte in its input."""

    code: int
    segment: int
    position: int


_SHARED_BYTES = 1 << 15
"""Columns that need no more than this together share one buffer: an allocation costs more than a record."""
_ALIGNED = 64
_MAX_SPARE = 4
_EMPTY = pa.py_buffer(b"")


def _allocated(size_bytes: int) -> tuple[pa.Buffer, npt.NDArray[np.uint8]]:
    buffer = pa.allocate_buffer(max(size_bytes, 8))
    return buffer, np.frombuffer(buffer, np.uint8)


class Spare:
    """Unused data buffers, kept for the next chunk: most topics have no keys or no headers."""

    def __init__(self) -> None:
        self._pieces: list[tuple[pa.Buffer, npt.NDArray[np.uint8]]] = []

    def take(self, size_bytes: int) -> tuple[pa.Buffer, npt.NDArray[np.uint8]]:
        """Return a buffer of at least this size."""
        # A buffer much larger than needed is dropped: it would keep that memory for one small column.
        while self._pieces:
            piece = self._pieces.pop()
            if size_bytes <= piece[0].size <= 4 * size_bytes:
                return piece
        return _allocated(max(size_bytes, 8))

    def put(self, piece: tuple[pa.Buffer, npt.NDArray[np.uint8]]) -> None:
        """Keep a buffer that is empty and has no other owner."""
        if len(self._pieces) < _MAX_SPARE and piece[0].size > _SHARED_BYTES:
            self._pieces.append(piece)


class _Arena:
    """Allocates the memory of columns: a buffer for each, or slices of a shared one if all are small."""

    def __init__(self, total_bytes: int, spare: Spare | None = None) -> None:
        self._free = _allocated(total_bytes) if total_bytes <= _SHARED_BYTES else None
        self._position = 0
        self.spare = spare if self._free is None else None
        """For data whose size is not known in advance; None if the columns share a buffer."""

    def take_data(self, size_bytes: int) -> tuple[pa.Buffer, npt.NDArray[np.uint8]]:
        """Allocate memory for the bytes of a column, which may turn out to have none."""
        return self.take(size_bytes) if self.spare is None else self.spare.take(size_bytes)

    def take(self, size_bytes: int) -> tuple[pa.Buffer, npt.NDArray[np.uint8]]:
        size_bytes = max(size_bytes, 8)
        start, end = self._position, self._position + size_bytes
        if self._free is None or end > self._free[0].size:
            return _allocated(size_bytes)
        self._position = -(-end // _ALIGNED) * _ALIGNED
        buffer, memory = self._free
        return buffer.slice(start, size_bytes), memory[start:end]


_SEPARATE = _Arena(_SHARED_BYTES + 1)


def _fitted(buffer: pa.Buffer, used_bytes: int) -> pa.Buffer:
    """Return the filled part. Copies it if the buffer is much larger: a program may keep columns for a long time."""
    # Slicing keeps the whole buffer alive, so it pays only if most of it is used.
    if 2 * used_bytes >= buffer.size or buffer.size <= _SHARED_BYTES:
        return buffer.slice(0, used_bytes)
    exact, memory = _allocated(used_bytes)
    memory[:used_bytes] = np.frombuffer(buffer, np.uint8, used_bytes)
    return exact


class _Numbers:
    """A fixed-width column."""

    def __init__(self, rows: int, dtype: np.dtype[Any], arena: _Arena = _SEPARATE) -> None:
        self.buffer, memory = arena.take(rows * dtype.itemsize)
        self.out = memory[: rows * dtype.itemsize].view(dtype)

    def filled(self, count: int) -> pa.Buffer:
        """Return the buffer with the first `count` numbers."""
        return _fitted(self.buffer, count * self.out.itemsize)

    def array(self, data_type: pa.DataType, rows: int) -> pa.Array:
        return pa.Array.from_buffers(data_type, rows, [None, self.filled(rows)])


class _Validity:
    """A bit for each row, all set at first. The kernel clears the bits of nulls."""

    def __init__(self, rows: int, arena: _Arena = _SEPARATE) -> None:
        self.buffer, memory = arena.take((rows + 7) // 8)
        self.out = memory
        self.out[:] = 0xFF

    def bits(self, nulls: int) -> pa.Buffer | None:
        """Return the bitmap, or None if there are no nulls: Arrow then skips it."""
        return self.buffer if nulls else None


class _Binary:
    """A column of byte strings."""

    def __init__(self, rows: int, data_bytes: int, arena: _Arena = _SEPARATE) -> None:
        self.ends = _Numbers(rows + 1, _SMALL, arena)
        self.ends.out[0] = 0
        self.buffer, memory = arena.take_data(data_bytes)
        self._spare = arena.spare
        self.valid = _Validity(rows, arena)
        self.out = k.BinaryOut(self.ends.out, memory, self.valid.out)

    def array(self, data_type: pa.DataType, rows: int, nulls: int) -> pa.Array:
        """Return the column. If it has no bytes at all, its data buffer goes back to the spare ones."""
        used = int(self.ends.out[rows])
        data = _fitted(self.buffer, used) if used else _EMPTY
        if not used and self._spare is not None:
            self._spare.put((self.buffer, self.out.data))
            self._spare = None
        return pa.Array.from_buffers(data_type, rows, [self.valid.bits(nulls), self.ends.filled(rows + 1), data], nulls)

    def grown(self, rows: int, filled: int) -> _Binary:
        """Return the same column with room for more rows. Its data had room for the worst case from the start."""
        other = _Binary.__new__(_Binary)
        other.ends, other.valid, other.buffer = _Numbers(rows + 1, _SMALL), _Validity(rows), self.buffer
        other._spare = self._spare
        other.ends.out[: filled + 1] = self.ends.out[: filled + 1]
        size = (filled + 7) // 8
        other.valid.out[:size] = self.valid.out[:size]
        other.out = k.BinaryOut(other.ends.out, self.out.data, other.valid.out)
        return other


# The kernel gets these for columns that are not wanted, and writes nothing to them.
_UNWANTED_NUMBERS = _Numbers(0, _WIDE)
_UNWANTED_BINARY = _Binary(0, 0)


class ColumnBuffers:
    """The columns of one chunk while the kernel fills them."""

    def __init__(self, want: int, count: int, record_bytes: int, spare: Spare | None = None) -> None:
        self._want = want
        self._record_bytes = record_bytes
        self._state = np.zeros(k.STATE_FIELDS, np.int64)
        self._sums = np.zeros(2, np.uint64)
        arena = _Arena(_most_bytes(want, count, record_bytes), spare)
        self._offsets = _Numbers(count, _WIDE, arena) if want & k.OFFSET else _UNWANTED_NUMBERS
        self._timestamps = _Numbers(count, _WIDE, arena) if want & k.TIMESTAMP else _UNWANTED_NUMBERS
        self._key = _Binary(count, record_bytes, arena) if want & k.KEY else _UNWANTED_BINARY
        self._value = _Binary(count, record_bytes, arena) if want & k.VALUE else _UNWANTED_BINARY
        # A record has any number of headers, so their columns start with one per record and grow on demand.
        self._header_ends, self._header_valid = _UNWANTED_BINARY.ends, _UNWANTED_BINARY.valid
        self._header_keys = self._header_values = _UNWANTED_BINARY
        if want & k.HEADERS:
            self._header_ends = _Numbers(count + 1, _SMALL, arena)
            self._header_ends.out[0] = 0
            self._header_valid = _Validity(count, arena)
            self._header_keys = _Binary(count, record_bytes, arena)
            self._header_values = _Binary(count, record_bytes, arena)

    @property
    def rows(self) -> int:
        """The number of records decoded so far."""
        return int(self._state[k.ROW])

    @property
    def clamped(self) -> int:
        """The number of records whose time does not fit in microseconds and was clamped."""
        return int(self._state[k.CLAMPED])

    def fill(self, data: npt.NDArray[np.uint8], segments: npt.NDArray[np.int64], start: int, stop: int) -> Fault | None:
        """Decode the records of `segments` with offsets in `[start, stop)`. Returns the fault it stopped at, if any."""
        # The kernel continues at the row in its state, so that several calls fill the same columns.
        self._state[k.SEGMENT] = self._state[k.INDEX] = 0
        while True:
            code = k.decode_records(
                data,
                segments,
                self._state,
                self._want,
                start,
                stop,
                self._offsets.out,
                self._timestamps.out,
                self._key.out,
                self._value.out,
                k.HeadersOut(
                    self._header_ends.out,
                    self._header_valid.out,
                    self._header_keys.out,
                    self._header_values.out,
                ),
                self._sums,
            )
            if code == k.DONE:
                return None
            # On GROW_HEADERS the kernel has stopped before the record, and starts it again.
            if code != k.GROW_HEADERS:
                return Fault(code, int(self._state[k.SEGMENT]), int(self._state[k.POSITION]))
            self._grow_headers()

    def _grow_headers(self) -> None:
        filled = int(self._state[k.HEADER])
        # No more headers than the smallest possible ones can be in the remaining bytes.
        doubled = 2 * (filled + int(self._state[k.NEEDED]))
        capacity = min(doubled, self._record_bytes // k.SMALLEST_HEADER)
        self._header_keys = self._header_keys.grown(capacity, filled)
        self._header_values = self._header_values.grown(capacity, filled)

    def column(self, name: str, data_type: pa.DataType) -> pa.Array:
        """Return a column that the kernel fills as an Arrow array."""
        state = self._state
        if name == "offset":
            return self._offsets.array(data_type, self.rows)
        if name == "timestamp":
            return self._timestamps.array(data_type, self.rows)
        if name == "key":
            return self._key.array(data_type, self.rows, int(state[k.KEY_NULLS]))
        if name == "value":
            return self._value.array(data_type, self.rows, int(state[k.VALUE_NULLS]))
        return self._headers(data_type)

    def _headers(self, data_type: pa.ListType) -> pa.Array:
        count, bare = int(self._state[k.HEADER]), int(self._state[k.BARE])
        struct = data_type.value_type
        keys = _as_text(self._header_keys.array(pa.string(), count, 0))
        values = self._header_values.array(pa.binary(), count, int(self._state[k.HEADER_NULLS]))
        items = pa.StructArray.from_arrays([keys, values], fields=list(struct))
        buffers = [self._header_valid.bits(bare), self._header_ends.filled(self.rows + 1)]
        return pa.Array.from_buffers(data_type, self.rows, buffers, bare, children=[items])

    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the records decoded so far."""
        low, high = (int(word) for word in self._sums)
        return Fingerprint(self.rows, high << 64 | low)


def _most_bytes(want: int, count: int, record_bytes: int) -> int:
    """Return the most memory that all wanted columns can take, gaps between them included."""
    numbers = (bool(want & k.OFFSET) + bool(want & k.TIMESTAMP)) * (8 * count + _ALIGNED)
    binaries = bool(want & k.KEY) + bool(want & k.VALUE) + 3 * bool(want & k.HEADERS)
    return numbers + binaries * (record_bytes + 5 * count + 3 * _ALIGNED)


def _as_text(keys: pa.Array) -> pa.Array:
    """Replace invalid UTF-8 in header keys, as Java does: nothing forces a producer to write valid text."""
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        raw = keys.view(pa.binary()).to_pylist()
        return pa.array([key.decode("utf-8", "replace") for key in raw], pa.string())
    return keys
