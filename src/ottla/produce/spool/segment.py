"""One segment and its marks as files: append, cut back, sync, mark, remove.

Comes in: bytes to write at the end. Goes out: positions, or an `OSError` after which the file is as it was before, or
`Segment.is_open` is false and nothing more may be appended. What the bytes mean is not known here.
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

from ottla.produce.spool.contents import Known, damaged_path, done_path, draft_path, log_path
from ottla.produce.spool.layout import COPIES, MARK_BYTES, SEGMENT_HEADER_BYTES, SegmentHeader, pack_mark
from ottla.produce.spool.values import Ticket

logger = logging.getLogger(__name__)

Buffer = bytes | memoryview


class Held(NamedTuple):
    """A live entry: where it is, and the checksum of its frame, by which a mark will name it."""

    ticket: Ticket
    crc: int


@dataclass(slots=True, eq=False)
class Segment:
    """A segment of the spool, being written or complete.

    `end_id` is one more than the last id in it, 0 when it holds copies. `replaces` are ids that entries in here stand
    for: this segment must outlive every older entry with such an id that is not yet marked as done.
    """

    directory: Path
    number: int
    size_bytes: int
    end_id: int
    mark_bytes: int = 0
    live: dict[int, Held] = field(default_factory=dict)
    live_bytes: int = 0
    waiting: list[tuple[int, int]] = field(default_factory=list)
    replaces: set[int] = field(default_factory=set)
    file: FileIO | None = None
    is_open: bool = False
    is_draft: bool = False
    is_damaged: bool = False
    """Has lost entries: its file is kept aside in the end."""
    is_fixed: bool = False
    """Its entries could not be copied elsewhere."""

    @classmethod
    def create(cls, directory: Path, number: int, header: SegmentHeader) -> Segment:
        """A new file, with its header; raises `OSError` and leaves nothing behind. Copies wait for `publish`."""
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
        """A draft becomes part of the spool, whole."""
        os.rename(self.path, log_path(self.directory, self.number))
        self.is_draft = False

    @classmethod
    def inherited(cls, directory: Path, known: Known) -> Segment:
        """One that an earlier owner wrote; nothing is appended to it any more."""
        found = known.scan.found
        crcs = {f.frame.id: f.frame.crc for f in found}
        segment = cls(directory, known.number, known.scan.size_bytes, known.end_id)
        # A torn mark at the end is written over, so that the marks after it stand where they are looked for.
        segment.mark_bytes = known.mark_bytes - known.mark_bytes % MARK_BYTES
        for stored in known.live:
            segment.hold(Held(stored.ticket, crcs[stored.ticket.id]))
        segment.waiting = list(known.finished)
        segment.is_damaged = known.is_damaged
        segment.replaces = {f.frame.supersedes for f in found if f.frame.supersedes}
        if not known.consecutive:
            segment.replaces.update(crcs)
        return segment

    @property
    def path(self) -> Path:
        """The file."""
        return draft_path(self.directory, self.number) if self.is_draft else log_path(self.directory, self.number)

    @property
    def used_bytes(self) -> int:
        """On disk, marks included."""
        return self.size_bytes + self.mark_bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing but the header was ever written."""
        return self.size_bytes <= SEGMENT_HEADER_BYTES

    def append(self, parts: Sequence[Buffer]) -> int:
        """Write all parts at the end, or nothing; returns where they begin."""
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
        assert self.file is not None
        try:
            os.ftruncate(self.file.fileno(), size_bytes)
        except OSError as exc:
            # The half entry stays; it can never pass for a whole one, and the next one goes into another file.
            logger.warning("%s keeps a half-written entry: %s", self.path, exc)
            self.is_open = False

    def sync(self) -> None:
        """To the disk itself, unless removed; after a failure what was written since the last time may be gone."""
        if self.file is not None:
            os.fdatasync(self.file.fileno())

    def hold(self, held: Held) -> None:
        """An entry of this segment is live."""
        self.live[held.ticket.id] = held
        self.live_bytes += held.ticket.size_bytes

    def finish(self, entry_id: int) -> None:
        """The entry is done; the mark waits for `write_marks`."""
        held = self.live.pop(entry_id)
        self.live_bytes -= held.ticket.size_bytes
        self.waiting.append((entry_id, held.crc))

    def write_marks(self) -> None:
        """One write for all that wait; after a failure they still wait, and are written to the same place."""
        if not self.waiting:
            return
        fd = os.open(
            done_path(self.directory, self.number), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
        try:
            self.mark_bytes = _write_all(fd, [b"".join(pack_mark(*mark) for mark in self.waiting)], self.mark_bytes)
        finally:
            os.close(fd)
        self.waiting.clear()

    def remove(self) -> None:
        """Delete the file, then its marks: marks without a segment mean nothing, a segment without marks is resent."""
        try:
            if self.is_damaged:
                os.rename(self.path, damaged_path(self.directory, self.number))
            else:
                os.unlink(self.path)
        except FileNotFoundError:
            pass
        self.close()
        self.waiting.clear()
        if self.mark_bytes:
            os.unlink(done_path(self.directory, self.number))

    def close(self) -> None:
        """Release the file."""
        self.is_open = False
        if self.file is not None:
            self.file.close()
            self.file = None


def sync_directory(directory: Path) -> None:
    """Names of new files to the disk itself."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, parts: Sequence[Buffer], position: int) -> int:
    """Returns the position after the last byte. A short write is followed by another, which tells why."""
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
