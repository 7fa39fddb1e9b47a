"""Counts what a producer delivers, for tallies: batches on their way, acknowledged, failed, committed or aborted.

The sender reports what happens to batches; slices go to the publisher of the producer's tallies. A batch whose bucket
no published tally announces yet must wait (`may_go`). Records count when they are acknowledged, those of a transaction
when it is committed. Used by the sender's thread; `ended` by the thread that ends a transaction.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.errors import KeptInSpool
from ottla.produce.delivery import Outcome
from ottla.produce.effects import Send
from ottla.produce.outgoing import Outgoing
from ottla.tally.publisher import Publisher
from ottla.tally.slices import slices_of
from ottla.tally.values import Slice, bucket_of
from ottla.wire.batch import Batch, pack_header
from ottla.wire.measure import Measurer

_Counted = tuple[str, int, Sequence[Slice]]


class Counting:
    """The tallies of one producer."""

    def __init__(self, publisher: Publisher, *, is_transactional: bool) -> None:
        self.publisher = publisher
        self._is_transactional = is_transactional
        self._uncommitted: list[_Counted] = []
        """Acknowledged in the open transaction."""
        self._measurer = Measurer(publisher.bucket_ms, max_batch_bytes=1 << 30)

    @property
    def bucket_ms(self) -> int:
        """The length of a bucket, as batches are measured."""
        return self.publisher.bucket_ms

    def sending(self, send: Send) -> None:
        """Note that batches are about to be sent, for the first time or again."""
        for _, _, batch in send.carried.values():
            self._expect(batch)

    def may_go(self, send: Send) -> bool:
        """Whether every batch of a request is announced, or has waited long enough."""
        publisher = self.publisher
        return all(publisher.may_go(batch.topic, batch.slices or ()) for _, _, batch in send.carried.values())

    def replaced(self, whole: Outgoing) -> None:
        """Note that parts of a batch take its place."""
        if whole.is_expected:
            self.publisher.session.drop(whole.topic, whole.slices or ())
            whole.is_expected = False

    def settled(self, batch: Outgoing, outcome: Outcome) -> None:
        """Count a batch that was acknowledged; drop one that failed."""
        if batch.header is None:
            return  # never sealed: nothing of it was sent
        error = outcome.error
        if error is not None and not batch.is_expected:
            return
        if not self._expect(batch):
            self.publisher.session.doubt(batch.topic)
            return
        slices = batch.slices or ()
        batch.is_expected = False
        session = self.publisher.session
        if error is not None:
            if getattr(error, "maybe_written", False) and not isinstance(error, KeptInSpool):
                session.doubt(batch.topic, slices)
            session.drop(batch.topic, slices)
            return
        if outcome.append_time >= 0:
            session.drop(batch.topic, slices)
            slices = _at(slices, outcome.append_time / 1000, self.publisher.audit.bucket_seconds)
            self.publisher.expect(batch.topic, slices)
        if self._is_transactional:
            self._uncommitted.append((batch.topic, batch.partition, slices))
        else:
            session.count(batch.topic, batch.partition, slices)

    def ended(self, committed: bool | None) -> None:
        """Count the records of a transaction that was committed, drop those of one that was not.

        None: it is prepared, or its end is not known. May be called again.
        """
        acknowledged, self._uncommitted = self._uncommitted, []
        session = self.publisher.session
        for topic, partition, slices in acknowledged:
            if committed:
                session.count(topic, partition, slices)
                continue
            if committed is None:
                session.doubt(topic, slices)
            session.drop(topic, slices)

    def _expect(self, batch: Outgoing) -> bool:
        """Expect a batch, once. Returns False if its records are gone and were never measured."""
        if batch.is_expected:
            return True
        if batch.slices is None:
            if batch.header is None or batch.records is None:
                return False
            # Parts, and what hooks and the spool have made: sealed elsewhere.
            source = Batch.parse(pack_header(batch.header) + bytes(batch.records))
            batch.slices = slices_of(self._measurer.measure([source]), partition=batch.partition)
        batch.is_expected = True
        self.publisher.expect(batch.topic, batch.slices)
        return True


def _at(slices: Sequence[Slice], time: float, seconds: int) -> list[Slice]:
    """The same records at the time that the broker gave them all."""
    if not slices:
        return []
    whole = slices[0]
    for piece in slices[1:]:
        whole = whole + piece
    return [
        Slice(
            start=bucket_of(time, seconds),
            count=whole.count,
            bytes=whole.bytes,
            fingerprint=whole.fingerprint,
            first=time,
            last=time,
            partition=whole.partition,
        )
    ]
