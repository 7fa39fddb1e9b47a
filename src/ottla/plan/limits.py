"""Limits how far to read if there is more than one batch should have: every partition gets its share.

Comes in: start and end offsets. Goes out: end offsets, never before the start nor after the end. The rule is that of
Spark's own connector, so that a query behaves the same with either.
"""

from __future__ import annotations

from collections.abc import Mapping

from ottla.errors import InputError
from ottla.model import TopicPartition
from ottla.plan.sizes import RecordBytes, bytes_of

Offsets = Mapping[TopicPartition, int]


def limit(start: Offsets, end: Offsets, max_records: int) -> dict[TopicPartition, int]:
    """Return where to stop so that about `max_records` offsets are read, each partition in proportion to its backlog.

    A partition with a backlog gets at least one, so that small ones are not starved. One whose end lies before its
    start keeps that end, for the caller to notice. Raises `InputError` if `max_records` is below 1.
    """
    total = sum(max(0, stop - start.get(tp, 0)) for tp, stop in end.items())
    return _advanced(start, end, max_records, total)


def limit_bytes(start: Offsets, end: Offsets, max_bytes: int, record_bytes: RecordBytes) -> dict[TopicPartition, int]:
    """Return where to stop so that about `max_bytes` are read: the same fraction of each partition's backlog.

    Raises `InputError` if `max_bytes` is below 1.
    """
    total = sum(max(0, stop - start.get(tp, 0)) * bytes_of(tp, record_bytes) for tp, stop in end.items())
    return _advanced(start, end, max_bytes, int(total))


def _advanced(start: Offsets, end: Offsets, maximum: int, total: int) -> dict[TopicPartition, int]:
    if maximum < 1:
        raise InputError(f"the limit must be at least 1, got {maximum}")
    if total <= maximum:
        return dict(end)
    stops: dict[TopicPartition, int] = {}
    for tp, stop in end.items():
        first = start.get(tp, 0)
        size = stop - first
        stops[tp] = min(stop, first + max(1, maximum * size // total)) if size > 0 else stop
    return stops
