"""Filters of a batch query into narrower ranges: what a filter excludes is not even fetched.

Spark's filters come in; what they say about topic, partition, offset and timestamp goes out, with those that Spark
must still apply. Pure: where a time lies in a log is looked up by whoever has the brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from ottla.model import OffsetRange

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL = ("topic", "partition", "offset", "timestamp", "timestampType")
_END = 1 << 63

Keeps = Callable[[Any], bool]


@dataclass(frozen=True)
class Narrowing:
    """What the filters leave: topics and partitions that pass all tests, offsets in `[start, stop)`, times from on."""

    topics: tuple[Keeps, ...] = ()
    partitions: tuple[Keeps, ...] = ()
    start: int = 0
    stop: int = _END
    since: int | None = None
    """Milliseconds: no record before the first one at or after this can pass."""

    def narrow(self, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
        """The ranges without what no filter lets through; nothing is left out but that."""
        kept: list[OffsetRange] = []
        for one in ranges:
            if all(keeps(one.topic) for keeps in self.topics) and all(
                keeps(one.partition) for keeps in self.partitions
            ):
                start = min(max(one.start, self.start), one.stop)
                kept.append(OffsetRange(one.topic, one.partition, start, max(start, min(one.stop, self.stop))))
        return kept


def take(filters: Iterable[Filter]) -> tuple[Narrowing, list[Filter]]:
    """What the filters say, and those that are left to Spark."""
    found = Narrowing()
    left: list[Filter] = []
    for one in filters:
        narrowed = _taken(found, one)
        found = narrowed or found
        # Timestamps are a lower bound for where to begin, no more: in between there may be older ones.
        if narrowed is None or (_column(one) == "timestamp" and not isinstance(one, IsNotNull)):
            left.append(one)
    return found, left


def _taken(found: Narrowing, one: Filter) -> Narrowing | None:
    column = _column(one)
    if isinstance(one, IsNotNull):
        return found if column in _NEVER_NULL else None
    match column:
        case "topic":
            keeps = _test(one, str)
            return None if keeps is None else replace(found, topics=(*found.topics, keeps))
        case "partition":
            keeps = _test(one, int)
            return None if keeps is None else replace(found, partitions=(*found.partitions, keeps))
        case "offset":
            return _by_offset(found, one)
        case "timestamp":
            return _by_time(found, one)
    return None


def _column(one: Filter) -> str | None:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else None


def _test(one: Filter, kind: type) -> Keeps | None:
    value = getattr(one, "value", None)
    values = value if isinstance(one, In) else (value,)
    if not isinstance(values, tuple | list) or not all(isinstance(v, kind) and not isinstance(v, bool) for v in values):
        return None
    match one:
        case EqualTo() | EqualNullSafe():
            return lambda found: found == value
        case In():
            return lambda found: found in values
        case GreaterThan():
            return lambda found: found > value
        case GreaterThanOrEqual():
            return lambda found: found >= value
        case LessThan():
            return lambda found: found < value
        case LessThanOrEqual():
            return lambda found: found <= value
    return None


def _by_offset(found: Narrowing, one: Filter) -> Narrowing | None:
    value = getattr(one, "value", None)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    match one:
        case EqualTo() | EqualNullSafe():
            return replace(found, start=max(found.start, value), stop=min(found.stop, value + 1))
        case GreaterThan():
            return replace(found, start=max(found.start, value + 1))
        case GreaterThanOrEqual():
            return replace(found, start=max(found.start, value))
        case LessThan():
            return replace(found, stop=min(found.stop, value))
        case LessThanOrEqual():
            return replace(found, stop=min(found.stop, value + 1))
    return None


def _by_time(found: Narrowing, one: Filter) -> Narrowing | None:
    """Brokers find the first record at or after a time: all before it are older, whatever the order of times."""
    value = getattr(one, "value", None)
    if not isinstance(value, datetime) or not isinstance(
        one, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual
    ):
        return None
    aware = value.astimezone(UTC) if value.tzinfo is not None else value.replace(tzinfo=UTC)
    moment = max(0, (aware - _EPOCH) // timedelta(milliseconds=1))
    return replace(found, since=moment if found.since is None else max(found.since, moment))
