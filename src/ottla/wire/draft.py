"""A batch while it is being filled: rows of any number of columns go in, one sealed batch comes out.

For producers, whose records come from many calls. Rows are encoded as they are added, so a draft does not hold on to
the callers' memory; its own memory grows with its content. It must not read a clock: the caller passes the current
time.
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
from ottla.wire.measure import Measured, RowTally, measure_records

_MIN_CAPACITY = 512
_NO_SUMS = np.zeros(2, np.uint64)


class Draft:
    """An open batch."""

    __slots__ = ("_limits", "_memory", "_out", "_result", "_tally")

    def __init__(self, limits: BatchLimits, *, bucket_ms: int = 0) -> None:
        """With `bucket_ms`, rows are counted by time bucket as they are added (`measured`)."""
        self._limits = limits
        self._tally = RowTally(bucket_ms) if bucket_ms else None
        self._result = np.zeros(k.RESULT_FIELDS, np.int64)
        self._out: Any = None
        self._memory: npt.NDArray[np.uint8] = np.zeros(0, np.uint8)

    @classmethod
    def holding(cls, limits: BatchLimits, records: npt.NDArray[np.uint8], result: npt.NDArray[np.int64]) -> Draft:
        """Return a draft that already contains these records; `result` is what the kernel returned for them."""
        draft = cls(limits)
        draft._grow(len(records))
        draft._memory[: len(records)] = records
        draft._result[:] = result
        return draft

    @property
    def count(self) -> int:
        """The number of records so far."""
        return int(self._result[k.COUNT])

    @property
    def size_bytes(self) -> int:
        """The size of the records, uncompressed and without the header."""
        return int(self._result[k.SIZE])

    def append(
        self, columns: Columns, *, rows: npt.NDArray[np.int64] = ALL_ROWS, start: int, stop: int, now_ms: int
    ) -> int:
        """Add the rows `[start, stop)`, or the rows that `rows[start:stop]` picks, until the batch is full.

        Returns the row to continue with in the next draft, or `stop` if all rows are in. Rows without a time get
        `now_ms`. An empty draft accepts a record larger than the limit. Raises `InputError` for a record too large for
        any batch.
        """
        most = self._limits.max_bytes - HEADER_BYTES
        if not len(self._memory):
            self._grow(min(most, _likely_bytes(columns, stop - start)))
        while True:
            before = start
            k.encode_records(
                self._memory,
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
            if self._tally is not None:
                self._tally.add(columns, rows=rows, start=before, stop=start, now_ms=now_ms)
            needed = int(self._result[k.NEEDED])
            if needed == 0:
                return start
            if self.count and self.size_bytes + needed > most:
                return start
            if needed > LARGEST_BATCH - HEADER_BYTES:
                raise InputError(f"row {start} takes {needed} bytes as a record; no batch can hold that")
            left = _likely_bytes(columns, stop - start)
            self._grow(max(self.size_bytes + needed, min(most, self.size_bytes + max(left, self.size_bytes))))

    def measured(self, bucket_ms: int) -> Measured:
        """Return its records by time bucket. For a draft that is about to be sealed."""
        if self._tally is not None and self._tally.records == self.count:
            return self._tally.measured()
        count, used = self.count, self.size_bytes
        times = int(self._result[k.BASE_TIME]), int(self._result[k.MAX_TIME])
        return measure_records(
            self._memory[:used], count=count, base_time=times[0], max_time=times[1], bucket_ms=bucket_ms
        )

    def seal(self, codec: Codec = Codec.NONE, level: int | None = None) -> NewBatch:
        """Return the batch, compressed. The draft must not be used afterwards."""
        result = self._result.tolist()
        used = result[k.SIZE]
        records = memoryview(self._out)[:used] if codec is not Codec.NONE or 2 * used > len(self._memory) else None
        if records is None:
            exact = pa.allocate_buffer(used)
            np.frombuffer(exact, np.uint8)[:] = self._memory[:used]
            records = memoryview(exact)
        batch = finish(records, result, codec, level, None)
        self._out, self._memory = None, self._memory[:0]
        return batch

    def _grow(self, capacity: int) -> None:
        # Arrow's pool keeps freed pages; fresh ones from the system would cost more than the encoding.
        out = pa.allocate_buffer(max(capacity, _MIN_CAPACITY))
        array = np.frombuffer(out, np.uint8)
        used = self.size_bytes
        array[:used] = self._memory[:used]
        self._out, self._memory = out, array


def _likely_bytes(columns: Columns, rows: int) -> int:
    """Estimate the size of this many rows from their average; rather too high than too low."""
    content = columns.data_bytes + columns.header_count * k.HEADER_OVERHEAD
    return rows * (content // max(1, columns.count) + _TYPICAL_OVERHEAD) + _MIN_CAPACITY


_TYPICAL_OVERHEAD = 14
"""What a record typically adds to its content: length, attributes, deltas and counts rarely take their longest form."""
