"""One error for all rows of a list or table that were not delivered.

Errors with their numbers of rows come in, the error to raise goes out. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.errors import NotDelivered, copied


def counted_error(failed: Sequence[tuple[NotDelivered, int]]) -> NotDelivered:
    """The first error for all rows: as it is, if it is that of as many, else with their number."""
    first, records = failed[0][0], sum(rows for _, rows in failed)
    if first.records == records:
        return copied(first)
    is_only = all(
        (error.reason, error.topic, error.partition) == (first.reason, first.topic, first.partition)
        for error, _ in failed
    )
    if not is_only:
        return NotDelivered(f"the first reason: {first}", records=records, cause=first)
    counted = type(first)(
        first.reason,
        topic=first.topic,
        partition=first.partition,
        records=records,
        maybe_written=first.maybe_written,
        cause=first.cause,
    )
    counted.__cause__ = first.__cause__
    return counted
