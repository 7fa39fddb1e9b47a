"""A batch that is being filled: rows of any number of columns go in, one sealed batch comes out.

For producers, whose records come from many calls. The rows are encoded as they are added, so that nothing keeps the
callers' memory; the memory of a draft grows with what is in it. The current time comes from the caller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.errors import InputError
from ottla.wire.batch import HEADER_BYTES, Codec
from ottla.wire.columns import Columns
from ottla.wire.encode import ALL_ROWS, LARGEST_BATCH, BatchLimits, NewBatch, finish
from ottla.wire.kernels import encoding as k

_SMALLEST_ROOM = 512
_NO_SUMS = np.zeros(2, np.uint64)


class Draft:
    """One open batch."""

    __slots__ = ("_limits", "_out", "_result", "_room")

    def __init__(self, limits: BatchLimits) -> None:
        self._limits = limits
        self._result = np.zeros(k.RESULT_FIELDS, np.int64)
        self._out: Any = None
        self._room: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)

    @classmethod
    def holding(cls, limits: BatchLimits, records: npt.NDArray[np.uint8], result: npt.NDArray[np.int64]) -> Draft:
        """One with these records already in it, of which the kernel says this."""
        draft = cls(limits)
        draft._grow(len(records))
        draft._room[: len(records)] = records
        draft._result[:] = result
        return draft

    @property
    def count(self) -> int:
        """Records so far."""
        return int(self._result[k.COUNT])

    @property
    def size_bytes(self) -> int:
        """What they take, uncompressed and without the header."""
        return int(self._result[k.SIZE])

    def append(
        self, columns: Columns, *, rows: npt.NDArray[np.int64] = ALL_ROWS, start: int, stop: int, now_ms: int
    ) -> int:
        """Adds the rows `[start, stop)`, or those that `rows[start:stop]` names, as far as the batch takes them.

        Returns the row to go on with in the next draft; `stop` when all are in. Rows without a time get `now_ms`.
        A record that is larger than a whole batch may be is taken by an empty draft.
        """
        most = self._limits.max_bytes - HEADER_BYTES
        if not len(self._room):
            self._grow(min(most, _likely_bytes(columns, stop - start)))
        while True:
            k.encode_records(
                self._room,
                0,
                most,
                self._limits.max_records,
                rows,
                start,
                stop,
                columns.key,
                columns.value,
                columns.headers,
                columns.times,
                now_ms,
                False,
                _NO_SUMS,
                self._result,
            )
            start = int(self._result[k.NEXT_ROW])
            needed = int(self._result[k.NEEDED])
            if needed == 0:
                return start
            if self.count and self.size_bytes + needed > most:
                return start
            if needed > LARGEST_BATCH - HEADER_BYTES:
                raise InputError(f"row {start} takes {needed} bytes as a record; no batch can hold that")
            left = _likely_bytes(columns, stop - start)
            self._grow(max(self.size_bytes + needed, min(most, self.size_bytes + max(left, self.size_bytes))))

    def seal(self, codec: Codec = Codec.NONE, level: int | None = None) -> NewBatch:
        """The batch, compressed. The draft must not be used any more."""
        result = self._result.tolist()
        used = result[k.SIZE]
        records = memoryview(self._out)[:used] if codec is not Codec.NONE or 2 * used > len(self._room) else None
        if records is None:
            exact = pa.allocate_buffer(used)
            np.frombuffer(exact, np.uint8)[:] = self._room[:used]
            records = memoryview(exact)
        batch = finish(records, result, codec, level, None)
        self._out, self._room = None, self._room[:0]
        return batch

    def _grow(self, room: int) -> None:
        # Arrow's pool keeps freed pages; fresh ones from the system would cost more than the encoding.
        out = pa.allocate_buffer(max(room, _SMALLEST_ROOM))
        array = np.frombuffer(out, np.uint8)
        used = self.size_bytes
        array[:used] = self._room[:used]
        self._out, self._room = out, array


def _likely_bytes(columns: Columns, rows: int) -> int:
    """What so many of the rows will take, from their average; a little more rather than less."""
    content = columns.data_bytes + columns.header_count * k.HEADER_OVERHEAD
    return rows * (content // max(1, columns.count) + _LIKELY_OVERHEAD) + _SMALLEST_ROOM


_LIKELY_OVERHEAD = 14
"""What a record usually adds to its content: length, attributes, deltas and counts are rarely at their longest."""
