"""The bytes of the spool's files: segment headers, frames, marks. Pure: bytes to values and back.

Everything has its own CRC-32C, and no length is trusted before its checksum is verified. docs/spool-format.md describes
the layout; all numbers are big-endian.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from uuid import UUID

from ottla.errors import InputError
from ottla.produce.spool.values import Entry
from ottla.wire.batch import HEADER, HEADER_BYTES, LENGTH_END, BatchHeader
from ottla.wire.checksums import crc32c

VERSION = 1
SEGMENT_MAGIC = b"OttlaSpl"
FRAME_MAGIC = b"\xd0OtF"  # the first byte occurs in no ASCII text
CONSECUTIVE = 1
"""Kind of segment: ids are consecutive, so that missing ones can be counted."""
COPIES = 2
"""Kind of segment: live entries that were moved here from mostly finished segments."""

_STAMP = Struct(">8sHHI")  # magic, version, reserved, CRC of the 12 bytes before: the same in every version
_SEGMENT = Struct(">IQQ16s")  # kind, follows, first id, spool
_CRC = Struct(">I")
SEGMENT_HEADER_BYTES = _STAMP.size + _SEGMENT.size + _CRC.size

# magic, header bytes, reserved, total bytes | CRC | spool, position, id, supersedes, place, created, floor,
# partition, check
_START = Struct(">4sHHI")
_FIELDS = Struct(">16sQQQQqqiI")
_CRC_AT = _START.size
_FIELDS_AT = _CRC_AT + _CRC.size
_TOPIC_AT = _FIELDS_AT + _FIELDS.size
SMALLEST_FRAME_HEADER = _TOPIC_AT
LONGEST_TOPIC = 32_767  # bytes: the longest string of the protocol

_MARK = Struct(">QI")
MARK_BYTES = _MARK.size + _CRC.size


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The beginning of a segment. `spool` tells the segments of one spool from those of another.

    `follows` is the number of the segment that ended just before `first_id`; 0 if that one is already gone.
    """

    version: int
    kind: int
    follows: int
    first_id: int
    spool: UUID

    def pack(self) -> bytes:
        """The header as bytes."""
        stamp = SEGMENT_MAGIC + self.version.to_bytes(2, "big") + b"\0\0"
        head = (
            stamp + _CRC.pack(crc32c(stamp)) + _SEGMENT.pack(self.kind, self.follows, self.first_id, self.spool.bytes)
        )
        return head + _CRC.pack(crc32c(head))


def stamped_version(data: bytes | memoryview) -> int | None:
    """The format version of a segment of any version; None if these bytes are not a valid header."""
    if len(data) < _STAMP.size:
        return None
    magic, version, _, crc = _STAMP.unpack_from(data)
    is_valid = magic == SEGMENT_MAGIC and crc == crc32c(data[: _STAMP.size - _CRC.size])
    return int(version) if is_valid else None


def parse_segment_header(data: bytes | memoryview) -> SegmentHeader | None:
    """The header of a segment of this version, or None if it is damaged."""
    version = stamped_version(data)
    if version != VERSION or len(data) < SEGMENT_HEADER_BYTES:
        return None
    end = SEGMENT_HEADER_BYTES - _CRC.size
    if _CRC.unpack_from(data, end)[0] != crc32c(data[:end]):
        return None
    kind, follows, first_id, spool = _SEGMENT.unpack_from(data, _STAMP.size)
    return SegmentHeader(version, kind, follows, first_id, UUID(bytes=spool))


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header before a batch. `crc` is its own checksum, which also identifies it in a mark.

    `batch_check` is the checksum of the 61 bytes of the batch's header: the batch's own checksum leaves out the first
    21. `spool` and `position` ensure that a frame inside a record's value is never mistaken for one of ours.
    """

    header_bytes: int
    total_bytes: int
    crc: int
    spool: bytes
    position: int
    id: int
    supersedes: int
    place: int
    created_ms: int
    floor_offset: int
    partition: int
    batch_check: int
    topic: str

    @property
    def batch_bytes(self) -> int:
        """The size of the batch, with its header."""
        return self.total_bytes - self.header_bytes


def frame_bytes(entry: Entry) -> int:
    """The size of the entry on disk."""
    return SMALLEST_FRAME_HEADER + len(_topic_bytes(entry.topic)) + entry.header.size_bytes


def pack_frame(entry: Entry, batch_header: bytes, *, entry_id: int, spool: bytes, position: int) -> bytes:
    """The bytes before the batch."""
    topic = _topic_bytes(entry.topic)
    header_bytes = _TOPIC_AT + len(topic)
    start = _START.pack(FRAME_MAGIC, header_bytes, 0, header_bytes + entry.header.size_bytes)
    rest = (
        _FIELDS.pack(
            spool,
            position,
            entry_id,
            entry.supersedes,
            entry.place or entry_id,
            round(entry.created * 1000),
            entry.floor_offset,
            entry.partition,
            crc32c(batch_header),
        )
        + topic
    )
    return start + _CRC.pack(crc32c(rest, crc32c(start))) + rest


def frame_crc(frame: bytes) -> int:
    """The checksum inside packed bytes, which identifies them in a mark."""
    return int(_CRC.unpack_from(frame, _CRC_AT)[0])


def _topic_bytes(topic: str) -> bytes:
    """The topic as bytes. Raises `InputError` if it is empty or too long for the protocol."""
    data = topic.encode(errors="replace")
    if not 0 < len(data) <= LONGEST_TOPIC:
        raise InputError(f"a topic has 1 to {LONGEST_TOPIC:,} bytes, this one has {len(data):,}: {topic[:80]!r}")
    return data


def parse_frame(data: bytes | memoryview, *, position: int, spool: bytes | None) -> FrameHeader | None:
    """The frame that starts with `data` and is at `position`; None if it is not one, damaged or incomplete.

    `spool` is the id it must have, None if that is not known.
    """
    if len(data) < _TOPIC_AT:
        return None
    magic, header_bytes, _, total_bytes = _START.unpack_from(data)
    fields = _FIELDS.unpack_from(data, _FIELDS_AT)
    # Cheap checks first: a search through foreign bytes checks every position that looks like a frame.
    if magic != FRAME_MAGIC or fields[1] != position or (spool is not None and fields[0] != spool):
        return None
    if not _TOPIC_AT < header_bytes <= len(data) or total_bytes < header_bytes + HEADER_BYTES:
        return None
    (crc,) = _CRC.unpack_from(data, _CRC_AT)
    if crc != crc32c(data[_FIELDS_AT:header_bytes], crc32c(data[:_CRC_AT])):
        return None
    topic = bytes(data[_TOPIC_AT:header_bytes]).decode(errors="replace")
    frame_spool, frame_position, entry_id, supersedes, place, created_ms, floor_offset, partition, check = fields
    return FrameHeader(
        header_bytes,
        total_bytes,
        crc,
        frame_spool,
        frame_position,
        entry_id,
        supersedes,
        place,
        created_ms,
        floor_offset,
        partition,
        check,
        topic,
    )


def begins_frame(data: bytes | memoryview, *, position: int) -> bool:
    """Whether these last bytes of a file can be the beginning of a frame whose header is incomplete."""
    if bytes(data[: len(FRAME_MAGIC)]) != FRAME_MAGIC[: len(data)]:
        return False
    if len(data) < _TOPIC_AT:
        return True
    header_bytes = _START.unpack_from(data)[1]
    return bool(_FIELDS.unpack_from(data, _FIELDS_AT)[1] == position and len(data) < header_bytes)


def trusted_batch_header(data: bytes | memoryview, *, frame: FrameHeader) -> BatchHeader | None:
    """The batch's header, if all 61 bytes are there and unchanged; else None."""
    if len(data) < HEADER_BYTES or crc32c(data[:HEADER_BYTES]) != frame.batch_check:
        return None
    header = BatchHeader._make(HEADER.unpack_from(data))
    return header if header.length + LENGTH_END == frame.batch_bytes else None


def pack_mark(entry_id: int, crc: int) -> bytes:
    """An acknowledgement: the entry with this id and frame checksum is done."""
    mark = _MARK.pack(entry_id, crc)
    return mark + _CRC.pack(crc32c(mark))


def parse_marks(data: bytes) -> Iterator[tuple[int, int]]:
    """Id and frame checksum of each valid mark; damaged ones are skipped."""
    for position in range(0, len(data) - MARK_BYTES + 1, MARK_BYTES):
        if _CRC.unpack_from(data, position + _MARK.size)[0] == crc32c(data[position : position + _MARK.size]):
            entry_id, crc = _MARK.unpack_from(data, position)
            yield entry_id, crc
