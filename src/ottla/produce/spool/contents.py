"""What a spool directory holds: which entries are still to be sent, and what was lost of the others.

Comes in: a directory and what its last owner wrote. Goes out: `Contents`. It only reads; a file that is missing,
empty, cut short or damaged costs the entries in the damaged places and nothing else.
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
from ottla.produce.spool.scan import CUT_SHORT, Found, SegmentScan, scan_segment
from ottla.produce.spool.values import Damage, Stored, Ticket

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{6,18})\.(log|done|damaged|log\.new)", re.ASCII)


@dataclass(slots=True)
class Known:
    """One segment as it was found. `finished` entries need no sending although no mark here says so."""

    number: int
    scan: SegmentScan
    marks: set[tuple[int, int]]
    mark_bytes: int
    live: list[Stored] = field(default_factory=list)
    finished: list[tuple[int, int]] = field(default_factory=list)
    is_damaged: bool = False

    @property
    def consecutive(self) -> bool:
        """Whether the ids in it are known to follow one another."""
        return self.scan.header is not None and self.scan.header.kind == CONSECUTIVE

    @property
    def end_id(self) -> int:
        """One more than the last id that can be seen in it; 0 when its ids do not follow one another."""
        first = self.scan.header.first_id if self.scan.header is not None else 0
        return max((i + 1 for i in self.ids), default=first) if self.consecutive else 0

    @property
    def ids(self) -> Iterator[int]:
        """What can be seen of them. The id of an entry that was cut short is free again: its `put` never returned."""
        for part in self.scan.parts:
            if part.frame is not None and (isinstance(part, Found) or part.reason != CUT_SHORT):
                yield part.frame.id

    def is_marked(self, found: Found) -> bool:
        """Whether this very frame was acknowledged."""
        return (found.frame.id, found.frame.crc) in self.marks


@dataclass(slots=True)
class Contents:
    """A whole directory. `leftovers` are marks whose segment is gone and copies that a kill left incomplete."""

    spool: UUID
    segments: dict[int, Known]
    live: list[Stored]
    damage: list[Damage]
    leftovers: list[Path]
    next_id: int
    next_segment: int


def log_path(directory: Path, number: int) -> Path:
    """The segment."""
    return directory / f"{number:06d}.log"


def done_path(directory: Path, number: int) -> Path:
    """The marks of the segment."""
    return directory / f"{number:06d}.done"


def draft_path(directory: Path, number: int) -> Path:
    """A segment of copies before it is complete."""
    return directory / f"{number:06d}.log.new"


def damaged_path(directory: Path, number: int) -> Path:
    """A segment that lost entries, kept for people to look at after the others were delivered."""
    return directory / f"{number:06d}.damaged"


def survey(directory: Path, record: Record | None) -> Contents:
    """Read everything. Raises `SpoolFailed` when the directory cannot be read, is of a newer format or a mixture."""
    names = _numbers(directory)
    segments = {n: known for n in sorted(names["log"]) if (known := _look_at(directory, n)) is not None}
    spool = _whose(directory, segments, record)
    accounted = _judge(segments)
    tails = _tails(segments, record if record is not None and record.spool == str(spool) else None)
    # A file without even a header is what a kill leaves of the newest segment, and damage anywhere else.
    written_up_to = max([*list(segments)[:-1][-1:], record.tail_segment if record is not None else 0])
    damage = []
    for number, known in segments.items():
        path = str(log_path(directory, number))
        lost = list(damage_in(path, known.scan, accounted=accounted, tail=tails.get(number)))
        if known.scan.header is None and not known.scan.parts and number <= written_up_to:
            lost.append(Damage(path, 0, known.scan.size_bytes, CUT_SHORT))
        known.is_damaged = any(d.reason != CUT_SHORT for d in lost)
        damage += lost
    live = sorted((s for k in segments.values() for s in k.live), key=lambda s: (s.ticket.place, s.ticket.id))
    return Contents(
        spool,
        segments,
        live,
        damage,
        leftovers=[
            *(done_path(directory, n) for n in names["done"] if n not in segments),
            *(draft_path(directory, n) for n in names["log.new"]),
        ],
        next_id=max(_ids(segments.values(), record), default=0) + 1,
        next_segment=max((n for numbers in names.values() for n in numbers), default=0) + 1,
    )


def open_segment(path: Path) -> FileIO:
    """For reading; raises `SpoolFailed` for what is not a regular file, `FileNotFoundError` when there is none."""
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


def _numbers(directory: Path) -> dict[str, list[int]]:
    """The numbers of our files by what they are; others are left alone."""
    try:
        names = os.listdir(directory)
    except OSError as exc:
        raise SpoolFailed(directory, f"cannot be read: {exc.strerror}") from exc
    found: dict[str, list[int]] = {"log": [], "done": [], "damaged": [], "log.new": []}
    for match in filter(None, map(_NAME.fullmatch, names)):
        number = int(match[1])
        if match[1] == f"{number:06d}" and number > 0:
            found[match[2]].append(number)
    return found


def _look_at(directory: Path, number: int) -> Known | None:
    path = log_path(directory, number)
    try:
        with open_segment(path) as file:
            scan = scan_segment(file.fileno())
    except FileNotFoundError:
        return None  # its owner removed it meanwhile
    if scan.version is not None and scan.version > VERSION:
        raise SpoolFailed(
            path,
            f"written by a newer Ottla: its format is {scan.version}, this one reads up to {VERSION}; upgrade first",
        )
    marks = _marks(done_path(directory, number))
    return Known(number, scan, set(parse_marks(marks)), len(marks))


def _marks(path: Path) -> bytes:
    """Missing or unreadable marks are no loss: their entries are sent again, and Kafka knows what it has."""
    try:
        with open_segment(path) as file:
            return file.readall()
    except FileNotFoundError:
        return b""
    except (OSError, SpoolFailed) as exc:
        logger.warning("acknowledgements in %s cannot be read, their batches count as not sent: %s", path, exc)
        return b""


def _whose(directory: Path, segments: dict[int, Known], record: Record | None) -> UUID:
    """The id of the spool: what the segments say, and for an empty directory what the owner file says."""
    ids: dict[UUID, int] = {}
    for known in segments.values():
        if known.scan.header is not None:
            ids.setdefault(known.scan.header.spool, known.number)
        for found in known.scan.found[:1]:
            ids.setdefault(UUID(bytes=found.frame.spool), known.number)
    if len(ids) > 1:
        names = " and ".join(log_path(directory, number).name for number in ids.values())
        raise SpoolFailed(directory, f"{names} belong to different spools: move each one's into a directory of its own")
    if ids:
        return next(iter(ids))
    return UUID(record.spool) if record is not None else uuid.uuid4()


def _judge(segments: dict[int, Known]) -> set[int]:
    """Sort the entries of each segment into live and finished; returns the ids that no damaged place can have lost."""
    newest: dict[int, int] = {}
    over: set[int] = set()
    marked: set[int] = set()
    for known in segments.values():
        marked.update(entry_id for entry_id, _ in known.marks)
        for found in known.scan.found:
            newest[found.frame.id] = known.number  # a copy is always in a later segment than what it was made from
            over.add(found.frame.supersedes)
            if known.is_marked(found):
                over.add(found.frame.id)
    for known in segments.values():
        for found in known.scan.found:
            entry_id = found.frame.id
            if entry_id not in over and newest[entry_id] == known.number:
                known.live.append(_stored(found, known.number))
            elif not known.is_marked(found):
                known.finished.append((entry_id, found.frame.crc))
    return over | marked | newest.keys()


def _stored(found: Found, number: int) -> Stored:
    frame = found.frame
    ticket = Ticket(frame.id, number, frame.position, frame.total_bytes, frame.place)
    created = frame.created_ms / 1000
    return Stored(ticket, frame.topic, frame.partition, found.batch, frame.floor_offset, created, frame.supersedes)


def _tails(segments: dict[int, Known], record: Record | None) -> dict[int, Tail]:
    """For some segments, the id with which the entries went on after it: the next one says so, or the last owner."""
    tails = {} if record is None else {record.tail_segment: Tail(record.tail_id)}
    for known in segments.values():
        if known.scan.header is not None and known.scan.header.follows:
            tails[known.scan.header.follows] = Tail(known.scan.header.first_id)
    return tails


def _ids(segments: Iterable[Known], record: Record | None) -> Iterator[int]:
    """Every id that was ever given out, as far as can be seen."""
    if record is not None:
        yield record.next_id - 1
    for known in segments:
        if known.scan.header is not None:
            yield known.scan.header.first_id - 1
        yield from (entry_id for entry_id, _ in known.marks)
        yield from known.ids
