"""Decodes record batches into Arrow columns: those of Spark's Kafka source, and only the requested ones.

Comes in: `Batch` values in log order. Goes out: `pyarrow.RecordBatch` values of bounded size, with a fingerprint on
request. Control batches are left out. The caller must leave out batches of aborted transactions. A damaged batch raises
`CorruptBatch`, and none of its records are returned.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.errors import ConfigError, CorruptBatch, WireError
from ottla.model import Fingerprint
from ottla.wire.batch import (
    CODEC_MASK,
    CRC_START,
    HEADER_BYTES,
    IS_CONTROL,
    IS_LOG_APPEND,
    LENGTH_END,
    SMALLEST_RECORD,
    Batch,
    BatchHeader,
    Codec,
    TimestampType,
)
from ottla.wire.checksums import crc32c
from ottla.wire.codecs import DecompressionFailed, Scratch
from ottla.wire.column_buffers import ColumnBuffers, Fault, Spare
from ottla.wire.constants import constant
from ottla.wire.kernels import decoding as k
from ottla.wire.kernels import scanning
from ottla.wire.scan import Batches
from ottla.wire.small_decode import MOST_BYTES, MOST_RECORDS, SmallDecode

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
"""The columns of Spark's Kafka source, with its names and types. `headers` is null for a record without headers."""

COLUMNS = tuple(SCHEMA.names)

_BITS = {"offset": k.OFFSET, "timestamp": k.TIMESTAMP, "key": k.KEY, "value": k.VALUE, "headers": k.HEADERS}
_END_OF_LOG = (1 << 63) - 1
# 32-bit Arrow offsets: no column of one chunk may reach 2 GiB.
_LARGEST = (1 << 31) - 1


class Decoded(NamedTuple):
    """Decoded records of one partition. `fingerprint` is None unless requested."""

    records: pa.RecordBatch
    rows: int
    """The number of records, even if no column was requested."""
    fingerprint: Fingerprint | None
    next_offset: int = -1
    """The first offset after the batches that hold these records."""
    left_out: int = 0
    """Records of those batches outside the requested offsets."""
    clamped: int = 0
    """Records whose time does not fit in microseconds and was clamped."""


class Stretch(NamedTuple):
    """Batches of one partition that are wanted whole."""

    batches: Batches
    partition: int


class Decoder:
    """Decodes batches with the same settings, reusing its memory. Use one per thread.

    `max_batch_bytes` limits the size of a batch, before and after decompression. `chunk_bytes` is roughly how much
    record data goes into one `RecordBatch`; a single larger batch still comes out whole. Raises `ConfigError` for an
    unknown column or an impossible limit.
    """

    def __init__(
        self,
        columns: Collection[str] = COLUMNS,
        *,
        fingerprint: bool = False,
        max_batch_bytes: int = 128 << 20,
        chunk_bytes: int = 8 << 20,
        verify_crc: bool = True,
    ) -> None:
        unknown = sorted(set(columns) - set(COLUMNS))
        if unknown:
            raise ConfigError(f"unknown columns {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
        if not 0 < max_batch_bytes <= _LARGEST - chunk_bytes or chunk_bytes <= 0:
            raise ConfigError(f"max_batch_bytes and chunk_bytes must be positive, and below {_LARGEST} in total")
        self.schema = pa.schema([field for field in SCHEMA if field.name in columns])
        self._fields = tuple((field.name, field.type) for field in self.schema)  # Arrow builds them at every access
        self._want = sum(bit for name, bit in _BITS.items() if name in columns) | (k.FINGERPRINT if fingerprint else 0)
        self._max_batch_bytes = max_batch_bytes
        self.chunk_bytes = chunk_bytes
        self._verify_crc = verify_crc
        self._scratch = Scratch()
        self._spare = Spare()
        self._has_begun = False

    def decode(
        self,
        batches: Iterable[Batch],
        *,
        topic: str = "",
        partition: int = 0,
        start: int = 0,
        stop: int = _END_OF_LOG,
    ) -> Iterator[Decoded]:
        """Yield the records of `batches` with offsets in `[start, stop)`, in chunks. Empty chunks are left out.

        Raises `CorruptBatch` for a damaged batch, after yielding everything before it.
        """
        if self._has_begun:  # the first few records come sooner without the kernel
            _load_kernel()
        self._has_begun = True
        stop = min(stop, _END_OF_LOG)
        # The fast path decodes from the table of the scan. It stops at the first problem, which the slow path then
        # reports.
        if isinstance(batches, Batches) and self._is_plain(batches):
            reached = yield from self._scanned(batches, topic, partition, start, stop)
            if reached == len(batches):
                return
            batches = batches[reached:]  # something is wrong there, and the code below reports it
        for chunk in self._chunks(batches, start, stop):
            fault = chunk.fault
            try:
                decoded = self._decode_chunk(chunk, topic, partition, start, stop)
            except _FaultyRecords as faulty:
                fault = faulty.error
                decoded = self._decode_chunk(chunk.before(faulty.batch), topic, partition, start, stop)
            if decoded.rows:
                yield decoded
            if isinstance(fault, CorruptBatch) and topic:
                fault.topic, fault.partition = topic, partition
            if fault is not None:
                raise fault

    def _is_plain(self, batches: Batches) -> bool:
        """Whether the records can be decoded from the table of batches, without creating a `Batch` for each."""
        # A RecordBatch has one timestampType, so batches of both types cannot share one.
        is_mixed = (batches.any_attributes ^ batches.all_attributes) & IS_LOG_APPEND
        lengths = batches.table[:, k.END] - batches.table[:, scanning.AT]
        return (
            batches.size_bytes > MOST_BYTES
            and not batches.any_attributes & CODEC_MASK
            and not is_mixed
            and int(lengths.max()) <= self._max_batch_bytes
        )

    def _scanned(
        self, batches: Batches, topic: str, partition: int, start: int, stop: int
    ) -> Generator[Decoded, None, int]:
        """Yield the records of uncompressed batches chunk by chunk. Returns the number of intact batches."""
        kind = TimestampType.LOG_APPEND if batches.any_attributes & IS_LOG_APPEND else TimestampType.CREATE
        fixed: dict[str, str | int] = {"topic": topic, "partition": partition, "timestampType": int(kind)}
        data = np.frombuffer(batches.source, np.uint8)
        first = 0
        while first < len(batches.table):
            table = self._portion(batches.table[first:])
            end = first + len(table)
            table = table[
                (table[:, k.BASE_OFFSET] + table[:, k.LAST_DELTA] >= start) & (table[:, k.BASE_OFFSET] < stop)
            ]
            if not self._are_intact(batches.source, table):
                break
            segments = table[holds_records(table)]
            if len(segments):
                buffers = self._new_buffers(int(segments[:, k.COUNT].sum()), _record_bytes(segments))
                if buffers.fill(data, np.ascontiguousarray(segments[:, : k.SEGMENT_FIELDS]), start, stop) is not None:
                    break
                reached = int(segments[-1, k.BASE_OFFSET] + segments[-1, k.LAST_DELTA]) + 1
                if buffers.rows:
                    yield self._decoded(buffers, fixed, int(segments[:, k.COUNT].sum()), min(stop, reached))
                del buffers
            first = end
        return first

    def _portion(self, table: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the first rows of a table of batches, as many as go into a chunk."""
        ends = np.cumsum(table[:, k.END] - table[:, scanning.AT])
        return table[: max(1, int(np.searchsorted(ends, self.chunk_bytes, "right")))]

    @property
    def can_join(self) -> bool:
        """Whether `decode_together` is possible. It is not with a fingerprint, which covers a single stretch."""
        return not self._want & k.FINGERPRINT

    def decode_together(self, stretches: Sequence[Stretch], *, topic: str) -> list[Decoded] | None:
        """Return all records of each stretch as `decode` does, or of the first ones if all are too large together.

        Returns None if they lie in different memory, or are unusual in any way. The columns of all stretches are slices
        of the same arrays; a stretch without records has an empty slice.
        """
        source = stretches[0].batches.source
        append_time = stretches[0].batches.any_attributes & IS_LOG_APPEND
        for stretch in stretches:
            batches = stretch.batches
            kinds = (batches.any_attributes & IS_LOG_APPEND, batches.all_attributes & IS_LOG_APPEND)
            if kinds != (append_time, append_time) or batches.source is not source:
                return None
        table = np.concatenate([stretch.batches.table for stretch in stretches])
        lengths = table[:, k.END] - table[:, k.START]
        if not self.can_join or int(lengths.max()) > self._max_batch_bytes or not self._are_intact(source, table):
            return None
        _load_kernel()
        is_data = holds_records(table)
        # Which stretch each batch belongs to, to count the rows of each afterwards.
        owners = np.repeat(np.arange(len(stretches)), [len(stretch.batches) for stretch in stretches])[is_data]
        segments = table[is_data]
        data = np.frombuffer(source, np.uint8)
        if (segments[:, scanning.ATTRIBUTES] & CODEC_MASK).any():
            unpacked = self._unpack(source, segments, owners)
            if unpacked == 0:
                return None
            stretches, owners, segments = stretches[:unpacked], owners[owners < unpacked], segments[owners < unpacked]
            data = self._scratch.view()
        rows = np.bincount(owners, segments[:, k.COUNT], len(stretches)).astype(np.int64)
        buffers = self._new_buffers(int(rows.sum()), _record_bytes(segments))
        fault = buffers.fill(data, np.ascontiguousarray(segments[:, : k.SEGMENT_FIELDS]), 0, _END_OF_LOG)
        # Anything unusual goes the slow way, which reports it for its own partition.
        if fault is not None or buffers.clamped or buffers.rows != rows.sum():
            return None
        kind = TimestampType.LOG_APPEND if append_time else TimestampType.CREATE
        records = self._joined(buffers, stretches, rows, {"topic": topic, "timestampType": int(kind)})
        return [
            Decoded(records.slice(end - count, count), count, None, stretch.batches.next_offset)
            for stretch, count, end in zip(stretches, rows.tolist(), rows.cumsum().tolist(), strict=True)
        ]

    def _are_intact(self, source: memoryview, table: npt.NDArray[np.int64]) -> bool:
        """Whether all checksums are correct."""
        if not self._verify_crc:
            return True
        starts, ends = (table[:, scanning.AT] + CRC_START).tolist(), table[:, k.END].tolist()
        actual = [crc32c(source[start:end]) for start, end in zip(starts, ends, strict=True)]
        return bool(actual == table[:, scanning.CRC].tolist())

    def _unpack(self, source: memoryview, segments: npt.NDArray[np.int64], owners: npt.NDArray[np.int64]) -> int:
        """Decompress the records and store their new positions in `segments`.

        Returns the number of stretches that fit in a chunk, or 0 if they cannot be decoded together.
        """
        self._scratch.clear()
        rows = zip(segments.tolist(), owners.tolist(), strict=True)
        for index, (segment, owner) in enumerate(rows):
            # Only between stretches: a stretch is never split.
            if owner and self._scratch.used > self.chunk_bytes and owner != owners[index - 1]:
                return int(owner)
            codec = Codec(segment[scanning.ATTRIBUTES] & CODEC_MASK)
            if codec is Codec.NONE:
                return 0
            try:
                span = self._scratch.append(codec, source[segment[k.START] : segment[k.END]], self._max_batch_bytes)
            except DecompressionFailed:
                return 0
            # The header's count is not trusted before memory is allocated for it.
            if segment[k.COUNT] * SMALLEST_RECORD > span[1] - span[0]:
                return 0
            segments[index, k.START], segments[index, k.END] = span
        return int(owners[-1]) + 1

    def _joined(
        self,
        buffers: ColumnBuffers,
        stretches: Sequence[Stretch],
        rows: npt.NDArray[np.int64],
        fixed: dict[str, str | int],
    ) -> pa.RecordBatch:
        """Build one record batch for several partitions: only the partition column differs from row to row."""
        columns = []
        for name, data_type in self._fields:
            if name == "partition":
                numbers = np.repeat(np.array([stretch.partition for stretch in stretches], np.int32), rows)
                columns.append(pa.Array.from_buffers(data_type, len(numbers), [None, pa.py_buffer(numbers)]))
            elif name in fixed:
                columns.append(constant(fixed[name], buffers.rows))
            else:
                columns.append(buffers.column(name, data_type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _chunks(self, batches: Iterable[Batch], start: int, stop: int) -> Iterator[_Chunk]:
        """Group batches, decompressing them, until there is enough data for one `RecordBatch`."""
        chunk = _Chunk()
        try:
            for batch in batches:
                header = batch.header
                if header.next_offset <= start or header.base_offset >= stop:
                    continue
                if self._verify_crc:  # before skipping anything: a flipped bit can make data look like a marker
                    batch.verify()
                attributes = header.attributes
                if attributes & IS_CONTROL or header.count == 0:
                    continue
                # A chunk ends before it gets too large, or if the timestamp type changes.
                if chunk.batches and (
                    chunk.record_bytes + header.length > self.chunk_bytes
                    or (chunk.attributes ^ attributes) & IS_LOG_APPEND
                ):
                    yield chunk
                    chunk = _Chunk()
                if not chunk.batches:
                    self._scratch.clear()
                chunk.add(batch, header, self._decompressed(batch, header))
        except WireError as fault:
            chunk.fault = fault
        if chunk.batches or chunk.fault is not None:
            yield chunk

    def _decompressed(self, batch: Batch, header: BatchHeader) -> tuple[int, int] | None:
        """Return where the records lie in the scratch area, or None if they are not compressed and stay in place."""
        if not header.attributes & CODEC_MASK:
            if batch.start + LENGTH_END + header.length > len(batch.source):  # not from `parse` or `split`
                raise _fault(batch, f"has {header.size_bytes} bytes, more than the memory it lies in", 8)
            if header.length > self._max_batch_bytes:
                raise _fault(batch, f"has {header.size_bytes} bytes, the limit is {self._max_batch_bytes}", 8)
            return None
        try:
            start, end = self._scratch.append(header.codec, batch.records, self._max_batch_bytes)
        except DecompressionFailed as error:
            raise _fault(batch, str(error), HEADER_BYTES) from error.__cause__
        if header.count * SMALLEST_RECORD > end - start:
            raise _fault(batch, f"count {header.count} does not fit in {end - start} decompressed bytes", 57)
        return start, end

    def _decode_chunk(self, chunk: _Chunk, topic: str, partition: int, start: int, stop: int) -> Decoded:
        buffers = self._decode_small(chunk, start, stop) or self._decode_large(chunk, start, stop)
        fixed: dict[str, str | int] = {
            "topic": topic,
            "partition": partition,
            "timestampType": int(chunk.timestamp_type),
        }
        reached = chunk.batches[-1].header.next_offset if chunk.batches else start
        return self._decoded(buffers, fixed, chunk.count, min(stop, reached))

    def _decoded(
        self, buffers: ColumnBuffers | SmallDecode, fixed: Mapping[str, str | int], count: int, next_offset: int
    ) -> Decoded:
        """Build the record batch. `count` is the number of records in its batches, requested or not."""
        columns = [
            constant(fixed[name], buffers.rows) if name in fixed else buffers.column(name, data_type)
            for name, data_type in self._fields
        ]
        records = pa.RecordBatch.from_arrays(columns, schema=self.schema)
        fingerprint = (
            buffers.fingerprint() if self._want & k.FINGERPRINT and isinstance(buffers, ColumnBuffers) else None
        )
        return Decoded(records, buffers.rows, fingerprint, next_offset, count - buffers.rows, buffers.clamped)

    def _decode_small(self, chunk: _Chunk, start: int, stop: int) -> SmallDecode | None:
        if chunk.count > MOST_RECORDS or chunk.record_bytes > MOST_BYTES or self._want & k.FINGERPRINT:
            return None
        source, *others = chunk.sources or (None,)
        if source is None or any(other is not source for other in others):
            return None
        small = SmallDecode()
        return small if small.fill(source, chunk.segments, start, stop) else None

    def _new_buffers(self, count: int, record_bytes: int) -> ColumnBuffers:
        _load_kernel()
        return ColumnBuffers(self._want, count, record_bytes, self._spare)

    def _decode_large(self, chunk: _Chunk, start: int, stop: int) -> ColumnBuffers:
        buffers = self._new_buffers(chunk.count, chunk.record_bytes)
        for source, batches, segments in chunk.stretches():
            data = self._scratch.view() if source is None else np.frombuffer(source, np.uint8)
            fault = buffers.fill(data, np.array(segments, np.int64), start, stop)
            if fault is not None:
                error = record_fault(batches[fault.segment], segments[fault.segment], fault, in_records=source is None)
                raise _FaultyRecords(batches[fault.segment], error)
        return buffers


@cache
def _load_kernel() -> None:
    """Load the kernel with the first records that need it, or with the second call of `decode`.

    Loading takes a while, and later records must not wait for it. It must not be interrupted: Ctrl-C in the middle of
    it breaks the kernel for the whole process.
    """
    for is_decompressed in (False, True):  # received bytes are read-only: another type, another kernel
        data = np.empty(0, np.uint8)
        data.flags.writeable = is_decompressed
        ColumnBuffers(0, 0, 0).fill(data, np.empty((0, k.SEGMENT_FIELDS), np.int64), 0, 0)


class _FaultyRecords(Exception):
    """The kernel stopped in this batch. Internal."""

    def __init__(self, batch: Batch, error: CorruptBatch) -> None:
        self.batch = batch
        self.error = error


class _Chunk:
    """Batches that become one `RecordBatch`, and where the records of each lie.

    `fault` says why the batch after them cannot be decoded.
    """

    def __init__(self) -> None:
        self.fault: WireError | None = None
        self.batches: list[Batch] = []
        self.segments: list[tuple[int, ...]] = []
        self.sources: list[memoryview | None] = []
        self.count = 0
        self.record_bytes = 0
        self.attributes = 0
        """The attributes of the last batch. All batches have the same timestamp type."""

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType.LOG_APPEND if self.attributes & IS_LOG_APPEND else TimestampType.CREATE

    def add(self, batch: Batch, header: BatchHeader, decompressed: tuple[int, int] | None) -> None:
        count = header.count
        attributes = header.attributes
        if decompressed is None:
            start, end = batch.start + HEADER_BYTES, batch.start + LENGTH_END + header.length
            self.sources.append(batch.source)
        else:
            start, end = decompressed
            self.sources.append(None)
        segment = (
            start,
            end,
            header.base_offset,
            header.last_offset_delta,
            count,
            header.base_timestamp,
            header.max_timestamp,
            attributes & IS_LOG_APPEND,
        )
        self.batches.append(batch)
        self.segments.append(segment)
        self.count += count
        self.record_bytes += end - start
        self.attributes = attributes

    def before(self, batch: Batch) -> _Chunk:
        """Return the chunk without this batch and those after it."""
        chunk = _Chunk()
        end = next(i for i, other in enumerate(self.batches) if other is batch)
        chunk.batches, chunk.segments, chunk.sources = self.batches[:end], self.segments[:end], self.sources[:end]
        chunk.count = sum(other.header.count for other in chunk.batches)
        chunk.record_bytes = sum(segment[k.END] - segment[k.START] for segment in chunk.segments)
        chunk.attributes = self.attributes
        return chunk

    def stretches(self) -> Iterator[tuple[memoryview | None, list[Batch], list[tuple[int, ...]]]]:
        """Yield neighbors whose records share memory: that memory (None: the scratch area), batches, segments."""
        first = 0
        for i in range(1, len(self.batches) + 1):
            if i == len(self.batches) or self.sources[i] is not self.sources[first]:
                yield self.sources[first], self.batches[first:i], self.segments[first:i]
                first = i


def holds_records(table: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which batches of a table hold records for a program."""
    is_data: npt.NDArray[np.bool_] = (table[:, scanning.ATTRIBUTES] & IS_CONTROL == 0) & (table[:, k.COUNT] > 0)
    return is_data


def _record_bytes(segments: npt.NDArray[np.int64]) -> int:
    return int((segments[:, k.END] - segments[:, k.START]).sum())


def _fault(batch: Batch, reason: str, position: int) -> CorruptBatch:
    """Return the error for a batch, with its offset."""
    return CorruptBatch(reason, base_offset=batch.header.base_offset, position=position)


def record_fault(batch: Batch, segment: tuple[int, ...], fault: Fault, *, in_records: bool) -> CorruptBatch:
    """Return the error for a fault in a record, at a byte of its batch or of the decompressed records."""
    origin = segment[k.START] if in_records else batch.start
    return CorruptBatch(
        k.REASONS[fault.code],
        base_offset=batch.header.base_offset,
        position=fault.position - origin,
        in_records=in_records,
    )
