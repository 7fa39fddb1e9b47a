"""What will become of a lag: whether it grows, when it will be gone, when retention will overtake the group. Pure."""

from __future__ import annotations

from typing import NamedTuple

from ottla.operations.lag.values import Retention


class Speeds(NamedTuple):
    """Records a second, None if unknown."""

    consumed: float | None
    produced: float | None
    start: float | None = None
    """By how many offsets the start of the log moves."""

    @property
    def trend(self) -> float | None:
        """By how many records a second the lag grows."""
        return None if self.consumed is None or self.produced is None else self.produced - self.consumed


def catch_up_seconds(lag: int, speeds: Speeds) -> float | None:
    """Return when the lag will be gone, None if it does not shrink."""
    if not lag:
        return 0.0
    trend = speeds.trend
    return lag / -trend if trend is not None and trend < 0 else None


def retention_seconds(
    *,
    committed: int,
    start: int,
    end: int,
    speeds: Speeds,
    retention: Retention | None,
    first_unread: float | None,
    size_bytes: int | None,
    now: float,
) -> float | None:
    """Return when the first unread record will be deleted, at the earliest; None if nothing says that it will be.

    By time: when the record is as old as the topic's limit. By size: when as many bytes have been written after it as
    the limit allows. Where no limit is known: when the start of the log reaches the group, if both move on as they do.
    A record that is gone already: 0.
    """
    if committed < start:
        return 0.0
    if committed >= end:
        return None
    if retention is None:
        return _at_this_pace(committed - start, speeds)
    limits = [
        _by_time(retention, first_unread, now),
        _by_size(retention, committed=committed, start=start, end=end, speeds=speeds, size_bytes=size_bytes),
    ]
    return min((limit for limit in limits if limit is not None), default=None)


def _by_time(retention: Retention, first_unread: float | None, now: float) -> float | None:
    if retention.seconds is None or first_unread is None:
        return None
    return max(0.0, first_unread + retention.seconds - now)


def _by_size(
    retention: Retention, *, committed: int, start: int, end: int, speeds: Speeds, size_bytes: int | None
) -> float | None:
    """Sizes are shares of the log's size: records are taken to be of one size."""
    if retention.size_bytes is None or not size_bytes or not speeds.produced or end <= start:
        return None
    per_record = size_bytes / (end - start)
    room = retention.size_bytes - (end - committed) * per_record
    return max(0.0, room / (per_record * speeds.produced))


def _at_this_pace(margin: int, speeds: Speeds) -> float | None:
    if speeds.start is None or speeds.start <= 0:
        return None
    closing = speeds.start - (speeds.consumed or 0.0)
    return margin / closing if closing > 0 else None
