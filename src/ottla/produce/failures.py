"""Records that are not delivered: they are counted and reported, and kept for whoever asks.

Batches and rows with the reason why come in; their deliveries are settled, events go out, and the failures since the
last time somebody asked are counted, so that a program that looks at no delivery still hears of them.
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
from ottla.produce.delivery import Outcome, Placement, Refusal, fresh
from ottla.produce.hook import decoded
from ottla.produce.intake import Handover
from ottla.produce.outgoing import Outgoing
from ottla.produce.packing import RefuseRows
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


class Failures:
    """Records that were not delivered, as the sender's thread finds out and any thread may ask."""

    def __init__(self, *, events: Events, on_failed: Callable[[FailedBatch], None] | None = None) -> None:
        self._events = events
        self._on_failed = on_failed
        self._failed_records = Total()
        """Those that were told are taken off again."""
        self._first: deque[OttlaError] = deque()
        """Why the first record failed since somebody asked. Whoever takes it out tells of all."""
        self.kept = 0
        """Records that stay in the spool when the producer ends."""
        self.failure: OttlaError | None = None
        """Why a record failed, whoever was told; set back by the transaction that looks at it."""

    def left(self, batch: Outgoing, error: KeptInSpool) -> None:
        """The producer ends, and the batch stays on disk: no failure, and no delivery either."""
        self.kept += batch.count
        batch.decide(Outcome(0, -1, -1, error))

    def refuse(self, handover: Handover, error: OttlaError) -> None:
        """None of the rows that are in no batch yet gets into one."""
        shipment = handover.shipment
        count = handover.columns.count
        is_open = np.ones(count, np.bool_)
        for placement in shipment.placements:
            is_open[np.asarray(placement.rows)] = False
        rows = np.flatnonzero(is_open)
        if len(rows) == count:
            shipment.unsettled = count
        if len(rows):
            self.refuse_rows(RefuseRows(shipment, -1, rows, error))

    def refuse_rows(self, refused: RefuseRows) -> None:
        """These rows get into no batch."""
        shipment, partition, rows, error = refused
        shipment.placements.append(Placement(Refusal(shipment.topic, partition, error), rows, 0))
        self.count(len(rows), error)
        shipment.settle(len(rows))

    def failed(self, batch: Outgoing, error: OttlaError) -> None:
        """The batch will not be delivered."""
        self._events.emit(FlushFailed(batch.topic, batch.partition, batch.count, batch.size_bytes, error))
        if self._hand_out(batch, error):
            self.failure = self.failure or fresh(error)
        else:
            self.count(batch.count, error)

    def count(self, records: int, error: OttlaError) -> None:
        """So many records failed, and nobody was told yet."""
        self.failure = self.failure or fresh(error)
        self._failed_records.add(records)
        if not self._first:  # looked at afterwards: who takes it out then counts these as well
            self._first.append(error)

    def raise_failures(self) -> None:
        """Raises NotDelivered if records failed since the last time this was asked."""
        first, records = self._take_failures()
        if first is None or not records:
            return
        if isinstance(first, NotDelivered) and first.records == records:
            raise fresh(first)
        reason = str(first) if records == 1 else f"the first reason: {first}"
        raise NotDelivered(reason, records=records, cause=first)

    def forget_failures(self) -> None:
        """They were told in another way."""
        self._take_failures()

    def _take_failures(self) -> tuple[OttlaError | None, int]:
        try:
            first = self._first.popleft()
        except IndexError:
            return None, 0  # there are none, or another thread tells of them
        records = self._failed_records.value
        self._failed_records.add(-records)
        return first, records

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
