"""The job that counts one range by time bucket: reads it from the brokers and returns its tally.

An `OffsetRange` comes in, a `RangeTally` goes out. The job can be pickled, knows no engine and leaves nothing behind.
It decodes nothing into columns unless the time is in the payload. Counting a range again gives the same tally.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ottla.errors import InputError
from ottla.fetch.cursor import Piece
from ottla.fetch.reader import Reader
from ottla.jobs import event_time
from ottla.jobs.brokers import Brokers
from ottla.lake.writer import NO_TIME
from ottla.model import OffsetRange
from ottla.tally.slices import slices_of, slices_of_records
from ottla.tally.values import APPEND_TIME, RECORD_TIME, RangeTally, Slice, add_up
from ottla.wire.measure import Measurer, has_append_time, measure_headers


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What was known of a topic when its ranges were planned."""

    topic_id: uuid.UUID | None
    partitions: int
    ends: Mapping[int, int]
    as_of: float
    """When the logs ended there."""
    starts: Mapping[int, int] = field(default_factory=dict)
    since: float | None = None
    """The time that the starts stand for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TallyRange:
    """Counts the range it is called with."""

    brokers: Brokers
    tier: str
    facts: Mapping[str, LogFacts]
    names: Mapping[str, str] = field(default_factory=dict)
    """Under which name a topic is counted, if not its own."""
    service: str = "-"
    bucket_seconds: int
    time: str = RECORD_TIME
    headers_only: bool = False

    def __call__(self, span: OffsetRange) -> RangeTally:
        """Count the range. Raises as `Reader` does, and `InputError` if the topic was replaced meanwhile."""
        facts = self.facts[span.topic]
        counted = _Counted(self, facts)
        if len(span):
            with self.brokers.reader() as reader:
                counted.read(reader, span)
        slices = counted.slices()
        is_end = facts.ends.get(span.partition) == span.stop
        is_start = facts.since is not None and facts.starts.get(span.partition) == span.start
        return RangeTally(
            tier=self.tier,
            topic=self.names.get(span.topic, span.topic),
            topic_id="" if facts.topic_id is None else str(facts.topic_id),
            partition=span.partition,
            start=span.start,
            stop=span.stop,
            bucket_seconds=self.bucket_seconds,
            time=APPEND_TIME if counted.has_append_time and self.time == RECORD_TIME else self.time,
            partitions=facts.partitions,
            as_of=facts.as_of if is_end else None,
            since=facts.since if is_start else None,
            records=sum(piece.count for piece in slices),
            host=socket.gethostname(),
            service=self.service,
            written=time.time(),
            buckets=tuple(slices),
        )


class _Counted:
    """Adds up one range."""

    def __init__(self, job: TallyRange, facts: LogFacts) -> None:
        self._job = job
        self._facts = facts
        self._sums: dict[tuple[int, int], Slice] = {}
        self._measurer = Measurer(job.bucket_seconds * 1000, max_batch_bytes=job.brokers.fetching.max_batch_bytes)
        self.has_append_time = False

    def slices(self) -> list[Slice]:
        """The slices, sorted by bucket."""
        return [piece for _, piece in sorted(self._sums.items())]

    def read(self, reader: Reader, span: OffsetRange) -> None:
        found = self._by_payload(reader, span) if self._job.time != RECORD_TIME else self._by_batch(reader, span)
        for slices in found:
            self._sums = add_up([*self._sums.values(), *slices])

    def _by_batch(self, reader: Reader, span: OffsetRange) -> Iterator[list[Slice]]:
        for piece in reader.pieces(span):
            self._check_identity(piece, span)
            start, stop = max(piece.start, span.start), min(piece.stop, span.stop)
            self.has_append_time |= has_append_time(piece.batches)[0]
            if not self._job.headers_only:
                measured = self._measurer.measure(piece.batches, start=start, stop=stop)
                yield slices_of(measured, partition=span.partition)
                continue
            measured, unclear = measure_headers(
                piece.batches, bucket_ms=self._job.bucket_seconds * 1000, start=start, stop=stop
            )
            yield slices_of(measured, partition=span.partition, has_sums=False)
            rest = self._measurer.measure(unclear, start=start, stop=stop)
            yield slices_of(rest, partition=span.partition, has_sums=False)

    def _by_payload(self, reader: Reader, span: OffsetRange) -> Iterator[list[Slice]]:
        find_times = event_time.parse(self._job.time).reader()
        stamps = event_time.parse(RECORD_TIME).reader()
        for decoded in reader.decoded(span, fingerprint=False):
            times = find_times(decoded.records)
            # Without a time of its own a record counts by its timestamp: every tier has the same one.
            times = np.where(times == NO_TIME, stamps(decoded.records), times)
            yield slices_of_records(
                decoded.records, bucket_seconds=self._job.bucket_seconds, partition=span.partition, times=times
            )

    def _check_identity(self, piece: Piece, span: OffsetRange) -> None:
        planned = self._facts.topic_id
        if planned is not None and piece.topic_id is not None and piece.topic_id != planned:
            raise InputError(f"topic {span.topic} was deleted and created again while it was counted; count it again")
