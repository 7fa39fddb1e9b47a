"""Reads one segment from end to end, whatever its state: the whole frames, and the places that are damaged.

An open file comes in; a `SegmentScan` goes out. It changes nothing, keeps no records in memory, and trusts no length
that a checksum does not cover. After a damaged place it continues at the next valid frame.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field

from ottla.errors import CorruptBatch, UnsupportedFormat
from ottla.produce.spool.layout import (
    FRAME_MAGIC,
    LONGEST_TOPIC,
    SEGMENT_HEADER_BYTES,
    SMALLEST_FRAME_HEADER,
    VERSION,
    FrameHeader,
    SegmentHeader,
    begins_frame,
    parse_frame,
    parse_segment_header,
    stamped_version,
    trusted_batch_header,
)
from ottla.wire.batch import CRC_START, HEADER_BYTES, BatchHeader, check_header, check_prefix
from ottla.wire.checksums import crc32c

logger = logging.getLogger(__name__)

CUT_SHORT = "cut short"
"""The reason of a gap at which the file ends before the entry does."""
_BLOCK = 1 << 20
"""How much is read at once."""
_PAGE = 4096
"""How much is lost at least where the disk cannot be read."""
_LONGEST_HEAD = SMALLEST_FRAME_HEADER + LONGEST_TOPIC + HEADER_BYTES
"""The longest headers of frame and batch together."""
_USUAL_HEAD = SMALLEST_FRAME_HEADER + 256 + HEADER_BYTES  # Kafka's topic names have up to 249 characters


@dataclass(frozen=True, slots=True)
class WholeEntry:
    """An entry whose checksums are both valid."""

    frame: FrameHeader
    batch: BatchHeader


@dataclass(frozen=True, slots=True)
class Gap:
    """Bytes `[start, stop)` that hold no whole entry; `frame` and `batch` are set where those parts are undamaged."""

    start: int
    stop: int
    reason: str
    frame: FrameHeader | None = None
    batch: BatchHeader | None = None


@dataclass(slots=True)
class SegmentScan:
    """The content of a segment, in file order. `header` is None if it is damaged or missing."""

    size_bytes: int
    version: int | None = None
    header: SegmentHeader | None = None
    parts: list[WholeEntry | Gap] = field(default_factory=list)

    @property
    def entries(self) -> list[WholeEntry]:
        """The whole entries."""
        return [part for part in self.parts if isinstance(part, WholeEntry)]


def scan_segment(fd: int) -> SegmentScan:
    """Scan the segment. One of a newer format is not read: see `version`."""
    window = _Window(fd)
    head = window.read(0, SEGMENT_HEADER_BYTES)
    scan = SegmentScan(window.size, stamped_version(head), parse_segment_header(head))
    if scan.version is None or scan.version == VERSION:
        _Walk(window, scan).run()
    return scan


class _Walk:
    """Walks through one file from frame to frame."""

    def __init__(self, window: _Window, scan: SegmentScan) -> None:
        self._window = window
        self._scan = scan
        self._spool = scan.header.spool.bytes if scan.header is not None else None

    def run(self) -> None:
        """Scan the file and append what is found to the scan."""
        position = min(SEGMENT_HEADER_BYTES, self._window.size)
        while position < self._window.size:
            frame = self._frame_at(position)
            part = self._resync(position) if frame is None else self._entry(frame)
            self._scan.parts.append(part)
            position = part.stop if isinstance(part, Gap) else position + part.frame.total_bytes

    def _frame_at(self, position: int) -> FrameHeader | None:
        """The valid frame at this position, or None. A usual topic name needs only a short read."""
        frame = parse_frame(self._window.read(position, _USUAL_HEAD), position=position, spool=self._spool)
        if frame is None:
            frame = parse_frame(self._window.read(position, _LONGEST_HEAD), position=position, spool=self._spool)
        if frame is not None and self._spool is None:
            self._spool = frame.spool  # the segment's header is damaged: its first frame names the spool
        return frame

    def _entry(self, frame: FrameHeader) -> WholeEntry | Gap:
        """The entry of a valid frame, or a gap if its batch is incomplete or damaged."""
        start, stop = frame.position, frame.position + frame.total_bytes
        batch_at = start + frame.header_bytes
        batch = trusted_batch_header(self._window.read(batch_at, HEADER_BYTES), frame=frame)
        if stop > self._window.size:
            return Gap(start, self._window.size, CUT_SHORT, frame, batch)
        if batch is None:
            return Gap(start, stop, "the batch's header is damaged", frame)
        if self._window.checksum(batch_at + CRC_START, stop) != batch.crc:
            return Gap(start, stop, "the batch's checksum is wrong", frame, batch)
        try:
            check_prefix(batch.base_offset, batch.length, batch.leader_epoch, batch.magic)
            check_header(batch)
        except (CorruptBatch, UnsupportedFormat) as exc:
            return Gap(start, stop, f"not a batch that can be sent: {exc}", frame, batch)
        return WholeEntry(frame, batch)

    def _resync(self, position: int) -> Gap:
        """The gap up to the next frame with a valid header."""
        size = self._window.size
        next_frame = self._window.find(FRAME_MAGIC, position + 1)
        while next_frame is not None and self._frame_at(next_frame) is None:
            next_frame = self._window.find(FRAME_MAGIC, next_frame + 1)
        if next_frame is not None:
            return Gap(position, next_frame, "the frame's header is damaged")
        rest = self._window.read(position, _LONGEST_HEAD)
        unfinished = begins_frame(rest, position=position) or self._window.is_zero(position)
        return Gap(position, size, CUT_SHORT if unfinished else "the frame's header is damaged")


class _Window:
    """A file read forward in blocks. Unreadable places come as zeros, which no checksum accepts.

    No memory map: if the file shrank meanwhile (another process's live spool), the process would be killed.
    """

    def __init__(self, fd: int) -> None:
        self.size = os.fstat(fd).st_size
        self._fd = fd
        self._start = 0
        self._block = memoryview(b"")

    def read(self, position: int, count: int) -> memoryview:
        """Up to `count` bytes, fewer at the end of the file."""
        count = max(0, min(count, self.size - position))
        offset = position - self._start
        if offset < 0 or offset + count > len(self._block):
            self._block = memoryview(self._pread(position, max(count, min(_BLOCK, self.size - position))))
            self._start, offset = position, 0
        return self._block[offset : offset + count]

    def checksum(self, start: int, stop: int) -> int:
        """The CRC-32C of `[start, stop)`."""
        crc = 0
        while start < stop:
            data = self.read(start, min(_BLOCK, stop - start))
            if not data:
                return -1  # the file shrank
            crc = crc32c(data, crc)
            start += len(data)
        return crc

    def find(self, needle: bytes, start: int) -> int | None:
        """The next position of `needle` from `start` on, or None."""
        while start + len(needle) <= self.size:
            offset = start - self._start
            if offset < 0 or offset + len(needle) > len(self._block):
                self.read(start, min(_BLOCK, self.size - start))
                offset = 0
                if len(self._block) < len(needle):
                    return None  # the file shrank
            index = self._bytes().find(needle, offset)
            if index >= 0:
                return self._start + index
            start = self._start + len(self._block) - len(needle) + 1
        return None

    def is_zero(self, start: int) -> bool:
        """Whether there are only zeros from `start` to the end."""
        while start < self.size:
            data = self.read(start, min(_BLOCK, self.size - start))
            if not data:
                return False
            if bytes(data).strip(b"\0"):
                return False
            start += len(data)
        return True

    def _bytes(self) -> bytes:
        """The whole block as bytes, which have a fast `find`."""
        whole = self._block.obj
        assert isinstance(whole, bytes)  # _pread returns nothing else
        return whole

    def _pread(self, position: int, count: int) -> bytes:
        """Read from the file. If that fails, read page by page, so that a bad sector costs only its page."""
        try:
            return os.pread(self._fd, count, position)
        except OSError as exc:
            if count <= _PAGE:
                logger.warning("%d bytes at %d of a spool file cannot be read: %s", count, position, exc)
                return bytes(count)
        first = _PAGE - position % _PAGE
        pages = [(start, _PAGE) for start in range(position + first, position + count, _PAGE)]
        spans = [
            (position, min(first, count)),
            *((start, min(length, position + count - start)) for start, length in pages),
        ]
        return b"".join(self._pread(start, length) for start, length in spans)
