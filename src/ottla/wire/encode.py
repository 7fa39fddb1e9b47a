"""Columns into record batches of bounded size, ready to be sent.

Comes in: `Columns`, a codec and limits. Goes out: `NewBatch` values: a header that can still be stamped with a producer
id and sequence, and the records, compressed. The current time comes from the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.errors import ConfigError, InputError
from ottla.model import Fingerprint
from ottla.wire.batch import HEADER_BYTES, LENGTH_END, BatchHeader, Codec, pack_header
from ottla.wire.codecs import check_level, compress
from ottla.wire.columns import Columns
from ottla.wire.kernels import encoding as k

_ALL_ROWS = np.zeros(0, np.int64)
_ALL_ROWS.flags.writeable = False
# lastOffsetDelta and recordCount are 32-bit, and so is the length of a batch.
_MOST_RECORDS = (1 << 31) - 1
LARGEST_BATCH = (1 << 31) - 1 - LENGTH_END


@dataclass(frozen=True, slots=True)
class NewBatch:
    """A batch that is about to be sent: the header can be stamped again (`restamp`), the records stay as they are."""

    header: BatchHeader
    records: memoryview
    fingerprint: Fingerprint | None = None

    def parts(self) -> list[bytes | memoryview]:
        """Header and records, to be sent one after the other without joining them."""
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
    """How large a batch may get before the next one begins: its bytes before compression, and its records.

    A record that is larger than `max_bytes` on its own becomes a batch of its own.
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
    codec: Codec = Codec.NONE,
    level: int | None = None,
    limits: BatchLimits | None = None,
    rows: npt.NDArray[np.int64] | None = None,
    fingerprint: bool = False,
) -> Iterator[NewBatch]:
    """The rows of `columns` as batches, in order; `rows` picks some of them, in its order.

    Rows without a timestamp get `now_ms`. With `fingerprint`, every batch carries that of its records.
    """
    level = check_level(codec, level)
    limits = limits or BatchLimits()
    picked = _ALL_ROWS if rows is None else _checked(rows, columns.count)
    last = columns.count if rows is None else len(picked)
    writer = _Writer(columns, limits, picked, last, now_ms, fingerprint)
    row = 0
    while row < last:
        records, row = writer.write(row)
        yield _finish(records, writer.result, codec, level, writer.fingerprint())


class _Writer:
    """Runs the kernel for one batch after another."""

    def __init__(
        self,
        columns: Columns,
        limits: BatchLimits,
        rows: npt.NDArray[np.int64],
        last: int,
        now_ms: int,
        hashing: bool,
    ) -> None:
        self.result = np.zeros(k.RESULT_FIELDS, np.int64)
        self._columns = columns
        self._limits = limits
        self._rows = rows
        self._last = last
        self._now_ms = now_ms
        self._hashing = hashing
        self._sums = np.zeros(2, np.uint64)

    def write(self, row: int) -> tuple[memoryview, int]:
        """The records of the next batch, uncompressed, and the row after them."""
        most_bytes = self._limits.max_bytes - HEADER_BYTES
        room = min(most_bytes, self._most_left(row))
        self._fill(room, most_bytes, row)
        if self.result[k.COUNT] == 0:  # its first record is larger than a batch should be
            self._fill(int(self.result[k.NEEDED]), most_bytes, row)
        return memoryview(self._out)[: int(self.result[k.SIZE])], int(self.result[k.NEXT_ROW])

    def _most_left(self, row: int) -> int:
        c = self._columns
        return c.data_bytes + (self._last - row) * k.RECORD_OVERHEAD + c.header_count * k.HEADER_OVERHEAD

    def _fill(self, room: int, most_bytes: int, row: int) -> None:
        # Arrow's pool keeps freed pages; fresh ones from the system would cost more than the encoding.
        self._out = pa.allocate_buffer(room)
        self._sums[:] = 0
        c = self._columns
        k.encode_records(
            np.frombuffer(self._out, np.uint8),
            most_bytes,
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
            self.result,
        )

    def fingerprint(self) -> Fingerprint | None:
        if not self._hashing:
            return None
        return Fingerprint(int(self.result[k.COUNT]), int(self._sums[1]) << 64 | int(self._sums[0]))


def _finish(
    records: memoryview,
    result: npt.NDArray[np.int64],
    codec: Codec,
    level: int | None,
    fingerprint: Fingerprint | None,
) -> NewBatch:
    body = records if codec is Codec.NONE else memoryview(compress(codec, records, level))
    count = int(result[k.COUNT])
    header = BatchHeader(
        base_offset=0,
        length=HEADER_BYTES - LENGTH_END + len(body),
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=int(codec),
        last_offset_delta=count - 1,
        base_timestamp=int(result[k.BASE_TIME]),
        max_timestamp=int(result[k.MAX_TIME]),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        count=count,
    )
    return NewBatch(header._replace(crc=checksum(header, body)), body, fingerprint)


def checksum(header: BatchHeader, records: memoryview) -> int:
    """The CRC-32C that belongs to this header and these records."""
    return crc32c.crc32c(records, crc32c.crc32c(pack_header(header)[21:]))


def _checked(rows: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
    """Row numbers as the kernel takes them, which follows them without looking."""
    if len(rows) and not 0 <= rows.min() <= rows.max() < count:
        raise InputError(f"rows picks rows {rows.min()} to {rows.max()}; there are rows 0 to {count - 1}")
    view = np.ascontiguousarray(rows, np.int64).view()
    view.flags.writeable = False
    return view
