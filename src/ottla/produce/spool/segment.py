"""One segment and its marks as files: append, truncate, sync, mark, remove.

Bytes to append come in. Out go positions, or an `OSError` after which the file is as before, or `Segment.is_open` is
false and nothing more may be appended. This module does not know what the bytes mean.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from ottla.produce.spool.contents import SurveyedSegment, damaged_path, done_path, draft_path, log_path
from ottla.produce.spool.layout import COPIES, MARK_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, pack_mark
from ottla.produce.spool.values import Ticket

logger = logging.getLogger(__name__)

Buffer = bytes | memoryview


class LiveEntry(NamedTuple):
    """A live entry: where it is, and the checksum of its frame, which will identify it in a mark."""

    ticket: Ticket
    crc: int


@dataclass(slots=True, eq=False)
class Segment:
    """A segment of the spool, being written or complete.

    `end_id` is one more than the last id in it, 0 if it holds copies. `replaces` are ids that entries in here stand
    for: this segment must outlive every older entry with such an id that is not marked as done yet.
    """

    directory: Path
    number: int
    size_bytes: int
    end_id: int
    mark_bytes: int = 0
    live: dict[int, LiveEntry] = field(default_factory=dict)
    live_bytes: int = 0
    pending_marks: list[tuple[int, int]] = field(default_factory=list)
    replaces: set[int] = field(default_factory=set)
    file: FileIO | None = None
    is_open: bool = False
    is_draft: bool = False
    is_damaged: bool = False
    """Whether it has lost entries: in the end its file is kept under another name."""
    is_fixed: bool = False
    """Whether its entries could not be copied elsewhere."""

    @classmethod
    def create(cls, directory: Path, number: int, header: SegmentHeader) -> Segment:
        """Create a file with its header. Copies wait for `publish`. Raises `OSError` and leaves nothing behind."""
        segment = cls(directory, number, 0, header.first_id, is_draft=header.kind == COPIES)
        fd = os.open(segment.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        segment.file = FileIO(fd, "r+")
        segment.is_open = True
        try:
            segment.append([header.pack()])
        except OSError:
            segment.remove()
            raise
        return segment

    def publish(self) -> None:
        """Rename a complete draft, so that it becomes part of the spool."""
        os.rename(self.path, log_path(self.directory, self.number))
        self.is_draft = False

    @classmethod
    def inherited(cls, directory: Path, surveyed: SurveyedSegment) -> Segment:
        """A segment that an earlier owner wrote. Nothing more is appended to it."""
        entries = surveyed.scan.entries
        crcs = {entry.frame.id: entry.frame.crc for entry in entries}
        segment = cls(directory, surveyed.number, surveyed.scan.size_bytes, surveyed.end_id)
        # A torn mark at the end is overwritten, so that later marks are at multiples of their size.
        segment.mark_bytes = surveyed.mark_bytes - surveyed.mark_bytes % MARK_BYTES
        for stored in surveyed.live:
            segment.hold(LiveEntry(stored.ticket, crcs[stored.ticket.id]))
        segment.pending_marks = list(surveyed.finished)
        segment.is_damaged = surveyed.is_damaged
        segment.replaces = {entry.frame.supersedes for entry in entries if entry.frame.supersedes}
        if not surveyed.consecutive:
            segment.replaces.update(crcs)
        return segment

    @property
    def path(self) -> Path:
        """The path of the file."""
        return draft_path(self.directory, self.number) if self.is_draft else log_path(self.directory, self.number)

    @property
    def used_bytes(self) -> int:
        """Bytes on disk, marks included."""
        return self.size_bytes + self.mark_bytes

    @property
    def is_empty(self) -> bool:
        """Whether only the header was ever written."""
        return self.size_bytes <= SEGMENT_HEADER_BYTES

    def append(self, parts: Sequence[Buffer]) -> int:
        """Write all parts at the end, or nothing. Returns where they begin. Raises `OSError`."""
        assert self.file is not None
        start = self.size_bytes
        try:
            if os.fstat(self.file.fileno()).st_nlink == 0:
                self.is_open = False
                raise OSError(errno.ENOENT, "the file was deleted while it was in use")
            self.size_bytes = _write_all(self.file.fileno(), parts, start)
        except OSError:
            self._cut_back(start)
            raise
        return start

    def _cut_back(self, size_bytes: int) -> None:
        """Truncate the file to its size before a failed write."""
        assert self.file is not None
        try:
            os.ftruncate(self.file.fileno(), size_bytes)
        except OSError as exc:
            # The half entry stays. It is never mistaken for a whole one, and the next entry goes into another file.
            logger.warning("%s keeps a half-written entry: %s", self.path, exc)
            self.is_open = False

    def sync(self) -> None:
        """Sync to the disk, unless removed. After a failure, what was written since the last sync may be gone."""
        if self.file is not None:
            os.fdatasync(self.file.fileno())

    def hold(self, held: LiveEntry) -> None:
        """Add a live entry."""
        self.live[held.ticket.id] = held
        self.live_bytes += held.ticket.size_bytes

    def finish(self, entry_id: int) -> None:
        """Mark an entry as done; `write_marks` writes the mark."""
        held = self.live.pop(entry_id)
        self.live_bytes -= held.ticket.size_bytes
        self.pending_marks.append((entry_id, held.crc))

    def write_marks(self) -> None:
        """Write all pending marks at once. After a failure they stay pending and are written to the same place."""
        if not self.pending_marks:
            return
        fd = os.open(
            done_path(self.directory, self.number), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            self.mark_bytes = _write_all(
                fd, [b"".join(pack_mark(*mark) for mark in self.pending_marks)], self.mark_bytes
            )
        finally:
            os.close(fd)
        self.pending_marks.clear()

    def remove(self) -> None:
        """Delete the file, then its marks.

        In this order: a segment without marks would be sent again, but marks without a segment mean nothing.
        """
        try:
            if self.is_damaged:
                os.rename(self.path, damaged_path(self.directory, self.number))
            else:
                os.unlink(self.path)
        except FileNotFoundError:
            pass
        self.close()
        self.pending_marks.clear()
        if self.mark_bytes:
            os.unlink(done_path(self.directory, self.number))

    def close(self) -> None:
        """Close the file."""
        self.is_open = False
        if self.file is not None:
            self.file.close()
            self.file = None


def sync_directory(directory: Path) -> None:
    """Sync the names of new files to the disk. Raises `OSError`."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, parts: Sequence[Buffer], position: int) -> int:
    """Write everything.

    Returns the position after the last byte. A short write is followed by another, which raises.
    """
    left = [memoryview(part).cast("B") for part in parts if len(part)]
    while left:
        written = os.pwritev(fd, left, position)
        if written == 0:
            raise OSError(errno.EIO, "the file takes no more bytes")
        position += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if left and written:
            left[0] = left[0][written:]
    return position
