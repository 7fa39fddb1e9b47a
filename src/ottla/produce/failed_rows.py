"""One error for all rows of a list or table that were not delivered.

Errors with their numbers of rows come in, the error to raise goes out. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.errors import Fenced, NotDelivered, copied


def counted_error(failed: Sequence[tuple[NotDelivered, int]]) -> NotDelivered:
    """The first error for all rows: as it is, if it says it all, else with their number.

    It is `Fenced` if one of them is, and says that some may be in the log if that is so of one.
    """
    first, records = failed[0][0], sum(rows for _, rows in failed)
    maybe_written = any(error.maybe_written for error, _ in failed)
    kinds = {type(error) for error, _ in failed}
    is_only = len(kinds) == 1 and all(
        (error.reason, error.topic, error.partition) == (first.reason, first.topic, first.partition)
        for error, _ in failed
    )
    if is_only and (first.records, first.maybe_written) == (records, maybe_written):
        return copied(first)
    kind = kinds.pop() if len(kinds) == 1 else Fenced if Fenced in kinds else NotDelivered
    if not is_only:
        return kind(f"the first reason: {first}", records=records, maybe_written=maybe_written, cause=copied(first))
    counted = kind(
        first.reason,
        topic=first.topic,
        partition=first.partition,
        records=records,
        maybe_written=maybe_written,
        cause=first.cause,
    )
    counted.__cause__ = first.__cause__
    return counted
