"""Which offsets of a partition are lost, and where it is read on.

A cursor and where its log begins and ends come in; a `Loss` goes out, or None where nothing is lost. Pure. A cursor
with a stop is a range, and nothing outside of it is ever read: whatever the policy, it goes on with what its log has of
it, and is over where there is nothing more. A cursor without one follows its log to where the policy says.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.fetch.cursor import Cursor
from ottla.fetch.log_extent import LogExtent
from ottla.fetch.options import OnLost


class Loss(NamedTuple):
    """The records at `[start, stop)` are gone, or were replaced; the log is read on at `resume`."""

    start: int
    stop: int
    resume: int
    reason: str
    replaced: bool = False
    """It is the log of another topic that has the same name."""


def outside(cursor: Cursor, ends: LogExtent, on_lost: OnLost) -> Loss | None:
    """The broker has no such offset; None if it has by now."""
    position = cursor.position
    if ends.first <= position <= ends.last:
        return None
    resume = _resume(cursor, ends, on_lost)
    if position < ends.first:
        return Loss(position, min(cursor.stop, ends.first), resume, "they are older than what the topic keeps")
    reason = f"the log ends at {ends.last}: it was cut back, or the offset was never written"
    if _stays_inside(cursor, on_lost):
        return Loss(position, cursor.stop, resume, reason)
    return Loss(ends.last, position, resume, reason)


def replaced(cursor: Cursor, ends: LogExtent, on_lost: OnLost, reason: str) -> Loss:
    """Another log is there under the same name."""
    position, stop = cursor.position, cursor.stop
    if not _stays_inside(cursor, on_lost):
        stop = min(stop, max(position + 1, ends.last))
    return Loss(position, stop, _resume(cursor, ends, on_lost), reason, replaced=True)


def foreign(cursor: Cursor, ends: LogExtent, on_lost: OnLost) -> Loss:
    """The log is of a time before the leader epoch of the record that was read last."""
    reason = (
        f"the offset comes with leader epoch {cursor.epoch}, which this log never had: it was committed for another"
        " topic of the same name, or the log was restored from an older copy"
    )
    return replaced(cursor, ends, on_lost, reason)


def parted(cursor: Cursor, end_offset: int, on_lost: OnLost) -> Loss | None:
    """From `end_offset` on, the log has other records by now than those that were read; None if none was read there."""
    if end_offset >= cursor.position:
        return None
    reason = (
        f"the log was cut back to offset {end_offset} and written anew after an unclean leader election:"
        " these offsets have other records than were read"
    )
    lowest = cursor.start if _stays_inside(cursor, on_lost) else 0
    start = max(lowest, min(end_offset, cursor.position))
    return Loss(start, cursor.position, start, reason)


def overdue(cursor: Cursor, ends: LogExtent) -> Loss | None:
    """Nothing of the range has come for too long; None if the log has something, which cannot be read yet."""
    if ends.last > cursor.position:
        return None
    reason = f"the log ends at {ends.last}, and nothing came: it was cut back, or they were never written"
    return Loss(cursor.position, cursor.stop, cursor.stop, reason)


def _stays_inside(cursor: Cursor, on_lost: OnLost) -> bool:
    return cursor.is_bounded and on_lost is not OnLost.ERROR


def _resume(cursor: Cursor, ends: LogExtent, on_lost: OnLost) -> int:
    if not _stays_inside(cursor, on_lost):
        return ends.last if on_lost is OnLost.LATEST else ends.first
    if cursor.position < ends.first:
        return min(ends.first, cursor.stop)
    return cursor.stop if cursor.position > ends.last else cursor.position
