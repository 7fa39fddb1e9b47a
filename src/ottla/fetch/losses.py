"""Decides which offsets of a partition are lost, and where reading continues.

A cursor and the extent of its log come in; a `Loss` goes out, or None if nothing is lost. Pure. A cursor with a stop
is a range, and nothing outside of it is ever read: whatever the policy, it continues with what the log has of it, and
is over if nothing is left. A cursor without a stop follows its log to where the policy says.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.fetch.cursor import Cursor
from ottla.fetch.log_extent import LogExtent
from ottla.fetch.options import OnLost


class Loss(NamedTuple):
    """The records at `[start, stop)` are gone or were replaced. Reading continues at `resume`."""

    start: int
    stop: int
    resume: int
    reason: str
    replaced: bool = False
    """The log belongs to another topic of the same name."""


def outside(cursor: Cursor, extent: LogExtent, on_lost: OnLost) -> Loss | None:
    """The broker refused the offset as out of range. None if its log has the offset now."""
    position = cursor.position
    if extent.first <= position <= extent.last:
        return None
    resume = _resume(cursor, extent, on_lost)
    if position < extent.first:
        return Loss(position, min(cursor.stop, extent.first), resume, "they are older than what the topic keeps")
    reason = f"the log ends at {extent.last}: it was truncated, or the offset was never written"
    if _stays_inside(cursor, on_lost):
        return Loss(position, cursor.stop, resume, reason)
    return Loss(extent.last, position, resume, reason)


def replaced(cursor: Cursor, extent: LogExtent, on_lost: OnLost, reason: str) -> Loss:
    """Another log now has the same name."""
    position, stop = cursor.position, cursor.stop
    if not _stays_inside(cursor, on_lost):
        stop = min(stop, max(position + 1, extent.last))
    return Loss(position, stop, _resume(cursor, extent, on_lost), reason, replaced=True)


def foreign(cursor: Cursor, extent: LogExtent, on_lost: OnLost) -> Loss:
    """The log is older than the leader epoch of the last record that was read."""
    reason = (
        f"the offset has leader epoch {cursor.epoch}, which this log never had: it was committed for another topic of"
        " the same name, or the log was restored from an older copy"
    )
    return replaced(cursor, extent, on_lost, reason)


def diverged(cursor: Cursor, end_offset: int, on_lost: OnLost) -> Loss | None:
    """From `end_offset` on, the log now has other records than those that were read. None if none was read there."""
    if end_offset >= cursor.position:
        return None
    reason = (
        f"the log was truncated to offset {end_offset} and written again after an unclean leader election:"
        " these offsets now have other records than those that were read"
    )
    lowest = cursor.start if _stays_inside(cursor, on_lost) else 0
    start = max(lowest, min(end_offset, cursor.position))
    return Loss(start, cursor.position, start, reason)


def overdue(cursor: Cursor, extent: LogExtent) -> Loss | None:
    """No record of the range has come for too long. None if the log has some that cannot be read yet."""
    if extent.last > cursor.position:
        return None
    reason = f"the log ends at {extent.last} and got no new records: it was truncated, or they were never written"
    return Loss(cursor.position, cursor.stop, cursor.stop, reason)


def _stays_inside(cursor: Cursor, on_lost: OnLost) -> bool:
    return cursor.is_bounded and on_lost is not OnLost.ERROR


def _resume(cursor: Cursor, extent: LogExtent, on_lost: OnLost) -> int:
    if not _stays_inside(cursor, on_lost):
        return extent.last if on_lost is OnLost.LATEST else extent.first
    if cursor.position < extent.first:
        return min(extent.first, cursor.stop)
    return cursor.stop if cursor.position > extent.last else cursor.position
