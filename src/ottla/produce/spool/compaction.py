"""Gives back the space of segments in which few entries are still live, by copying those into a new segment.

One partition whose leader is away would otherwise keep a segment each for a handful of batches. The copies get their
name only when they are complete, so that a kill leaves either the old segment or both, and never half of one.
"""

from __future__ import annotations

import logging
from uuid import UUID

from ottla.errors import CorruptBatch, SpoolFailed
from ottla.produce.spool.entries import batch_in, head_of
from ottla.produce.spool.layout import COPIES, SEGMENT_HEADER_BYTES, VERSION, SegmentHeader, frame_crc, parse_frame
from ottla.produce.spool.segment import Held, Segment, sync_directory
from ottla.produce.spool.shelf import Shelf
from ottla.produce.spool.values import Entry, Ticket

logger = logging.getLogger(__name__)


def worthwhile(shelf: Shelf, active: Segment | None, *, spare_bytes: int) -> Segment | None:
    """A segment to compact now, because what is done takes more space than what is live and `spare_bytes`."""
    if shelf.used_bytes <= 2 * shelf.live_bytes + spare_bytes:
        return None
    sparse = sparsest(shelf)
    return None if sparse is active else sparse


def sparsest(shelf: Shelf) -> Segment | None:
    """The segment that would give back most, if that is at least as much as must be copied for it."""
    candidates = [s for s in shelf.segments.values() if s.live and not s.is_fixed and _dead_bytes(s) >= s.live_bytes]
    return max(candidates, key=_dead_bytes, default=None)


def _dead_bytes(segment: Segment) -> int:
    return segment.size_bytes - segment.live_bytes - 2 * SEGMENT_HEADER_BYTES


def compact(shelf: Shelf, sparse: Segment, *, number: int, spool: UUID, fsync: bool) -> bool:
    """Copy what is live in `sparse` into segment `number`, and let `sparse` go; False when that did not work."""
    try:
        copies, moved = _copy(shelf, sparse, number, spool)
        try:
            if fsync:
                copies.sync()
            copies.publish()
            if fsync:
                sync_directory(shelf.directory)
        except OSError:
            copies.remove()
            raise
        finally:
            copies.close()
    except OSError as exc:
        logger.debug("the space of %s cannot be given back yet: %s", sparse.path, exc)
        return False
    except (CorruptBatch, SpoolFailed) as exc:
        sparse.is_fixed = True
        logger.warning("the space of %s cannot be given back before all of it is delivered: %s", sparse.path, exc)
        return False
    shelf.add(copies)
    for held, supersedes in moved:
        copies.replaces.update((held.ticket.id, supersedes))
        shelf.hold(copies, held)
    return True


def _copy(shelf: Shelf, sparse: Segment, number: int, spool: UUID) -> tuple[Segment, list[tuple[Held, int]]]:
    copies = Segment.create(shelf.directory, number, SegmentHeader(VERSION, COPIES, 0, 0, spool))
    live = [sparse.live[entry_id] for entry_id in sorted(sparse.live)]
    try:
        moved = [_copy_entry(shelf.read(held), held.ticket, copies, spool) for held in live]
    except BaseException:
        copies.remove()
        raise
    return copies, moved


def _copy_entry(data: bytes, ticket: Ticket, copies: Segment, spool: UUID) -> tuple[Held, int]:
    batch = batch_in(data, ticket)
    frame = parse_frame(data, position=ticket.position, spool=spool.bytes)
    assert frame is not None  # batch_in has seen it
    created = frame.created_ms / 1000
    entry = Entry(
        frame.topic,
        frame.partition,
        batch.header,
        batch.records,
        frame.floor_offset,
        created,
        frame.supersedes,
        frame.place,
    )
    head = head_of(entry, ticket.id, spool=spool, position=copies.size_bytes)
    position = copies.append([head, batch.records])
    moved = Ticket(ticket.id, copies.number, position, ticket.size_bytes, ticket.place)
    return Held(moved, frame_crc(head)), frame.supersedes
