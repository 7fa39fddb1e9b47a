"""What becomes of batches: they are decided once, their memory is given back, and failures are kept for whoever asks.

Batches and how they ended come in; deliveries are settled, events go out, and the failures since the last time somebody
asked are counted, so that a program that looks at no delivery still hears of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from ottla.errors import KeptInSpool, NotDelivered, OttlaError
from ottla.events import Events, FlushAcknowledged, FlushFailed
from ottla.produce.budget import Budget
from ottla.produce.delivery import Outcome, fresh
from ottla.produce.hook import decoded
from ottla.produce.outgoing import Outgoing
from ottla.wire.batch import BatchHeader

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """Records that were not delivered, handed to the program as values."""

    topic: str
    partition: int
    cause: OttlaError
    header: BatchHeader
    data: bytes
    """The records as they would have been sent, compressed."""

    @property
    def count(self) -> int:
        """How many records."""
        return self.header.count

    @property
    def records(self) -> pa.RecordBatch:
        """Key, value, headers and timestamp of each."""
        return decoded(self.header, self.data, topic=self.topic, partition=self.partition)


class Outcomes:
    """Decides batches."""

    def __init__(
        self, budget: Budget, *, events: Events, on_failed: Callable[[FailedBatch], None] | None = None
    ) -> None:
        self._budget = budget
        self._events = events
        self._on_failed = on_failed
        self._lock = threading.Lock()
        self._failed_records = 0
        self._first: OttlaError | None = None
        self.kept = 0
        """Records that stay in the spool when the producer ends."""

    def hold(self, batch: Outgoing, more_bytes: int) -> None:
        """The batch takes so many more bytes of the producer's memory; negative for less."""
        batch.held_bytes += more_bytes
        self._budget.add(more_bytes)

    def acknowledged(self, batch: Outgoing, base_offset: int, append_time: int, now: float) -> None:
        """The broker has it."""
        if self._events.active:
            seconds = now - (now if batch.sent_at is None else batch.sent_at)
            self._events.emit(
                FlushAcknowledged(
                    batch.topic, batch.partition, batch.count, batch.size_bytes, base_offset, seconds, batch.attempts
                )
            )
        self._release(batch)
        batch.decide(Outcome(0, base_offset, append_time))

    def failed(self, batch: Outgoing, error: OttlaError) -> None:
        """It will not be delivered."""
        self._events.emit(FlushFailed(batch.topic, batch.partition, batch.count, batch.size_bytes, error))
        handed = self._hand_out(batch, error)
        if not handed:
            self.count(batch.count, error)
        self._release(batch)
        batch.decide(Outcome(0, -1, -1, error))

    def left(self, batch: Outgoing, error: KeptInSpool) -> None:
        """The producer ends, and the batch stays on disk: no failure, and no delivery either."""
        self.kept += batch.count
        self._release(batch)
        batch.decide(Outcome(0, -1, -1, error))

    def count(self, records: int, error: OttlaError) -> None:
        """So many records failed, and nobody was told yet."""
        with self._lock:
            self._failed_records += records
            self._first = self._first or error

    def raise_failures(self) -> None:
        """Raises NotDelivered if records failed since the last time this was asked."""
        with self._lock:
            records, first = self._failed_records, self._first
            self._failed_records, self._first = 0, None
        if first is None:
            return
        if isinstance(first, NotDelivered) and first.records == records:
            raise fresh(first)
        reason = str(first) if records == 1 else f"the first reason: {first}"
        raise NotDelivered(reason, records=records, cause=first)

    def forget_failures(self) -> None:
        """They were told in another way."""
        with self._lock:
            self._failed_records, self._first = 0, None

    def _hand_out(self, batch: Outgoing, error: OttlaError) -> bool:
        if self._on_failed is None or batch.header is None or batch.records is None:
            return False
        failed = FailedBatch(batch.topic, batch.partition, error, batch.header, bytes(batch.records))
        try:
            self._on_failed(failed)
        except BaseException:  # sys.exit() and the like must not end the sender
            _log.exception("on_failed raised for %d records of %s-%d", batch.count, batch.topic, batch.partition)
            return False
        return True

    def _release(self, batch: Outgoing) -> None:
        self._budget.add(-batch.held_bytes)
        batch.held_bytes = 0
