"""Records that were not delivered: counts them, reports them, and hands them to the program.

Batches and rows come in with the reason. Their deliveries are settled, and events go out. Failures are counted, and
each `flush` raises those that none had raised when it began: a program that checks no delivery still gets an error, and
so does each of several threads or tasks that wait for the same records. A flush whose task has left it raises nothing,
and leaves the failures to the next.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from ottla.errors import KeptInSpool, NotDelivered, OttlaError
from ottla.events import Events, FlushFailed
from ottla.net.waiting import Total
from ottla.produce.delivery import Outcome, Placement, Refusal, as_not_delivered
from ottla.produce.hook import decoded
from ottla.produce.intake import Handover
from ottla.produce.outgoing import Outgoing
from ottla.produce.packing import RefuseRows
from ottla.wire.batch import BatchHeader

_log = logging.getLogger(__name__)
_KEPT = 64
"""More than there are threads in the middle of `raise_failures`."""


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """Records that were not delivered, as the program gets them."""

    topic: str
    partition: int
    cause: OttlaError
    header: BatchHeader
    data: bytes
    """The records as they would have been sent, compressed."""

    @property
    def count(self) -> int:
        """The number of records."""
        return self.header.count

    @property
    def records(self) -> pa.RecordBatch:
        """Key, value, headers and timestamp of each record."""
        return decoded(self.header, self.data, topic=self.topic, partition=self.partition)


class Failures:
    """Failures of one producer. The sender's thread adds them; any thread may ask."""

    def __init__(self, *, events: Events, on_failed: Callable[[FailedBatch], None] | None = None) -> None:
        self._events = events
        self._on_failed = on_failed
        self._failed_records = Total()
        """All records that failed. It never decreases."""
        self._raised = deque([0], maxlen=_KEPT)
        """How many of them there were at the last calls of `raise_failures`."""
        self._errors: deque[tuple[int, OttlaError]] = deque(maxlen=_KEPT)
        """The first error after each such call, and how many records had failed before it."""
        self._doubted = 0
        """How many records had failed with the last one that may be in the log."""
        self.kept = 0
        """Records that stay in the spool when the producer ends."""
        self.failure: OttlaError | None = None
        """Why a record failed, whether or not it was raised. The transaction that reads it resets it."""

    @property
    def are_handled(self) -> bool:
        """Whether the program gets failed batches itself."""
        return self._on_failed is not None

    def keep_in_spool(self, batch: Outgoing, error: KeptInSpool) -> None:
        """Decide a batch that stays on disk when the producer ends: neither delivered nor a failure."""
        self.kept += batch.count
        batch.decide(Outcome(0, -1, -1, error))

    def refuse(self, handover: Handover, error: OttlaError) -> None:
        """Fail the rows of a handover that are in no batch."""
        shipment = handover.shipment
        count = handover.columns.count
        is_unplaced = np.ones(count, np.bool_)
        for placement in shipment.placements:
            is_unplaced[np.asarray(placement.rows)] = False
        rows = np.flatnonzero(is_unplaced)
        if len(rows) == count:
            shipment.unsettled = count
        if len(rows):
            self.refuse_rows(RefuseRows(shipment, -1, rows, error))

    def refuse_rows(self, refused: RefuseRows) -> None:
        """Fail rows that get into no batch."""
        shipment, partition, rows, error = refused
        shipment.placements.append(Placement(Refusal(shipment.topic, partition, error), rows, 0))
        self.count(len(rows), error)
        shipment.settle(len(rows))

    def failed(self, batch: Outgoing, error: OttlaError) -> None:
        """Report a batch that will not be delivered."""
        self._events.emit(FlushFailed(batch.topic, batch.partition, batch.count, batch.size_bytes, error))
        if self._hand_out(batch, error):
            self.failure = self.failure or as_not_delivered(error)
        else:
            self.count(batch.count, error)

    def count(self, records: int, error: OttlaError) -> None:
        """Count failed records to be raised later."""
        self.failure = self.failure or as_not_delivered(error)
        if not self._errors or self._errors[-1][0] < self.raised:
            self._errors.append((self._failed_records.value, error))
        if isinstance(error, NotDelivered) and error.maybe_written:
            self._doubted = self._failed_records.value + records
        self._failed_records.add(records)  # last: who sees the records finds their error

    @property
    def raised(self) -> int:
        """How many of the failed records were raised."""
        return max(tuple(self._raised))  # several threads may raise at the same time, in any order

    def raise_failures(self, raised: int) -> None:
        """Raises `NotDelivered` if more records failed than were `raised` when the caller began to wait."""
        failed = self._failed_records.value
        if failed <= raised:
            return
        self._raised.append(failed)
        records = failed - raised
        errors = tuple(self._errors)
        first = next((error for before, error in errors if before >= raised), errors[-1][1])
        if isinstance(first, NotDelivered) and first.records == records:
            raise as_not_delivered(first)
        reason = str(first) if records == 1 else f"the first reason: {first}"
        raise NotDelivered(reason, records=records, maybe_written=self._doubted > raised, cause=first)

    def forget_failures(self) -> None:
        """Forget the failures: they were raised in another way."""
        self._raised.append(self._failed_records.value)

    def _hand_out(self, batch: Outgoing, error: OttlaError) -> bool:
        """Pass a batch to `on_failed`. Returns whether the program got it."""
        if self._on_failed is None or batch.header is None or batch.records is None:
            return False
        failed = FailedBatch(batch.topic, batch.partition, error, batch.header, bytes(batch.records))
        try:
            self._on_failed(failed)
        except BaseException:  # SystemExit and the like must not end the sender
            _log.exception("on_failed raised for %d records of %s-%d", batch.count, batch.topic, batch.partition)
            return False
        return True
