"""Checks of disks: full, full soon, and log directories that a broker cannot use any more.

A `Snapshot` and, for growth, what an earlier look saw come in; findings go out. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ottla.admin.disks import LogDir
from ottla.operations.health.findings import Finding, Severity, typed
from ottla.operations.health.snapshot import Growth, Limits, Snapshot
from ottla.quantities import show_duration, show_size

_DAY = 86_400.0
_HOUR = 3600.0
_MINUTE = 60.0
_STEPS = 40
"""Halvings of a span of days: down to less than a second."""
Measured = Mapping[tuple[int, str], float]
"""Bytes per second by broker and path, measured between two looks."""


def offline_dirs(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Log directories that failed. Their replicas are offline until the disk is repaired."""
    for directory in _all(seen):
        if directory.error is not None:
            yield Finding(
                "log-dir-offline",
                Severity.CRITICAL,
                f"broker {directory.broker} cannot use its log directory {directory.path}: {directory.error}",
                (f"broker {directory.broker}",),
                typed("topics", "list", "--long"),
                _subject(directory),
            )


def full(seen: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Disks with little space left."""
    for directory in _all(seen):
        used = directory.used
        if used is None or used < limits.disk_warning or directory.usable_bytes is None:
            continue
        yield Finding(
            "disk-full",
            Severity.CRITICAL if used >= limits.disk_critical else Severity.WARNING,
            f"broker {directory.broker}: the disk of {directory.path} is {used:.0%} full,"
            f" {show_size(directory.usable_bytes)} left{_largest(directory)}",
            (f"broker {directory.broker}",),
            _describe_largest(directory),
            _subject(directory),
        )


def filling(seen: Snapshot, limits: Limits, measured: Measured) -> Iterator[Finding]:
    """Disks that are full in a few days if they keep growing as they did."""
    for directory in _all(seen):
        if directory.usable_bytes is None:
            continue
        growth = growth_of(seen, directory, measured)
        seconds = seconds_to_full(directory.usable_bytes, growth, within=limits.days_warning * _DAY)
        if seconds is None:
            continue
        rate = sum(each.rate for each in growth)
        left = show_duration(round(seconds / _MINUTE) * _MINUTE) if seconds >= _MINUTE else "less than a minute"
        yield Finding(
            "disk-filling",
            Severity.CRITICAL if seconds < limits.days_critical * _DAY else Severity.WARNING,
            f"broker {directory.broker}: the disk of {directory.path} is full in {left} if it goes on to grow by"
            f" {show_size(round(rate * _HOUR))} an hour{_largest(directory)}",
            (f"broker {directory.broker}",),
            _describe_largest(directory),
            _subject(directory),
        )


def growth_of(seen: Snapshot, directory: LogDir, measured: Measured) -> list[Growth]:
    """Return how a directory grows: as measured, or as its logs say about the last hour."""
    rate = measured.get((directory.broker, directory.path))
    if rate is not None:
        return [Growth(rate)]
    return [seen.growth[partition] for partition in directory.replicas if partition in seen.growth]


def seconds_to_full(usable_bytes: int, growth: Iterable[Growth], *, within: float) -> float | None:
    """Return after how many seconds this growth has used the space; None if that takes longer than `within`."""
    parts = [each for each in growth if each.rate > 0]

    def grown(seconds: float) -> float:
        return sum(min(each.rate * seconds, each.most_bytes) for each in parts)

    if grown(within) < usable_bytes or not parts:
        return None
    low, high = 0.0, within
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if grown(middle) >= usable_bytes else (middle, high)
    return high


def _all(seen: Snapshot) -> Iterator[LogDir]:
    for _, dirs in sorted(seen.log_dirs.dirs.items()):
        yield from dirs


def _subject(directory: LogDir) -> str:
    return f"broker {directory.broker} {directory.path}"


def _top(directory: LogDir) -> tuple[str, int] | None:
    """Return the topic that takes most of a directory, and its bytes."""
    sizes: dict[str, int] = {}
    for (topic, _), size in directory.replicas.items():
        sizes[topic] = sizes.get(topic, 0) + size
    return max(sorted(sizes.items()), key=lambda pair: pair[1], default=None)


def _largest(directory: LogDir) -> str:
    top = _top(directory)
    return "" if top is None or not top[1] else f"; most of it is {top[0]} ({show_size(top[1])})"


def _describe_largest(directory: LogDir) -> str:
    top = _top(directory)
    return typed("topics", "list", "--long") if top is None else typed("topics", "describe", name=top[0])
