"""Encodes columns into record batches of bounded size, ready to send.

Comes in: `Columns`, a codec and limits. Goes out: `NewBatch` values: a header that can still be stamped with a producer
id and sequence, and the records, compressed. It must not read a clock: the caller passes the current time.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.errors import ConfigError, InputError
from ottla.model import Fingerprint
from ottla.wire.batch import CHECKED_FIELDS, HEADER_BYTES, LENGTH_END, MAGIC, BatchHeader, Codec, pack_header
from ottla.wire.checksums import crc32c
from ottla.wire.codecs import check_level, compress, parse_codec
from ottla.wire.columns import Columns
from ottla.wire.kernels import encoding as k

ALL_ROWS: npt.NDArray[np.int64] = np.zeros(0, np.int64)
"""No row numbers stand for every row, in order."""
ALL_ROWS.flags.writeable = False
# lastOffsetDelta and recordCount are 32-bit, and so is the length of a batch.
_MOST_RECORDS = (1 << 31) - 1
LARGEST_BATCH = (1 << 31) - 1 - LENGTH_END
NO_PRODUCER = -1
NO_EPOCH = -1
# Encode many small batches in one call of the kernel. They share memory, so not too many.
_BYTES_AT_ONCE = 1 << 20
_BATCHES_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch ready to send. The header can be stamped again (`restamp`), the records do not change."""

    header: BatchHeader
    records: memoryview
    """The bytes after the header, compressed."""
    fingerprint: Fingerprint | None = None
    """The fingerprint of the records, if requested."""

    def parts(self) -> list[bytes | memoryview]:
        """Return header and records, to be sent one after the other without joining them."""
        return [pack_header(self.header), self.records]

    def __bytes__(self) -> bytes:
        return b"".join(self.parts())

    def __repr__(self) -> str:
        h = self.header
        return (
            f"NewBatch(count={h.count}, codec={h.codec.name.lower()}, bytes={h.size_bytes}, producer={h.producer_id})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """How large a batch may get: its bytes before compression, and its records.

    A single record larger than `max_bytes` becomes a batch of its own. Raises `ConfigError` for an impossible limit.
    """

    max_bytes: int = 1_000_000
    max_records: int = _MOST_RECORDS

    def __post_init__(self) -> None:
        if not HEADER_BYTES < self.max_bytes <= LARGEST_BATCH:
            raise ConfigError(f"max_bytes must be between {HEADER_BYTES + 1} and {LARGEST_BATCH}, got {self.max_bytes}")
        if not 0 < self.max_records <= _MOST_RECORDS:
            raise ConfigError(f"max_records must be between 1 and {_MOST_RECORDS}, got {self.max_records}")


def encode(
    columns: Columns,
    *,
    now_ms: int,
    codec: Codec | str = Codec.NONE,
    level: int | None = None,
    limits: BatchLimits | None = None,
    rows: npt.NDArray[np.integer[Any]] | Sequence[int] | None = None,
    fingerprint: bool = False,
) -> Iterator[NewBatch]:
    """Yield the rows of `columns` as batches, in order. `rows` picks rows, in its own order.

    Rows without a timestamp get `now_ms`. With `fingerprint`, every batch carries the fingerprint of its records.
    Checks the arguments at once, and makes batches on demand. Raises `InputError` or `ConfigError` for bad arguments,
    and `InputError` for a record too large for any batch.
    """
    codec = parse_codec(codec)
    level = check_level(codec, level)
    row_numbers = ALL_ROWS if rows is None else _checked(rows, columns.count)
    last = columns.count if rows is None else len(row_numbers)
    writer = _Writer(columns, limits or BatchLimits(), row_numbers, last, _clock(now_ms), bool(fingerprint))
    return _batches(writer, last, codec, level)


def fingerprint_of(columns: Columns) -> Fingerprint:
    """Return the fingerprint of all rows. A reader of the topic computes the same."""
    batches = encode(columns, now_ms=0, fingerprint=True)
    return sum((batch.fingerprint or Fingerprint() for batch in batches), Fingerprint())


def _batches(writer: _Writer, last: int, codec: Codec, level: int | None) -> Iterator[NewBatch]:
    row = 0
    while row < last:
        for records, result, content in writer.write(row):
            yield finish(records, result, codec, level, content)
            row = result[k.NEXT_ROW]


class _Writer:
    """Runs the kernel, which writes several batches at a time."""

    def __init__(
        self,
        columns: Columns,
        limits: BatchLimits,
        rows: npt.NDArray[np.int64],
        last: int,
        now_ms: int,
        hashing: bool,
    ) -> None:
        self._results = np.zeros((_BATCHES_AT_ONCE, k.RESULT_FIELDS), np.int64)
        self._sums = np.zeros((_BATCHES_AT_ONCE, 2), np.uint64)
        self._columns = columns
        self._limits = limits
        self._rows = rows
        self._last = last
        self._now_ms = now_ms
        self._hashing = hashing

    def write(self, row: int) -> Iterator[tuple[memoryview, list[int], Fingerprint | None]]:
        """Yield the records of the next batches, uncompressed, with the kernel's result for each."""
        capacity = self._max_bytes * max(1, _BYTES_AT_ONCE // self._max_bytes)
        out, count = self._fill(min(capacity, self._max_remaining(row)), row)
        if count == 0:  # the first record is larger than a batch should be
            needed = int(self._results[0, k.NEEDED])
            if needed > LARGEST_BATCH - HEADER_BYTES:
                number = int(self._rows[row]) if len(self._rows) else row
                raise InputError(f"row {number} takes {needed} bytes as a record; no batch can hold that")
            out, count = self._fill(needed, row)
        results = self._results[:count].tolist()
        out = _fitted(out, sum(result[k.SIZE] for result in results))
        start = 0
        for batch, result in enumerate(results):
            end = start + result[k.SIZE]
            yield out[start:end], result, self._fingerprint(batch, result[k.COUNT])
            start = end

    @property
    def _max_bytes(self) -> int:
        return self._limits.max_bytes - HEADER_BYTES

    def _max_remaining(self, row: int) -> int:
        """Return an upper bound of the bytes that the remaining rows take as records."""
        c = self._columns
        return c.data_bytes + (self._last - row) * k.RECORD_OVERHEAD + c.header_count * k.HEADER_OVERHEAD

    def _fill(self, capacity: int, row: int) -> tuple[memoryview, int]:
        """Encode as many batches as fit into new memory. Returns it, and the number of batches."""
        # Arrow's pool keeps freed pages; fresh ones from the system would cost more than the encoding.
        out = pa.allocate_buffer(capacity)
        self._sums[:] = 0
        c = self._columns
        count = k.encode_batches(
            np.frombuffer(out, np.uint8),
            self._max_bytes,
            self._limits.max_records,
            self._rows,
            row,
            self._last,
            c.key,
            c.value,
            c.headers,
            c.times,
            self._now_ms,
            self._hashing,
            self._sums,
            self._results,
        )
        return memoryview(out), count

    def _fingerprint(self, batch: int, count: int) -> Fingerprint | None:
        if not self._hashing:
            return None
        low, high = self._sums[batch].tolist()
        return Fingerprint(count, high << 64 | low)


def finish(
    records: memoryview, result: list[int], codec: Codec, level: int | None, fingerprint: Fingerprint | None
) -> NewBatch:
    """Build a batch from records as the kernel wrote them, and the kernel's result."""
    body = records if codec is Codec.NONE else memoryview(compress(codec, records, level))
    count = result[k.COUNT]
    times = result[k.BASE_TIME], result[k.MAX_TIME]
    length = HEADER_BYTES - LENGTH_END + len(body)
    fields = (int(codec), count - 1, *times, NO_PRODUCER, NO_PRODUCER, NO_PRODUCER, count)
    # The checksum covers the header fields and then the records, which are not joined for it.
    crc = crc32c(body, crc32c(CHECKED_FIELDS.pack(*fields)))
    return NewBatch(BatchHeader(0, length, NO_EPOCH, MAGIC, crc, *fields), body, fingerprint)


def _fitted(out: memoryview, used: int) -> memoryview:
    """Return the written part. Copies it if the buffer is much larger: batches may wait a long time to be sent."""
    if 2 * used > len(out):
        return out[:used]
    exact = pa.allocate_buffer(used)
    np.frombuffer(exact, np.uint8)[:] = out[:used]
    return memoryview(exact)


def _clock(now_ms: int) -> int:
    """Check the current time: milliseconds since 1970."""
    try:
        time = operator.index(now_ms)
    except TypeError:
        time = -1
    if not 0 <= time < 1 << 63:
        raise InputError(f"now_ms is {now_ms!r}; accepted are whole milliseconds since 1970")
    return time


def _checked(rows: npt.NDArray[np.integer[Any]] | Sequence[int], count: int) -> npt.NDArray[np.int64]:
    """Return row numbers as the kernel needs them. The kernel does not check them."""
    numbers = np.asarray(rows)
    if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
        hint = "; numpy.flatnonzero makes them from a mask" if numbers.dtype.kind == "b" else ""
        kind = f"{numbers.dtype} in {numbers.ndim} dimensions"
        raise InputError(f"rows has type {kind}; accepted are row numbers, one after another{hint}")
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < count:
        raise InputError(f"rows picks rows {numbers.min()} to {numbers.max()}; there are rows 0 to {count - 1}")
    view = np.ascontiguousarray(numbers, np.int64).view()
    view.flags.writeable = False
    return view
