"""All segments of an open spool together: where each live entry is, which marks wait, which segments can go.

Comes in: segments, and ids that are done. Goes out: bytes of entries, and free space. The rule that it keeps: nothing
that replaced an older entry is deleted before the older one is marked as done, or the older one would come back.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path

from ottla.errors import SpoolFailed
from ottla.produce.spool.contents import log_path, open_segment
from ottla.produce.spool.reserve import is_full
from ottla.produce.spool.segment import Held, Segment

logger = logging.getLogger(__name__)


class Segments:
    """The segments by number. A failure to write marks or to delete is logged and tried again the next time."""

    def __init__(self, directory: Path, segments: Iterable[Segment]) -> None:
        self.directory = directory
        self.segments = {segment.number: segment for segment in segments}
        self._home = {entry_id: s.number for s in self.segments.values() for entry_id in s.live}
        # Since the last `settle`: a long outage leaves hundreds of segments that are not.
        self._touched = set(self.segments.values())
        self._reader: tuple[int, FileIO] | None = None
        self._has_complained = False
        self.lacks_space = False
        """The last `settle` met a full disk."""

    @property
    def count(self) -> int:
        """Live entries."""
        return len(self._home)

    @property
    def used_bytes(self) -> int:
        """On disk, with marks and entries that are done but not yet removed."""
        return sum(segment.used_bytes for segment in self.segments.values())

    @property
    def live_bytes(self) -> int:
        """Of the live entries."""
        return sum(segment.live_bytes for segment in self.segments.values())

    def add(self, segment: Segment) -> None:
        """A new segment."""
        self.segments[segment.number] = segment
        self._touched.add(segment)

    def hold(self, segment: Segment, held: Held) -> None:
        """The entry is live, and there; if it was live elsewhere, what is there is done."""
        self.finish(held.ticket.id)
        segment.hold(held)
        self._home[held.ticket.id] = segment.number

    def finish(self, entry_id: int) -> None:
        """The entry is done; one that is not live is passed over."""
        number = self._home.pop(entry_id, None)
        if number is not None:
            self.segments[number].finish(entry_id)
            self._touched.add(self.segments[number])

    def find(self, entry_id: int) -> Held | None:
        """Where a live entry is."""
        number = self._home.get(entry_id)
        return None if number is None else self.segments[number].live[entry_id]

    def tail(self) -> tuple[int, int]:
        """The last segment whose ids follow one another, and one more than its last id; zeros when there is none."""
        return max(((s.number, s.end_id) for s in self.segments.values() if s.end_id), default=(0, 0))

    def read(self, held: Held) -> bytes:
        """The bytes of an entry, fewer if the file ends before; raises `SpoolFailed`."""
        ticket = held.ticket
        path = log_path(self.directory, ticket.segment)
        try:
            return os.pread(self._file(ticket.segment).fileno(), ticket.size_bytes, ticket.position)
        except OSError as exc:
            raise SpoolFailed(path, f"cannot be read: {exc.strerror}") from exc

    def _file(self, number: int) -> FileIO:
        """What is being written is open already; of the others one at a time is, for there may be thousands."""
        writer = self.segments[number].file
        if writer is not None:
            return writer
        if self._reader is None or self._reader[0] != number:
            self._stop_reading()
            self._reader = number, open_segment(log_path(self.directory, number))
        return self._reader[1]

    def _stop_reading(self) -> None:
        if self._reader is not None:
            self._reader[1].close()
            self._reader = None

    def settle(self, active: Segment | None) -> None:
        """Write the marks that wait and delete the segments that are finished, all but the one being written."""
        problems: list[OSError] = []
        touched = sorted(self._touched, key=lambda segment: segment.number)
        for segment in touched:
            if segment.live or segment is active:
                _try(segment.write_marks, problems)
        finished = [segment for segment in touched if not segment.live and segment is not active]
        while removed := [segment for segment in finished if self._removed(segment, problems)]:
            finished = [segment for segment in finished if segment not in removed]
        for segment in finished:  # held back or not deletable: at least their marks are safe
            _try(segment.write_marks, problems)
        self._touched = {s for s in touched if s.number in self.segments and (s.waiting or not s.live)}
        self.lacks_space = any(map(is_full, problems))
        self._complain(problems)

    def _removed(self, segment: Segment, problems: list[OSError]) -> bool:
        others = (s for s in self.segments.values() if s is not segment)
        if segment.replaces and any(entry_id in segment.replaces for s in others for entry_id, _ in s.waiting):
            return False
        if not _try(segment.remove, problems):
            return False
        if self._reader is not None and self._reader[0] == segment.number:
            self._stop_reading()
        del self.segments[segment.number]
        return True

    def _complain(self, problems: list[OSError]) -> None:
        if problems and not self._has_complained:
            text = "spool %s: marks not written or finished files not deleted, to be tried again: %s"
            logger.warning(text, self.directory, problems[0])
        self._has_complained = bool(problems)

    def close(self) -> None:
        """Release every file."""
        self._stop_reading()
        for segment in self.segments.values():
            segment.close()


def _try(action: Callable[[], None], problems: list[OSError]) -> bool:
    try:
        action()
    except OSError as exc:
        problems.append(exc)
        return False
    return True
