"""Entries that appear together or not at all, in a file that gets its name when it is complete.

Two uses: giving back the space of segments in which few entries are still live, by copying those into a new segment
(one partition whose leader is away would otherwise keep a segment each for a handful of batches), and the parts of a
batch that had to be cut. A kill leaves what was there before, or all of the new file, and never half of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from ottla.errors import CorruptBatch, SpoolFailed
from ottla.produce.spool.entries import batch_in, head_of, size_on_disk
from ottla.produce.spool.layout import COPIES, SEGMENT_HEADER_BYTES, VERSION, SegmentHeader, frame_crc, parse_frame
from ottla.produce.spool.segment import Held, Segment, sync_directory
from ottla.produce.spool.segments import Segments
from ottla.produce.spool.values import Entry, Ticket

logger = logging.getLogger(__name__)


def write_together(
    directory: Path, number: int, entries: Iterable[tuple[int, Entry]], *, spool: UUID, fsync: bool
) -> tuple[Segment, list[Held]]:
    """Entries with their ids as segment `number`; raises `OSError` and leaves nothing behind."""
    segment = Segment.create(directory, number, SegmentHeader(VERSION, COPIES, 0, 0, spool))
    held: list[Held] = []
    try:
        for entry_id, entry in entries:
            held.append(_append(segment, entry_id, entry, spool))
            segment.replaces.update((entry_id, entry.supersedes))
        if fsync:
            segment.sync()
        segment.publish()
        if fsync:
            sync_directory(directory)
    except BaseException:
        segment.remove()
        raise
    segment.close()
    return segment, held


def _append(segment: Segment, entry_id: int, entry: Entry, spool: UUID) -> Held:
    head = head_of(entry, entry_id, spool=spool, position=segment.size_bytes)
    position = segment.append([head, entry.records])
    ticket = Ticket(entry_id, segment.number, position, size_on_disk(entry), entry.place or entry_id)
    return Held(ticket, frame_crc(head))


def worthwhile(shelf: Segments, active: Segment | None, *, spare_bytes: int) -> Segment | None:
    """A segment to compact now, because what is done takes more space than what is live and `spare_bytes`."""
    if shelf.used_bytes <= 2 * shelf.live_bytes + spare_bytes:
        return None
    sparse = sparsest(shelf)
    return None if sparse is active else sparse


def sparsest(shelf: Segments) -> Segment | None:
    """The segment that would give back most, if that is at least as much as must be copied for it."""
    return max(_sparse(shelf), key=_dead_bytes, default=None)


def cheapest(shelf: Segments) -> Segment | None:
    """Of the same segments the one of which least must be copied: on a full disk, it may just find room."""
    return min(_sparse(shelf), key=lambda segment: segment.live_bytes, default=None)


def _sparse(shelf: Segments) -> list[Segment]:
    return [s for s in shelf.segments.values() if s.live and not s.is_fixed and _dead_bytes(s) >= s.live_bytes]


def _dead_bytes(segment: Segment) -> int:
    return segment.size_bytes - segment.live_bytes - 2 * SEGMENT_HEADER_BYTES


def compact(shelf: Segments, sparse: Segment, *, number: int, spool: UUID, fsync: bool) -> bool:
    """Copy what is live in `sparse` into segment `number`, and let `sparse` go; False when that did not work."""
    live = [sparse.live[entry_id] for entry_id in sorted(sparse.live)]
    entries = ((held.ticket.id, _entry(shelf.read(held), held.ticket, spool)) for held in live)
    try:
        copies, moved = write_together(shelf.directory, number, entries, spool=spool, fsync=fsync)
    except OSError as exc:
        logger.debug("the space of %s cannot be given back yet: %s", sparse.path, exc)
        return False
    except (CorruptBatch, SpoolFailed) as exc:
        sparse.is_fixed = True
        logger.warning("the space of %s cannot be given back before all of it is delivered: %s", sparse.path, exc)
        return False
    shelf.add(copies)
    for held in moved:
        shelf.hold(copies, held)
    return True


def _entry(data: bytes, ticket: Ticket, spool: UUID) -> Entry:
    """As it was put, read back and verified."""
    batch = batch_in(data, ticket)
    frame = parse_frame(data, position=ticket.position, spool=spool.bytes)
    assert frame is not None  # batch_in has seen it
    return Entry(
        frame.topic,
        frame.partition,
        batch.header,
        batch.records,
        frame.floor_offset,
        frame.created_ms / 1000,
        frame.supersedes,
        frame.place,
    )
