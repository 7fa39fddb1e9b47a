"""Writes entries that appear together or not at all, in a file that gets its name when it is complete.

It has two uses. Compaction frees the space of segments with few live entries, by copying those into a new segment:
otherwise a single partition without a leader could keep one segment for each handful of batches. And the parts of a
split batch are written this way. A kill leaves what was there before, or the whole new file, never half of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

from ottla.errors import CorruptBatch, SpoolFailed
from ottla.produce.spool.entries import batch_in, head_of, size_on_disk
from ottla.produce.spool.layout import COPIES, SEGMENT_HEADER_BYTES, VERSION, SegmentHeader, frame_crc, parse_frame
from ottla.produce.spool.segment import LiveEntry, Segment, sync_directory
from ottla.produce.spool.segments import Segments
from ottla.produce.spool.values import Entry, Ticket

logger = logging.getLogger(__name__)


def write_together(
    directory: Path, number: int, entries: Iterable[tuple[int, Entry]], *, spool: UUID, fsync: bool
) -> tuple[Segment, list[LiveEntry]]:
    """Write entries with their ids as segment `number`. Raises `OSError` and leaves nothing behind."""
    segment = Segment.create(directory, number, SegmentHeader(VERSION, COPIES, 0, 0, spool))
    written: list[LiveEntry] = []
    try:
        for entry_id, entry in entries:
            written.append(_append(segment, entry_id, entry, spool))
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
    return segment, written


def _append(segment: Segment, entry_id: int, entry: Entry, spool: UUID) -> LiveEntry:
    """Append an entry to the segment under this id."""
    head = head_of(entry, entry_id, spool=spool, position=segment.size_bytes)
    position = segment.append([head, entry.records])
    ticket = Ticket(entry_id, segment.number, position, size_on_disk(entry), entry.place or entry_id)
    return LiveEntry(ticket, frame_crc(head))


def worthwhile(segments: Segments, active: Segment | None, *, spare_bytes: int) -> Segment | None:
    """A segment to compact now, if finished entries take more space than live ones plus `spare_bytes`; else None."""
    if segments.used_bytes <= 2 * segments.live_bytes + spare_bytes:
        return None
    sparse = sparsest(segments)
    return None if sparse is active else sparse


def sparsest(segments: Segments) -> Segment | None:
    """The segment that would free most, if that is at least as much as must be copied for it."""
    return max(_sparse(segments), key=_dead_bytes, default=None)


def cheapest(segments: Segments) -> Segment | None:
    """Of the sparse segments the one with least to copy: on a full disk, the copy may just fit."""
    return min(_sparse(segments), key=lambda segment: segment.live_bytes, default=None)


def _sparse(segments: Segments) -> list[Segment]:
    """The segments whose finished entries take at least as much space as their live ones."""
    return [
        segment
        for segment in segments.by_number.values()
        if segment.live and not segment.is_fixed and _dead_bytes(segment) >= segment.live_bytes
    ]


def _dead_bytes(segment: Segment) -> int:
    """What compacting the segment would free, less the header of the copy."""
    return segment.size_bytes - segment.live_bytes - 2 * SEGMENT_HEADER_BYTES


def compact(segments: Segments, sparse: Segment, *, number: int, spool: UUID, fsync: bool) -> bool:
    """Copy the live entries of `sparse` into segment `number`, which finishes `sparse`.

    Returns False if that failed.
    """
    live = [sparse.live[entry_id] for entry_id in sorted(sparse.live)]
    copies_of = ((entry.ticket.id, _entry(segments.read(entry), entry.ticket, spool)) for entry in live)
    try:
        copies, moved = write_together(segments.directory, number, copies_of, spool=spool, fsync=fsync)
    except OSError as exc:
        logger.debug("cannot compact %s yet: %s", sparse.path, exc)
        return False
    except (CorruptBatch, SpoolFailed) as exc:
        sparse.is_fixed = True
        logger.warning("cannot compact %s, its space is freed only when all of it is delivered: %s", sparse.path, exc)
        return False
    segments.add(copies)
    for entry in moved:
        segments.hold(copies, entry)
    return True


def _entry(data: bytes, ticket: Ticket, spool: UUID) -> Entry:
    """The entry as it was put, read back and verified."""
    batch = batch_in(data, ticket)
    frame = parse_frame(data, position=ticket.position, spool=spool.bytes)
    assert frame is not None  # batch_in has parsed it
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
