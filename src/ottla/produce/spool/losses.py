"""Which damaged places of a segment lost an entry that was still to be sent, and what is known of it.

A `SegmentScan` and what is known from elsewhere come in; `Damage` values go out. Pure. A place whose entries were
acknowledged, or are whole in another segment, is no loss and not reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import NamedTuple

from ottla.produce.spool.layout import CONSECUTIVE
from ottla.produce.spool.scan import CUT_SHORT, Gap, SegmentScan
from ottla.produce.spool.values import Damage


class Tail(NamedTuple):
    """The id after the last entry of a segment."""

    next_id: int


def damage_in(path: str, scan: SegmentScan, *, accounted: Set[int], tail: Tail | None) -> Iterator[Damage]:
    """The losses in one segment, in file order. `accounted` are ids that are done, or whole somewhere."""
    is_consecutive = scan.header is not None and scan.header.kind == CONSECUTIVE
    last_id = scan.header.first_id - 1 if scan.header is not None else 0
    for index, part in enumerate(scan.parts):
        if isinstance(part, Gap):
            if part.frame is not None:
                missing: range | None = range(part.frame.id, part.frame.id + 1)
            else:
                next_id = _next_id(scan, index, tail)
                missing = range(last_id + 1, next_id) if is_consecutive and next_id is not None else None
            lost = None if missing is None else sum(entry_id not in accounted for entry_id in missing)
            if lost != 0:
                yield _damage(path, part, lost)
            if part.frame is None and missing is not None and index + 1 == len(scan.parts):
                return  # the gap reaches to the end and covers the rest
        if part.frame is not None:
            last_id = part.frame.id
    if is_consecutive and tail is not None:
        lost = sum(entry_id not in accounted for entry_id in range(last_id + 1, tail.next_id))
        if lost:
            yield Damage(path, scan.size_bytes, 0, CUT_SHORT, entries=lost)


def _next_id(scan: SegmentScan, index: int, tail: Tail | None) -> int | None:
    """The id after a gap without a frame: of the next frame, or of what followed the segment."""
    if index + 1 < len(scan.parts):
        following = scan.parts[index + 1]
        return following.frame.id if following.frame is not None else None
    return tail.next_id if tail is not None else None


def _damage(path: str, gap: Gap, lost: int | None) -> Damage:
    """The value for a gap, with what is known of its entry."""
    topic = partition = None
    if gap.frame is not None:
        topic, partition = gap.frame.topic, gap.frame.partition
    return Damage(path, gap.start, gap.stop - gap.start, gap.reason, topic, partition, gap.batch, lost)
