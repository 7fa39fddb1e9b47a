"""The window of one group in one partition: its last commits, and where the log ended meanwhile. Pure.

A poll sees a committed offset, not a commit. What counts as one: an offset that changed, and, for a reader that is
known to run, every poll. So a consumer that is alive and does not advance is seen to stall, and one that is gone, to
stop, which is the distinction that Burrow draws from the commits themselves.
"""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from ottla.operations.lag.values import Commit, Log

LENGTH = 10
"""Commits in a window, as in Burrow."""
_ENDS = 32
"""Ends of a log that are remembered; while a log does not grow, they take up two."""


class LogHistory:
    """Where one log began and ended, and when."""

    __slots__ = ("_points", "_starts", "topic_id")

    # Lists, because there are tens of thousands of histories, and an empty deque takes 600 bytes.
    def __init__(self) -> None:
        self.topic_id: uuid.UUID | None = None
        self._starts: list[tuple[float, int]] = []
        """The first start that was seen, and the last one."""
        self._points: list[tuple[float, int]] = []

    def add(self, log: Log, now: float) -> bool:
        """Remember a log. Returns whether it is another log than before, or an older copy: then all else is void."""
        if log.end is None:
            return False
        is_other = self.topic_id is not None and log.topic_id is not None and log.topic_id != self.topic_id
        is_shorter = bool(self._points) and log.end < self._points[-1][1]
        if is_other or is_shorter:
            self._points.clear()
            self._starts.clear()
        self.topic_id = log.topic_id or self.topic_id
        points = self._points
        if len(points) > 1 and points[-1][1] == points[-2][1] == log.end:
            points.pop()  # a flat run is its first and its last point
        elif len(points) == _ENDS:
            del points[0]
        points.append((now, log.end))
        if log.start is not None:
            del self._starts[1:]
            self._starts.append((now, log.start))
        return is_other or is_shorter

    def since(self, moment: float) -> list[int]:
        """Return the ends that polls saw from then on."""
        return [end for at, end in self._points if at >= moment]

    def seconds_behind(self, offset: int) -> float | None:
        """Return how long before it came to its present end the log ended at `offset`, by interpolation.

        None before the first point. It stays the same as long as the log does not grow, as the times of records do.
        """
        points = self._points
        if not points or points[-1][1] <= offset:
            return 0.0 if points else None
        if points[0][1] > offset:
            return None
        is_flat = len(points) > 1 and points[-2][1] == points[-1][1]
        newest = points[-2 if is_flat else -1][0]
        # The last point at or below the offset, and the one after it.
        after = bisect_right([end for _, end in points], offset)
        (time_before, before), (time_after, end) = points[after - 1], points[after]
        return newest - (time_before + (offset - before) / (end - before) * (time_after - time_before))

    def growth(self) -> float | None:
        """Return records a second, None with less than two points."""
        return _rate(self._points)

    def start_growth(self) -> float | None:
        """Return by how many offsets a second the start of the log moves, None with less than two points."""
        return _rate(self._starts)


class Window:
    """What polls saw of a group in a partition."""

    __slots__ = ("commits", "length", "looks")

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length
        self.commits: tuple[Commit, ...] = ()
        self.looks = 0
        """How many polls have seen it."""

    def add(self, offset: int, lag: int | None, now: float, *, is_alive: bool) -> None:
        """Add what a poll saw."""
        self.looks += 1
        if not self.commits or is_alive or self.commits[-1].offset != offset:
            self.commits = (*self.commits[1 - self.length :], Commit(now, offset, lag))

    def clear(self) -> None:
        """Forget everything: it is another log."""
        self.commits, self.looks = (), 0

    def restore(self, commits: Iterable[Commit]) -> None:
        """Begin with commits that an earlier process saw, oldest first."""
        for commit in commits:
            self.add(commit.offset, commit.lag, commit.at, is_alive=False)

    @property
    def complete(self) -> float:
        """The share of the window that is filled."""
        return len(self.commits) / self.length

    def consumption(self, now: float) -> float | None:
        """Return records a second, up to now; None if it was seen once, or went back."""
        if self.looks < 2 or not self.commits:
            return None
        first, last = self.commits[0], self.commits[-1]
        if last.offset < first.offset or now <= first.at:
            return None
        return (last.offset - first.offset) / (now - first.at)


def _rate(points: Sequence[tuple[float, int]]) -> float | None:
    if len(points) < 2:
        return None
    (first_at, first), (last_at, last) = points[0], points[-1]
    return (last - first) / (last_at - first_at) if last_at > first_at else None
