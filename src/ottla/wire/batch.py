"""The record batch, format 2, from the outside: its header and its checksum.

Comes in: bytes as a broker stores or sends them. Goes out: `Batch` values, whose header fields are read without
touching the records. This module must not decompress or look at a record; `decode` does that.

Layout of a batch (big-endian; Kafka documentation, "Record Batch"):

    0  baseOffset int64        17 crc uint32 (CRC-32C of all after it)       43 producerId int64
    8  batchLength int32       21 attributes int16                          51 producerEpoch int16
    12 leaderEpoch int32       23 lastOffsetDelta int32                     53 baseSequence int32
    16 magic int8              27 baseTimestamp int64                       57 recordCount int32
                               35 maxTimestamp int64                        61 records
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from ottla.errors import CorruptBatch, InputError, UnsupportedFormat
from ottla.wire.checksums import crc32c

Buffer = bytes | bytearray | memoryview

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size  # 61
CHECKED_FIELDS = struct.Struct(">hiqqqhii")
"""The part of the header that the checksum covers."""
LENGTH_END = 12  # batchLength counts the bytes after itself
CRC_START = 21  # the checksum covers attributes and everything after them
MAGIC_AT = 16
MAGIC = 2
SMALLEST_RECORD = 7  # length, attributes, two deltas, key length, value length, header count: one byte each

_PREFIX = struct.Struct(">qiib")
_END_OF_LOG = (1 << 63) - 1  # offsets are 64-bit, and the one after the last must fit too
# Bits of the attributes.
CODEC_MASK = 0x07
IS_LOG_APPEND = 0x08
IS_TRANSACTIONAL = 0x10
IS_CONTROL = 0x20
HAS_DELETE_HORIZON = 0x40


class Codec(IntEnum):
    """How the records of a batch are compressed."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


_CODECS = tuple(Codec)


class TimestampType(IntEnum):
    """Who set the timestamps: the producer, or the broker when it appended the batch."""

    CREATE = 0
    LOG_APPEND = 1


class BatchHeader(NamedTuple):
    """The 61 bytes before the records. Timestamps are milliseconds since 1970."""

    base_offset: int
    """The offset of the first record."""
    length: int
    """The size of the rest of the batch after this field, in bytes."""
    leader_epoch: int
    """The epoch of the leader that appended the batch; -1 before."""
    magic: int
    crc: int
    attributes: int
    """Codec, timestamp type, and whether it is transactional or a control batch, as bits."""
    last_offset_delta: int
    base_timestamp: int
    """Record timestamps are relative to this."""
    max_timestamp: int
    """The latest timestamp, or the broker's append time for LogAppendTime."""
    producer_id: int
    """-1 without idempotence."""
    producer_epoch: int
    base_sequence: int
    """The sequence number of the first record; -1 without idempotence."""
    count: int  # type: ignore[assignment]  # hides tuple.count, which a header does not need

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch, header included."""
        return LENGTH_END + self.length

    @property
    def last_offset(self) -> int:
        """The offset of the last record that was ever in this batch (compaction may have removed it)."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The first offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """How the records are compressed."""
        return _CODECS[self.attributes & CODEC_MASK]

    @property
    def timestamp_type(self) -> TimestampType:
        """Who set the timestamps."""
        return TimestampType.LOG_APPEND if self.attributes & IS_LOG_APPEND else TimestampType.CREATE

    @property
    def is_transactional(self) -> bool:
        """Whether the batch belongs to a transaction."""
        return bool(self.attributes & IS_TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a transaction marker instead of data."""
        return bool(self.attributes & IS_CONTROL)


class Batch:
    """One whole batch: where its bytes are, and its header. Two batches are equal if their bytes are equal."""

    __slots__ = ("header", "source", "start")

    def __init__(self, source: memoryview, start: int, header: BatchHeader) -> None:
        self.source = source
        self.start = start
        self.header = header

    @classmethod
    def parse(cls, data: Buffer, start: int = 0) -> Batch:
        """Return the batch that starts at `start`, and ignore anything after it.

        Raises `CorruptBatch` if it is cut short or its header contradicts itself, `UnsupportedFormat` for message
        formats 0 and 1. Does not check the checksum: see `verify`.
        """
        source = _octets(data)
        batch = _batch_at(source, start)
        if batch is None:
            offset = int.from_bytes(source[start : start + 8], "big", signed=True) if start + 8 <= len(source) else None
            raise CorruptBatch(f"cut short: only {len(source) - start} bytes left", base_offset=offset, position=0)
        return batch

    @property
    def data(self) -> memoryview:
        """The whole batch, header included."""
        return self.source[self.start : self.start + LENGTH_END + self.header.length]

    @property
    def records(self) -> memoryview:
        """The bytes after the header, still compressed."""
        return self.source[self.start + HEADER_BYTES : self.start + LENGTH_END + self.header.length]

    def verify(self) -> None:
        """Check the checksum. Raises `CorruptBatch` if it is wrong."""
        end = self.start + LENGTH_END + self.header.length
        actual = crc32c(self.source[self.start + CRC_START : end])
        if actual != self.header.crc:
            raise CorruptBatch(
                f"checksum is {actual:#010x}, its header says {self.header.crc:#010x}",
                base_offset=self.header.base_offset,
                position=CRC_START - 4,
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.data == other.data

    def __hash__(self) -> int:
        return hash(self.header)

    def __repr__(self) -> str:
        h = self.header
        return (
            f"Batch(offsets=[{h.base_offset}, {h.next_offset}), count={h.count}, "
            f"codec={h.codec.name.lower()}, bytes={h.size_bytes})"
        )


def split(data: Buffer) -> Iterator[Batch]:
    """Yield the whole batches in `data`. A partial batch at the end is normal and left out.

    Raises `CorruptBatch` or `UnsupportedFormat` like `Batch.parse`.
    """
    source = _octets(data)
    start = 0
    while (batch := _batch_at(source, start)) is not None:
        yield batch
        start += batch.header.size_bytes


def _octets(data: Buffer) -> memoryview:
    """Return a read-only view whose items are bytes: Arrow's buffers have signed items, arrays may have wider ones."""
    source = memoryview(data).toreadonly()
    if not source.c_contiguous:
        raise InputError("batches must lie in contiguous memory")
    return source if source.format == "B" and source.ndim == 1 else source.cast("B")


def _batch_at(source: memoryview, start: int) -> Batch | None:
    available = len(source) - start
    if available < HEADER_BYTES:
        if available > MAGIC_AT:
            check_prefix(*_PREFIX.unpack_from(source, start))
        return None
    header = BatchHeader._make(HEADER.unpack_from(source, start))
    length = header.length
    if header.magic != MAGIC or length < HEADER_BYTES - LENGTH_END:
        check_prefix(header.base_offset, length, header.leader_epoch, header.magic)
    if available < LENGTH_END + length:
        return None
    check_header(header)
    return Batch(source, start, header)


def pack_header(header: BatchHeader) -> bytes:
    """Encode the 61 bytes of a header."""
    return HEADER.pack(*header)


def check_prefix(base_offset: int, length: int, leader_epoch: int, magic: int) -> None:
    """Raise if this cannot be a batch of format 2, judging by the fields that all formats share."""
    if magic in (0, 1):
        raise UnsupportedFormat(
            f"message format {magic} at offset {base_offset}: Ottla reads format 2 (Kafka 0.11 and newer); "
            "copy the topic once with a Kafka 3.x broker or client to bring it up to date"
        )
    if magic != MAGIC:
        raise CorruptBatch(f"magic byte is {magic}, expected {MAGIC}", base_offset=base_offset, position=MAGIC_AT)
    if length < HEADER_BYTES - LENGTH_END:
        raise CorruptBatch(f"length {length} is shorter than a header", base_offset=base_offset, position=8)


def check_header(header: BatchHeader) -> None:
    """Raise `CorruptBatch` if the fields of a header contradict each other or the size of the batch."""
    base_offset, last_delta, count = header.base_offset, header.last_offset_delta, header.count
    if base_offset < 0 or last_delta < 0:
        raise _contradiction(header, f"offset {base_offset} with last delta {last_delta}", 23)
    if base_offset + last_delta >= _END_OF_LOG:
        raise _contradiction(header, f"last delta {last_delta} leads beyond the highest offset", 23)
    if not 0 <= count <= last_delta + 1:
        raise _contradiction(header, f"count {count} with last delta {last_delta}", 57)
    codec = header.attributes & CODEC_MASK
    if codec > Codec.ZSTD:
        raise _contradiction(header, f"codec {codec} does not exist", 21)
    if codec == 0 and count * SMALLEST_RECORD > header.length - (HEADER_BYTES - LENGTH_END):
        raise _contradiction(header, f"count {count} does not fit in {header.size_bytes} bytes", 57)


def _contradiction(header: BatchHeader, reason: str, position: int) -> CorruptBatch:
    return CorruptBatch(reason, base_offset=header.base_offset, position=position)
