"""The job that counts one range by time bucket: reads it from the brokers and returns its tally.

An `OffsetRange` comes in, a `RangeTally` goes out. The job can be pickled, knows no engine and leaves nothing behind.
It decodes nothing into columns unless the time is in the payload. Counting a range again gives the same tally.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ottla.errors import InputError
from ottla.fetch.reader import Reader
from ottla.jobs import event_time
from ottla.jobs.brokers import Brokers
from ottla.lake.writer import NO_TIME
from ottla.model import OffsetRange
from ottla.tally.ranges import RangeCounter
from ottla.tally.values import RECORD_TIME, RangeTally


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
    first_counted: float | None = None
    """When the topic was first counted under its id."""


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
        counter = RangeCounter(
            span,
            bucket_seconds=self.bucket_seconds,
            headers_only=self.headers_only,
            max_batch_bytes=self.brokers.fetching.max_batch_bytes,
        )
        if len(span):
            with self.brokers.reader() as reader:
                count = self._by_batch if self.time == RECORD_TIME else self._by_payload
                count(reader, counter)
        is_end = facts.ends.get(span.partition) == span.stop
        is_start = facts.since is not None and facts.starts.get(span.partition) == span.start
        return counter.tally(
            self.tier,
            topic=self.names.get(span.topic, span.topic),
            topic_id=facts.topic_id,
            time_from=self.time,
            partitions=facts.partitions,
            as_of=facts.as_of if is_end else None,
            since=facts.since if is_start else None,
            first_counted=facts.first_counted,
            service=self.service,
        )

    def _by_batch(self, reader: Reader, counter: RangeCounter) -> None:
        for piece in reader.pieces(counter.range):
            planned = self.facts[counter.range.topic].topic_id
            if planned is not None and piece.topic_id is not None and piece.topic_id != planned:
                raise InputError(
                    f"topic {counter.range.topic} was deleted and created again while it was counted; count it again"
                )
            counter.add_batches(piece.batches, start=piece.start, stop=piece.stop)

    def _by_payload(self, reader: Reader, counter: RangeCounter) -> None:
        find_times = event_time.parse(self.time).reader()
        stamps = event_time.parse(RECORD_TIME).reader()
        for decoded in reader.decoded(counter.range, fingerprint=False):
            times = find_times(decoded.records)
            # Without a time of its own a record counts by its timestamp: every tier has the same one.
            counter.add_records(decoded.records, times=np.where(times == NO_TIME, stamps(decoded.records), times))
