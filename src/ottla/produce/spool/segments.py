"""All segments of an open spool: where each live entry is, which marks are pending, which segments can go.

Segments and ids that are done come in; bytes of entries and free space go out. The rule it keeps: an entry that
replaced an older one is not deleted before the older one is marked as done, or the older one would come back.
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
from ottla.produce.spool.segment import LiveEntry, Segment

logger = logging.getLogger(__name__)


class Segments:
    """The segments by number. A failure to write marks or to delete is logged and retried the next time."""

    def __init__(self, directory: Path, segments: Iterable[Segment]) -> None:
        self.directory = directory
        self.by_number = {segment.number: segment for segment in segments}
        self._segment_of = {
            entry_id: segment.number for segment in self.by_number.values() for entry_id in segment.live
        }
        # Changed since the last `settle`. After a long outage there are hundreds of segments that are not.
        self._touched = set(self.by_number.values())
        self._reader: tuple[int, FileIO] | None = None
        self._has_logged = False
        self.lacks_space = False
        """Whether the last `settle` met a full disk."""

    @property
    def count(self) -> int:
        """The number of live entries."""
        return len(self._segment_of)

    @property
    def used_bytes(self) -> int:
        """Bytes on disk, with marks and entries that are done but not removed yet."""
        return sum(segment.used_bytes for segment in self.by_number.values())

    @property
    def live_bytes(self) -> int:
        """Bytes of the live entries."""
        return sum(segment.live_bytes for segment in self.by_number.values())

    def add(self, segment: Segment) -> None:
        """Add a new segment."""
        self.by_number[segment.number] = segment
        self._touched.add(segment)

    def hold(self, segment: Segment, held: LiveEntry) -> None:
        """Make the entry live in this segment. If it was live elsewhere, that copy is done."""
        self.finish(held.ticket.id)
        segment.hold(held)
        self._segment_of[held.ticket.id] = segment.number

    def finish(self, entry_id: int) -> None:
        """Mark an entry as done; one that is not live is ignored."""
        number = self._segment_of.pop(entry_id, None)
        if number is not None:
            self.by_number[number].finish(entry_id)
            self._touched.add(self.by_number[number])

    def find(self, entry_id: int) -> LiveEntry | None:
        """The live entry with this id, or None."""
        number = self._segment_of.get(entry_id)
        return None if number is None else self.by_number[number].live[entry_id]

    def tail(self) -> tuple[int, int]:
        """The last segment with consecutive ids, and one more than its last id; zeros if there is none."""
        return max(
            ((segment.number, segment.end_id) for segment in self.by_number.values() if segment.end_id), default=(0, 0)
        )

    def read(self, held: LiveEntry) -> bytes:
        """The bytes of an entry, fewer if the file ends before. Raises `SpoolFailed`."""
        ticket = held.ticket
        path = log_path(self.directory, ticket.segment)
        try:
            return os.pread(self._file(ticket.segment).fileno(), ticket.size_bytes, ticket.position)
        except OSError as exc:
            raise SpoolFailed(path, f"cannot be read: {exc.strerror}") from exc

    def _file(self, number: int) -> FileIO:
        """The open file of a segment. Of those not being written one at a time is open, as there may be thousands."""
        writer = self.by_number[number].file
        if writer is not None:
            return writer
        if self._reader is None or self._reader[0] != number:
            self._stop_reading()
            self._reader = number, open_segment(log_path(self.directory, number))
        return self._reader[1]

    def _stop_reading(self) -> None:
        """Close the file that is open for reading."""
        if self._reader is not None:
            self._reader[1].close()
            self._reader = None

    def settle(self, active: Segment | None) -> None:
        """Write pending marks and delete finished segments, except the one being written."""
        problems: list[OSError] = []
        touched = sorted(self._touched, key=lambda segment: segment.number)
        for segment in touched:
            if segment.live or segment is active:
                _try(segment.write_marks, problems)
        finished = [segment for segment in touched if not segment.live and segment is not active]
        while removed := [segment for segment in finished if self._try_remove(segment, problems)]:
            finished = [segment for segment in finished if segment not in removed]
        for segment in finished:  # held back or not deletable: at least write their marks
            _try(segment.write_marks, problems)
        self._touched = {
            segment
            for segment in touched
            if segment.number in self.by_number and (segment.pending_marks or not segment.live)
        }
        self.lacks_space = any(map(is_full, problems))
        self._log_problems(problems)

    def _try_remove(self, segment: Segment, problems: list[OSError]) -> bool:
        """Delete a finished segment, unless an older entry that it replaced has a pending mark.

        Returns whether it is gone.
        """
        others = (other for other in self.by_number.values() if other is not segment)
        if segment.replaces and any(
            entry_id in segment.replaces for other in others for entry_id, _ in other.pending_marks
        ):
            return False
        if not _try(segment.remove, problems):
            return False
        if self._reader is not None and self._reader[0] == segment.number:
            self._stop_reading()
        del self.by_number[segment.number]
        return True

    def _log_problems(self, problems: list[OSError]) -> None:
        """Log the first problem, once until everything works again."""
        if problems and not self._has_logged:
            text = "spool %s: cannot write marks or delete finished files, will retry: %s"
            logger.warning(text, self.directory, problems[0])
        self._has_logged = bool(problems)

    def close(self) -> None:
        """Close every file."""
        self._stop_reading()
        for segment in self.by_number.values():
            segment.close()


def _try(action: Callable[[], None], problems: list[OSError]) -> bool:
    """Run an action and collect its `OSError`. Returns whether it succeeded."""
    try:
        action()
    except OSError as exc:
        problems.append(exc)
        return False
    return True
