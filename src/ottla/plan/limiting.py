"""How far to read when there is more than one batch should have: every partition gets its share.

Offsets come in, offsets go out, never before the start nor after the end. The rule is that of Spark's own connector,
so that a query behaves the same with either.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.errors import InputError
from ottla.model import TopicPartition
from ottla.plan.sizes import RecordBytes, bytes_of

Offsets = Mapping[TopicPartition, int]


def limit(start: Offsets, end: Offsets, max_records: int) -> dict[TopicPartition, int]:
    """Where to stop so that there are about `max_records` offsets: each partition in proportion to what it has.

    A partition that has something gets at least one, so that small ones are not starved; one whose end lies before
    its start keeps that end, for the caller to notice.
    """
    total = sum(max(0, stop - start.get(at, 0)) for at, stop in end.items())
    return _advanced(start, end, max_records, total)


def limit_bytes(start: Offsets, end: Offsets, max_bytes: int, record_bytes: RecordBytes) -> dict[TopicPartition, int]:
    """As `limit`, for about so many bytes: the same part of each partition's backlog."""
    total = sum(max(0, stop - start.get(at, 0)) * bytes_of(at, record_bytes) for at, stop in end.items())
    return _advanced(start, end, max_bytes, int(total))


def _advanced(start: Offsets, end: Offsets, most: int, total: int) -> dict[TopicPartition, int]:
    if most < 1:
        raise InputError(f"the limit must be at least 1, got {most}")
    if total <= most:
        return dict(end)
    places: dict[TopicPartition, int] = {}
    for at, stop in end.items():
        first = start.get(at, 0)
        size = stop - first
        places[at] = min(stop, first + max(1, most * size // total)) if size > 0 else stop
    return places
