"""Memory for kernels that notices what a kernel must not do, in three kinds behind one interface.

`Walled` lays every array against pages that may not be touched, so that one byte too far ends the process; `Plain` is
ordinary numpy memory for kernels that check bounds themselves; `Strict` is for the Python bodies: it refuses an index
outside, also a negative one (which Python and numba would both take as "from the end"), and a number too large.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import zlib
from array import array
from typing import Any, Protocol

import numpy as np

from ottla.wire.kernels.encoding import RESULT_FIELDS

_SLOT_BYTES = 16 << 20
_SLOTS = 40
_PAGE = mmap.PAGESIZE


class Areas(Protocol):
    """Arrays for one run of a kernel; the next `begin` takes all of them back."""

    def begin(self, number: int) -> None:
        """Forget the arrays of the run before; `number` may choose where the new ones lie."""

    def given(self, data: bytes) -> Any:
        """Bytes that a kernel reads."""

    def numbers(self, values: list[int]) -> Any:
        """64-bit numbers that a kernel reads."""

    def table(self, rows: list[tuple[int, ...]]) -> Any:
        """Rows of 64-bit numbers that a kernel reads."""

    def octets(self, count: int, fill: int = 0) -> Any:
        """Bytes that a kernel writes."""

    def int32s(self, count: int) -> Any:
        """32-bit numbers that a kernel writes, zero at first."""

    def int64s(self, count: int) -> Any:
        """64-bit numbers that a kernel writes, zero at first."""

    def sums(self) -> Any:
        """The two unsigned words of a fingerprint."""

    def sums_of(self, batches: int) -> Any:
        """Those of several batches."""

    def results(self, batches: int) -> Any:
        """What the encoder says of several batches."""

    def rows(self, count: int, fields: int) -> Any:
        """Rows of 64-bit numbers that a kernel writes, zero at first."""

    def checksum(self, area: Any, before: int) -> int:
        """A checksum over the content of an array that the kernel wrote."""


class Plain:
    """Numpy arrays where numpy puts them."""

    def begin(self, number: int) -> None:
        pass

    def _space(self, size: int) -> Any:
        return np.empty(size, np.uint8)

    def given(self, data: bytes) -> Any:
        space = self._space(len(data))
        space[:] = np.frombuffer(data, np.uint8)
        space.flags.writeable = False
        return space

    def numbers(self, values: list[int]) -> Any:
        space = self._space(8 * len(values)).view(np.int64)
        space[:] = values
        space.flags.writeable = False
        return space

    def table(self, rows: list[tuple[int, ...]]) -> Any:
        values = np.array(rows, np.int64)
        space = self._space(values.nbytes).view(np.int64).reshape(values.shape)
        space[:] = values
        return space

    def octets(self, count: int, fill: int = 0) -> Any:
        space = self._space(count)
        space.fill(fill)
        return space

    def int32s(self, count: int) -> Any:
        return self.octets(4 * count).view(np.int32)

    def int64s(self, count: int) -> Any:
        return self.octets(8 * count).view(np.int64)

    def sums(self) -> Any:
        return self.octets(16).view(np.uint64)

    def sums_of(self, batches: int) -> Any:
        return self.octets(16 * batches).view(np.uint64).reshape(batches, 2)

    def results(self, batches: int) -> Any:
        return self.rows(batches, RESULT_FIELDS)

    def rows(self, count: int, fields: int) -> Any:
        return self.int64s(count * fields).reshape(count, fields)

    def checksum(self, area: Any, before: int) -> int:
        return zlib.crc32(area, before)


class Walled(Plain):
    """Numpy arrays that end where a forbidden page begins, or at times begin where one ends."""

    def __init__(self) -> None:
        self._stride = _SLOT_BYTES + _PAGE
        self._memory = mmap.mmap(-1, _SLOTS * self._stride + _PAGE)
        self._bytes = np.frombuffer(self._memory, np.uint8)
        for slot in range(_SLOTS + 1):
            _forbid(self._bytes.ctypes.data + slot * self._stride)
        self._slot = 0
        self._at_end = True

    def begin(self, number: int) -> None:
        self._slot = 0
        # Reading goes forward, so that going too far is by far the likelier mistake.
        self._at_end = number % 4 != 0

    def _space(self, size: int) -> Any:
        if size > _SLOT_BYTES:
            raise MemoryError(f"an array of {size} bytes is larger than the input can justify")
        if self._slot == _SLOTS:
            raise MemoryError(f"more than {_SLOTS} arrays in one run")
        start = self._slot * self._stride + _PAGE
        self._slot += 1
        if self._at_end:
            start += _SLOT_BYTES - size
        return self._bytes[start : start + size]


def _forbid(address: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    prot_none = 0
    if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(_PAGE), prot_none):
        raise OSError(ctypes.get_errno(), f"mprotect: {os.strerror(ctypes.get_errno())}")


class _Octets(bytearray):
    """Bytes without negative indices. Slices are left alone: `kernels.memory` checks its own."""

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice) and index < 0:
            raise IndexError(f"byte {index} was read")
        return bytearray.__getitem__(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, slice) and index < 0:
            raise IndexError(f"byte {index} was written")
        bytearray.__setitem__(self, index, value)


class _ReadOnly(_Octets):
    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("input was written to")


class _Numbers(list[int]):
    """Numbers of 32 or 64 bits without negative indices."""

    def __init__(self, values: list[int], bits: int) -> None:
        super().__init__(values)
        self.limit = 1 << (bits - 1)

    def __getitem__(self, index: Any) -> Any:
        if index < 0:
            raise IndexError(f"number {index} was read")
        return list.__getitem__(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        if index < 0:
            raise IndexError(f"number {index} was written")
        if not -self.limit <= value < self.limit:
            raise OverflowError(f"{value} does not fit where it was written")
        list.__setitem__(self, index, int(value))


class Strict:
    """Python objects that stand for arrays."""

    def begin(self, number: int) -> None:
        pass

    def given(self, data: bytes) -> Any:
        return _ReadOnly(data)

    def numbers(self, values: list[int]) -> Any:
        return _Numbers(values, 64)

    def table(self, rows: list[tuple[int, ...]]) -> Any:
        return rows

    def octets(self, count: int, fill: int = 0) -> Any:
        return _Octets(bytes((fill,)) * count)

    def int32s(self, count: int) -> Any:
        return _Numbers([0] * count, 32)

    def int64s(self, count: int) -> Any:
        return _Numbers([0] * count, 64)

    def sums(self) -> Any:
        return np.zeros(2, np.uint64)  # these are meant to wrap around

    def sums_of(self, batches: int) -> Any:
        return np.zeros((batches, 2), np.uint64)

    def results(self, batches: int) -> Any:
        return self.rows(batches, RESULT_FIELDS)

    def rows(self, count: int, fields: int) -> Any:
        return [self.int64s(fields) for _ in range(count)]

    def checksum(self, area: Any, before: int) -> int:
        if isinstance(area, _Numbers):
            area = array("i" if area.limit == 1 << 31 else "q", area)
        return zlib.crc32(area, before)
