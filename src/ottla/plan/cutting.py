"""Cuts ranges into pieces that take about equally long, so that no task works while the others wait.

Ranges come in, ranges go out: they cover exactly the same offsets, none twice, sorted, and the same for the same
input. Nothing is read or asked: what a record takes is told by the caller.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator

from ottla.errors import InputError
from ottla.model import OffsetRange
from ottla.plan.sizes import RecordBytes, bytes_of


def cut(
    ranges: Iterable[OffsetRange],
    *,
    at_least: int | None = None,
    max_records: int | None = None,
    max_bytes: int | None = None,
    record_bytes: RecordBytes = 1.0,
) -> list[OffsetRange]:
    """Pieces of at most so many offsets and bytes, and at least so many pieces where there are enough offsets.

    Each range is cut into equal pieces. Empty ranges are left out.
    """
    for name, value in (("at_least", at_least), ("max_records", max_records), ("max_bytes", max_bytes)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    whole = sorted(one for one in ranges if len(one))
    weights = [len(one) * bytes_of(one.topic_partition, record_bytes) for one in whole]
    parts = [_needed(one, weight, max_records, max_bytes) for one, weight in zip(whole, weights, strict=True)]
    _raise_to(at_least or 0, parts, weights, whole)
    return [piece for one, count in zip(whole, parts, strict=True) for piece in _pieces(one, count)]


def _needed(one: OffsetRange, weight: float, max_records: int | None, max_bytes: int | None) -> int:
    """Pieces so that none is over a limit; one offset is never cut."""
    by_records = 1 if max_records is None else -(-len(one) // max_records)
    by_bytes = 1 if max_bytes is None else math.ceil(weight / max_bytes)
    return min(len(one), max(1, by_records, by_bytes))


def _raise_to(at_least: int, parts: list[int], weights: list[float], whole: list[OffsetRange]) -> None:
    """Cuts whatever has the heaviest pieces once more, until there are enough."""
    missing = at_least - sum(parts)
    if missing <= 0:
        return
    heaviest = [
        (-weights[index] / parts[index], index) for index in range(len(whole)) if parts[index] < len(whole[index])
    ]
    heapq.heapify(heaviest)
    while missing > 0 and heaviest:
        _, index = heaviest[0]
        parts[index] += 1
        missing -= 1
        if parts[index] < len(whole[index]):
            heapq.heapreplace(heaviest, (-weights[index] / parts[index], index))
        else:
            heapq.heappop(heaviest)


def _pieces(one: OffsetRange, count: int) -> Iterator[OffsetRange]:
    for number in range(count):
        start = one.start + len(one) * number // count
        stop = one.start + len(one) * (number + 1) // count
        yield OffsetRange(one.topic, one.partition, start, stop)
