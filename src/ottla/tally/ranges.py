"""Counts a range of a log for its tally: from batches as they are fetched, from Arrow records, or from a receipt.

For jobs that move ranges anyway, such as mirrors, archives and handlers of a fleet: they add what they move, and
publish the tally when the range is done. Counting a range again gives the same tally, so it may be published again.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.model import OffsetRange, Receipt
from ottla.tally.slices import slices_of, slices_of_records
from ottla.tally.values import (
    APPEND_TIME,
    DEFAULT_BUCKET_SECONDS,
    RECORD_TIME,
    RangeTally,
    Slice,
    add_up,
    as_hex,
    bucket_of,
    check_bucket,
    check_name,
)
from ottla.wire.batch import Batch
from ottla.wire.measure import Measurer, has_append_time, measure_headers


class RangeCounter:
    """Adds up one range of a partition. Use one per thread."""

    def __init__(
        self,
        span: OffsetRange,
        *,
        bucket_seconds: int = DEFAULT_BUCKET_SECONDS,
        headers_only: bool = False,
        max_batch_bytes: int = 128 << 20,
    ) -> None:
        """With `headers_only`, batches are not decompressed, and the tally has no fingerprint."""
        self.range = span
        self.bucket_seconds = check_bucket(bucket_seconds)
        self.headers_only = headers_only
        self.has_append_time = False
        """Whether the broker set the times of some records."""
        self._measurer = Measurer(self.bucket_seconds * 1000, max_batch_bytes=max_batch_bytes)
        self._sums: dict[tuple[int, int], Slice] = {}

    @property
    def slices(self) -> list[Slice]:
        """The slices so far, sorted by bucket."""
        return [piece for _, piece in sorted(self._sums.items())]

    def add_batches(self, batches: Iterable[Batch], *, start: int | None = None, stop: int | None = None) -> None:
        """Add the records of batches with offsets in the range, or in `[start, stop)`.

        Control batches are ignored; those of aborted transactions must not be passed. Raises `CorruptBatch`.
        """
        listed = batches if isinstance(batches, list) or hasattr(batches, "table") else list(batches)
        first = self.range.start if start is None else max(start, self.range.start)
        last = self.range.stop if stop is None else min(stop, self.range.stop)
        self.has_append_time |= has_append_time(listed)[0]
        if self.headers_only:
            clear, unclear = measure_headers(listed, bucket_ms=self.bucket_seconds * 1000, start=first, stop=last)
            rest = self._measurer.measure(unclear, start=first, stop=last)
            for measured in (clear, rest):
                self.add_slices(slices_of(measured, partition=self.range.partition, has_sums=False))
            return
        measured = self._measurer.measure(listed, start=first, stop=last)
        self.add_slices(slices_of(measured, partition=self.range.partition))

    def add_records(self, records: pa.RecordBatch | pa.Table, *, times: npt.NDArray[np.int64] | None = None) -> None:
        """Add Arrow records with key, value, headers and timestamp. `times`: others than theirs, in microseconds."""
        partition = self.range.partition
        self.add_slices(
            slices_of_records(records, bucket_seconds=self.bucket_seconds, partition=partition, times=times)
        )

    def add_slices(self, slices: Iterable[Slice]) -> None:
        """Add slices of this partition."""
        for place, piece in add_up(slices).items():
            known = self._sums.get(place)
            self._sums[place] = piece if known is None else known + piece

    def tally(
        self,
        tier: str,
        *,
        topic: str | None = None,
        topic_id: object = None,
        time_from: str = RECORD_TIME,
        partitions: int = 0,
        as_of: float | None = None,
        since: float | None = None,
        first_counted: float | None = None,
        service: str = "-",
    ) -> RangeTally:
        """Return the tally of the range. `as_of` is when the log ended at its stop; None if it was longer.

        `first_counted` is when a log with this topic id was first counted; None for now. `topic` is the name that other
        tiers have for it. Raises `ConfigError` for an invalid tier or service.
        """
        slices = self.slices
        is_append = self.has_append_time and time_from == RECORD_TIME
        return RangeTally(
            tier=check_name("tier", tier),
            topic=topic or self.range.topic,
            topic_id="" if topic_id is None else str(topic_id),
            partition=self.range.partition,
            start=self.range.start,
            stop=self.range.stop,
            bucket_seconds=self.bucket_seconds,
            time=APPEND_TIME if is_append else time_from,
            partitions=partitions,
            as_of=as_of,
            since=since,
            first_counted=first_counted,
            records=sum(piece.count for piece in slices),
            host=socket.gethostname(),
            service=check_name("service", service),
            written=time.time(),
            buckets=tuple(slices),
        )


def slices_of_receipt(receipt: Receipt, *, bucket_seconds: int) -> list[Slice] | None:
    """Return the slices of a range from its receipt alone; None if its records are in more than one bucket."""
    if receipt.first_time is None or receipt.last_time is None or receipt.count == 0:
        return []
    bucket = bucket_of(receipt.first_time, bucket_seconds)
    if bucket != bucket_of(receipt.last_time, bucket_seconds):
        return None
    return [
        Slice(
            start=bucket,
            count=receipt.count,
            bytes=receipt.size_bytes,
            fingerprint=as_hex(receipt.fingerprint.total),
            first=receipt.first_time,
            last=receipt.last_time,
            partition=receipt.range.partition,
        )
    ]
