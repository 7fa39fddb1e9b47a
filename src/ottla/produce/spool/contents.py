"""What a spool directory holds: which entries are still to be sent, and what was lost of the others.

A directory and the record of its last owner come in; `Contents` go out. It only reads. A file that is missing, empty,
cut short or damaged costs the entries in the damaged places and nothing else.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import stat
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from uuid import UUID

from ottla.errors import SpoolFailed
from ottla.produce.spool.layout import CONSECUTIVE, VERSION, parse_marks
from ottla.produce.spool.losses import Tail, damage_in
from ottla.produce.spool.ownership import Record
from ottla.produce.spool.scan import CUT_SHORT, SegmentScan, WholeEntry, scan_segment
from ottla.produce.spool.values import Damage, Stored, Ticket

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{6,18})\.(log|done|damaged|log\.new)", re.ASCII)


@dataclass(slots=True)
class SurveyedSegment:
    """One segment as it was found. `finished` entries need no sending although they have no mark here."""

    number: int
    scan: SegmentScan
    marks: set[tuple[int, int]]
    mark_bytes: int
    live: list[Stored] = field(default_factory=list)
    finished: list[tuple[int, int]] = field(default_factory=list)
    is_damaged: bool = False

    @property
    def consecutive(self) -> bool:
        """Whether the ids in it are known to be consecutive."""
        return self.scan.header is not None and self.scan.header.kind == CONSECUTIVE

    @property
    def end_id(self) -> int:
        """One more than the last visible id in it; 0 if its ids are not consecutive."""
        first = self.scan.header.first_id if self.scan.header is not None else 0
        return max((i + 1 for i in self.ids), default=first) if self.consecutive else 0

    @property
    def ids(self) -> Iterator[int]:
        """The visible ids. The id of an entry that was cut short is free again: its `put` never returned."""
        for part in self.scan.parts:
            if part.frame is not None and (isinstance(part, WholeEntry) or part.reason != CUT_SHORT):
                yield part.frame.id

    def is_marked(self, entry: WholeEntry) -> bool:
        """Whether this very frame was acknowledged."""
        return (entry.frame.id, entry.frame.crc) in self.marks


@dataclass(slots=True)
class Contents:
    """A whole directory. `leftovers` are marks whose segment is gone and copies that a kill left incomplete."""

    spool: UUID
    segments: dict[int, SurveyedSegment]
    live: list[Stored]
    damage: list[Damage]
    leftovers: list[Path]
    next_id: int
    next_segment: int


def log_path(directory: Path, number: int) -> Path:
    """The file of a segment."""
    return directory / f"{number:06d}.log"


def done_path(directory: Path, number: int) -> Path:
    """The file of a segment's marks."""
    return directory / f"{number:06d}.done"


def draft_path(directory: Path, number: int) -> Path:
    """The file of a segment of copies before it is complete."""
    return directory / f"{number:06d}.log.new"


def damaged_path(directory: Path, number: int) -> Path:
    """The file of a segment that lost entries, kept for inspection after the others were delivered."""
    return directory / f"{number:06d}.damaged"


def survey(directory: Path, record: Record | None) -> Contents:
    """Read the whole directory. Raises `SpoolFailed` if it cannot be read, has a newer format, or mixes two spools."""
    names = _file_numbers(directory)
    segments = {
        number: surveyed
        for number in sorted(names["log"])
        if (surveyed := _survey_segment(directory, number)) is not None
    }
    spool = _spool_id(directory, segments, record)
    accounted = _classify(segments)
    tails = _tails(segments, record if record is not None and record.spool == str(spool) else None)
    # A kill can leave the newest segment without even a header; in any other segment that is damage.
    written_up_to = max([*list(segments)[:-1][-1:], record.tail_segment if record is not None else 0])
    damage = []
    for number, surveyed in segments.items():
        path = str(log_path(directory, number))
        lost = list(damage_in(path, surveyed.scan, accounted=accounted, tail=tails.get(number)))
        if surveyed.scan.header is None and not surveyed.scan.parts and number <= written_up_to:
            lost.append(Damage(path, 0, surveyed.scan.size_bytes, CUT_SHORT))
        surveyed.is_damaged = any(damage_item.reason != CUT_SHORT for damage_item in lost)
        damage += lost
    live = sorted(
        (entry for surveyed in segments.values() for entry in surveyed.live),
        key=lambda entry: (entry.ticket.place, entry.ticket.id),
    )
    return Contents(
        spool,
        segments,
        live,
        damage,
        leftovers=[
            *(done_path(directory, number) for number in names["done"] if number not in segments),
            *(draft_path(directory, number) for number in names["log.new"]),
        ],
        next_id=max(_used_ids(segments.values(), record), default=0) + 1,
        next_segment=max((number for numbers in names.values() for number in numbers), default=0) + 1,
    )


def open_segment(path: Path) -> FileIO:
    """Open a file for reading.

    Raises `SpoolFailed` if it is not a regular file, `FileNotFoundError` if there is none.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as exc:
        link = exc.errno == errno.ELOOP
        raise SpoolFailed(path, "is a symbolic link" if link else f"cannot be opened: {exc.strerror}") from exc
    file = FileIO(fd, "r")
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        file.close()
        raise SpoolFailed(path, "is not a regular file")
    return file


def _file_numbers(directory: Path) -> dict[str, list[int]]:
    """The numbers of our files by kind; other files are ignored."""
    try:
        names = os.listdir(directory)
    except OSError as exc:
        raise SpoolFailed(directory, f"cannot be read: {exc.strerror}") from exc
    numbers: dict[str, list[int]] = {"log": [], "done": [], "damaged": [], "log.new": []}
    for match in filter(None, map(_NAME.fullmatch, names)):
        number = int(match[1])
        if match[1] == f"{number:06d}" and number > 0:
            numbers[match[2]].append(number)
    return numbers


def _survey_segment(directory: Path, number: int) -> SurveyedSegment | None:
    """Scan one segment and its marks. Raises `SpoolFailed` if its format is newer than ours."""
    path = log_path(directory, number)
    try:
        with open_segment(path) as file:
            scan = scan_segment(file.fileno())
    except FileNotFoundError:
        return None  # its owner has removed it
    if scan.version is not None and scan.version > VERSION:
        raise SpoolFailed(
            path,
            f"written by a newer Ottla: its format is {scan.version}, this one reads up to {VERSION}; upgrade first",
        )
    marks = _marks(done_path(directory, number))
    return SurveyedSegment(number, scan, set(parse_marks(marks)), len(marks))


def _marks(path: Path) -> bytes:
    """The bytes of the marks.

    Missing or unreadable marks are no loss: entries are sent again, and Kafka deduplicates.
    """
    try:
        with open_segment(path) as file:
            return file.readall()
    except FileNotFoundError:
        return b""
    except (OSError, SpoolFailed) as exc:
        logger.warning("marks in %s cannot be read, their batches are sent again: %s", path, exc)
        return b""


def _spool_id(directory: Path, segments: dict[int, SurveyedSegment], record: Record | None) -> UUID:
    """The id of the spool, from the segments, or for an empty directory from the owner file."""
    ids: dict[UUID, int] = {}
    for surveyed in segments.values():
        if surveyed.scan.header is not None:
            ids.setdefault(surveyed.scan.header.spool, surveyed.number)
        for entry in surveyed.scan.entries[:1]:
            ids.setdefault(UUID(bytes=entry.frame.spool), surveyed.number)
    if len(ids) > 1:
        names = " and ".join(log_path(directory, number).name for number in ids.values())
        raise SpoolFailed(directory, f"{names} belong to different spools: move each one's into a directory of its own")
    if ids:
        return next(iter(ids))
    return UUID(record.spool) if record is not None else uuid.uuid4()


def _classify(segments: dict[int, SurveyedSegment]) -> set[int]:
    """Sort the entries of each segment into live and finished. Returns the ids that no damaged place can have lost."""
    newest: dict[int, int] = {}
    finished: set[int] = set()
    marked: set[int] = set()
    for surveyed in segments.values():
        marked.update(entry_id for entry_id, _ in surveyed.marks)
        for entry in surveyed.scan.entries:
            newest[entry.frame.id] = surveyed.number  # a copy is always in a later segment than the original
            finished.add(entry.frame.supersedes)
            if surveyed.is_marked(entry):
                finished.add(entry.frame.id)
    for surveyed in segments.values():
        for entry in surveyed.scan.entries:
            entry_id = entry.frame.id
            if entry_id not in finished and newest[entry_id] == surveyed.number:
                surveyed.live.append(_stored(entry, surveyed.number))
            elif not surveyed.is_marked(entry):
                surveyed.finished.append((entry_id, entry.frame.crc))
    return finished | marked | newest.keys()


def _stored(entry: WholeEntry, number: int) -> Stored:
    """The value for a live entry."""
    frame = entry.frame
    ticket = Ticket(frame.id, number, frame.position, frame.total_bytes, frame.place)
    created = frame.created_ms / 1000
    return Stored(ticket, frame.topic, frame.partition, entry.batch, frame.floor_offset, created, frame.supersedes)


def _tails(segments: dict[int, SurveyedSegment], record: Record | None) -> dict[int, Tail]:
    """For some segments, the id after their last one, as the next segment or the last owner recorded it."""
    tails = {} if record is None else {record.tail_segment: Tail(record.tail_id)}
    for surveyed in segments.values():
        if surveyed.scan.header is not None and surveyed.scan.header.follows:
            tails[surveyed.scan.header.follows] = Tail(surveyed.scan.header.first_id)
    return tails


def _used_ids(segments: Iterable[SurveyedSegment], record: Record | None) -> Iterator[int]:
    """Every id that was ever assigned, as far as visible."""
    if record is not None:
        yield record.next_id - 1
    for surveyed in segments:
        if surveyed.scan.header is not None:
            yield surveyed.scan.header.first_id - 1
        yield from (entry_id for entry_id, _ in surveyed.marks)
        yield from surveyed.ids
