"""Cuts ranges into pieces of about the same work, so that no task is still busy while the others wait.

Comes in: ranges. Goes out: ranges that cover exactly the same offsets, none twice, sorted, and always the same for the
same input. It must not read or ask anything: the caller provides the record sizes.
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
    """Cut ranges into at least `at_least` pieces, if there are enough offsets, within the limits for each piece.

    Each range is cut into equal pieces. Empty ranges are left out. Raises `InputError` for a limit below 1.
    """
    for name, value in (("at_least", at_least), ("max_records", max_records), ("max_bytes", max_bytes)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}")
    ordered = sorted(span for span in ranges if len(span))
    weights = [len(span) * bytes_of(span.topic_partition, record_bytes) for span in ordered]
    counts = [_needed(span, weight, max_records, max_bytes) for span, weight in zip(ordered, weights, strict=True)]
    _raise_to(at_least or 0, counts, weights, ordered)
    return [piece for span, count in zip(ordered, counts, strict=True) for piece in _pieces(span, count)]


def _needed(span: OffsetRange, weight: float, max_records: int | None, max_bytes: int | None) -> int:
    """Return the number of pieces so that none exceeds a limit. A single offset is never cut."""
    by_records = 1 if max_records is None else -(-len(span) // max_records)
    by_bytes = 1 if max_bytes is None else math.ceil(weight / max_bytes)
    return min(len(span), max(1, by_records, by_bytes))


def _raise_to(at_least: int, counts: list[int], weights: list[float], ordered: list[OffsetRange]) -> None:
    """Split the range with the heaviest pieces once more, until there are enough pieces."""
    missing = at_least - sum(counts)
    if missing <= 0:
        return
    heaviest = [
        (-weights[index] / counts[index], index) for index in range(len(ordered)) if counts[index] < len(ordered[index])
    ]
    heapq.heapify(heaviest)
    while missing > 0 and heaviest:
        _, index = heaviest[0]
        counts[index] += 1
        missing -= 1
        if counts[index] < len(ordered[index]):
            heapq.heapreplace(heaviest, (-weights[index] / counts[index], index))
        else:
            heapq.heappop(heaviest)


def _pieces(span: OffsetRange, count: int) -> Iterator[OffsetRange]:
    for number in range(count):
        start = span.start + len(span) * number // count
        stop = span.start + len(span) * (number + 1) // count
        yield OffsetRange(span.topic, span.partition, start, stop)
