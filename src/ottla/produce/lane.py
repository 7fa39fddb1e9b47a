"""The batches of one partition, in order: which may be sent now, under which identity, and what an answer means.

Sealed batches, answers and the time come in; decisions go out. Pure: no thread, socket or clock. A lane keeps the
producer's promises for its partition: nothing lost, nothing twice, nothing out of order, whatever the network does.

How it works. Batches are numbered in queue order (producer id, epoch, sequence). A broker stores each number once, and
only after the one before it. A batch that was sent keeps its number until the broker answers, however often it is sent
again. After a failure, the lane waits for everything in flight and then sends again from the front of the queue. It
renumbers the queue, under the next epoch, only if the broker says that the number of the front batch cannot come next
(error 45 and similar: a batch before it was refused or given up, or the broker forgot the producer id). A broker that
says this has not stored the front batch, and so nothing behind it, unless that was long ago. Therefore the lane first
has the end of the log read, and does not send again what is there.

A broker that does not know a producer id accepts any number from it, so numbers keep the order only after the broker
has acknowledged a batch of that id. Until then, and where the id changes within the queue, the lane sends one batch at
a time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum

from ottla.errors import BrokerError, ErrorCode, OttlaError, error_row
from ottla.model import TopicPartition
from ottla.produce.outgoing import Identity, Outgoing

MOST_IN_FLIGHT = 5
"""Kafka brokers remember the last five batches of a producer in a partition."""
FORGOTTEN_AFTER = 1.0
"""Seconds without a batch after which a broker may have forgotten our producer id: ids expire, brokers restart."""
CHECK_AFTER = 600.0
"""Seconds without a batch after which a broker may have forgotten even batches whose acknowledgement we never got (ids
live for a day by default), and would store them again: the log is read before such a batch is sent again."""
LAST_EPOCH = (1 << 15) - 1
"""Epochs are 16-bit signed numbers; after the last one a new producer id is needed."""
_SEQUENCES = 1 << 31
"""Sequences wrap around to 0 after 2**31 - 1."""


_ABSENT = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.leader_not_available,
        ErrorCode.not_enough_replicas,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""Error codes after which the batch is certainly not in the log."""


class Verdict(Enum):
    """What an error code means for the batch it answers."""

    RETRY = "send it again"
    CHECK = "search the log for it"
    SPLIT = "split it into smaller ones"
    SIEVE = "some of its records will never be accepted: split them off"
    REFUSE = "it will never be accepted"
    FENCED = "another producer has taken over"


_CHECK = {
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.duplicate_sequence_number,
    ErrorCode.unknown_producer_id,
    ErrorCode.invalid_producer_epoch,
}
_SPLIT = {ErrorCode.message_too_large, ErrorCode.record_list_too_large}
_INVALID = {ErrorCode.invalid_timestamp, ErrorCode.invalid_record}
_FENCED = {ErrorCode.producer_fenced, ErrorCode.transaction_coordinator_fenced}


def verdict_on(code: int, *, records: int) -> Verdict:
    """What to do about a batch of this many records that was answered with `code`."""
    row = error_row(code)
    if row.code in _FENCED:
        return Verdict.FENCED
    if row.code in _CHECK:
        return Verdict.CHECK
    if row.code in _SPLIT:
        return Verdict.SPLIT if records > 1 else Verdict.REFUSE
    if row.code in _INVALID and records > 1:
        return Verdict.SIEVE
    return Verdict.RETRY if row.retriable else Verdict.REFUSE


def is_surely_absent(error: OttlaError) -> bool:
    """Whether the broker certainly did not append the batch."""
    return isinstance(error, BrokerError) and error.code in _ABSENT


class Lane:
    """The queue of one partition. One thread owns it."""

    def __init__(self, tp: TopicPartition, *, max_in_flight: int = MOST_IN_FLIGHT, numbered: bool = True) -> None:
        self.tp = tp
        self.open: Outgoing | None = None
        """The batch that is being filled."""
        self.queue: deque[Outgoing] = deque()
        """Sealed batches without an outcome, in order."""
        self.floor = -1
        """The offset after the last acknowledged batch. Batches in the queue can only be at or after it."""
        self.failures = 0
        """Consecutive failures."""
        self.resume_at = 0.0
        self.in_flight = 0
        """Batches that were sent and not answered, including those given up since."""
        self.must_check = False
        """Whether the log must be read before anything else is sent."""
        self.checking = False
        self.is_stale = False
        """Whether it must be read only because much time has passed, not because the broker rejected a number."""
        self.stored: Outgoing | None = None
        """The batch that is known to be on disk, as a spool requires before sending. Set by the owner."""
        self._is_checked = False
        """Whether the log was read since the last batch was sent."""
        self._max_in_flight = max_in_flight
        self._numbered = numbered
        self._resending = False
        self._producer_id = -1
        self._disowned_id = -1
        self._epoch = 0
        self._next_sequence = 0
        self._unsent_from = 0
        """The first of the assigned numbers that was never sent."""
        self._known_id = -1
        """The producer id of which the broker has acknowledged a batch, -1 for none."""
        self._sent_id = -1
        """The producer id of what is in flight: never two at once."""
        self._sent_at = -math.inf

    # What to send

    def add(self, batch: Outgoing) -> None:
        """Append a sealed batch to the queue."""
        self.queue.append(batch)

    def sendable(self, now: float) -> Outgoing | None:
        """The batch that may be sent now, or None."""
        if self.checking or self.must_check or now < self.resume_at or self.in_flight >= self._max_in_flight:
            return None
        if self._resending:
            if self.in_flight:
                return None
            self._resending = False
        batch = next((batch for batch in self.queue if not batch.in_flight), None)
        if batch is None or self._must_wait_alone(batch):
            return None
        if batch.attempts and batch.identity is not None and not self._is_checked and self._is_forgotten(batch, now):
            self.must_check = self.is_stale = True
            return None
        return batch

    def _is_forgotten(self, batch: Outgoing, now: float) -> bool:
        """Whether a broker that has stored the batch may not know that any more.

        Brokers count from the time of the records: started again, they have forgotten the numbers of old ones.
        """
        silence = now - self._sent_at
        return silence > CHECK_AFTER or (batch.is_doubtful and silence + batch.age > CHECK_AFTER)

    @property
    def needs_identity(self) -> bool:
        """Whether a producer id is needed before a new batch can be numbered."""
        return self._numbered and (self._producer_id < 0 or self._epoch > LAST_EPOCH)

    def may_adopt(self, producer_id: int, epoch: int = 0) -> bool:
        """Whether no number of this id and epoch can be in use: not of the id that was disowned or used up."""
        return producer_id not in (self._producer_id, self._disowned_id) or epoch > self._epoch

    def adopt(self, producer_id: int, epoch: int = 0) -> None:
        """Number batches under this producer id from now on."""
        self._producer_id, self._epoch = producer_id, epoch
        self._next_sequence = self._unsent_from = 0

    @property
    def waits(self) -> bool:
        """Whether nothing can be sent before an answer comes."""
        if not self.in_flight:
            return False
        unsent = next((batch for batch in self.queue if not batch.in_flight), None)
        return self.in_flight >= self._max_in_flight or self._resending or self._must_wait_alone(unsent)

    @property
    def has_unsent(self) -> bool:
        """Whether a sealed batch is not in flight."""
        return any(not batch.in_flight for batch in self.queue)

    @property
    def send_at(self) -> float:
        """When it has something to send."""
        if self.has_unsent:
            return self.resume_at
        return math.inf if self.open is None else max(self.open.due, self.resume_at)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to send and nothing to wait for."""
        return self.open is None and not self.queue and not self.in_flight and not self.must_check and not self.checking

    @property
    def epoch(self) -> int:
        """The epoch of the next batch to be numbered."""
        return self._epoch

    @property
    def producer_id(self) -> int:
        """The producer id of the next batch to be numbered, -1 for none."""
        return self._producer_id

    def number(self, batch: Outgoing, *, transactional: bool = False) -> Identity | None:
        """Number the batch, unless it has a number. The batches before it in the queue must have theirs."""
        if not self._numbered or batch.identity is not None:
            return batch.identity
        identity = Identity(self._producer_id, self._epoch, self._next_sequence)
        self._next_sequence = (self._next_sequence + batch.count) % _SEQUENCES
        batch.stamp(identity, transactional=transactional)
        return identity

    @property
    def next_identity(self) -> Identity | None:
        """The identity of the next batch, if nothing else happens."""
        return Identity(self._producer_id, self._epoch, self._next_sequence) if self._numbered else None

    def add_numbered(self, batch: Outgoing) -> None:
        """Append a sealed batch that already has `next_identity`."""
        self.queue.append(batch)
        if batch.identity is not None:
            self._next_sequence = (batch.identity.sequence + batch.count) % _SEQUENCES

    def sent(self, batch: Outgoing, now: float) -> None:
        """Record that the batch is in flight."""
        batch.in_flight = True
        batch.attempts += 1
        batch.sent_at = now if batch.sent_at is None else batch.sent_at
        self.in_flight += 1
        self.stored = None
        if now - self._sent_at > FORGOTTEN_AFTER:
            self._known_id = -1
        self._sent_at = now
        self._is_checked = False
        self._sent_id = -1 if batch.identity is None else batch.identity.producer_id
        remaining = self._numbers_from(batch.identity)
        if remaining and remaining - batch.count < (self._next_sequence - self._unsent_from) % _SEQUENCES:
            self._unsent_from = (self._next_sequence - remaining + batch.count) % _SEQUENCES

    # What came back

    def acknowledged(self, batch: Outgoing, base_offset: int) -> None:
        """Remove a batch that the broker has stored."""
        self._clear_in_flight(batch)
        self.failures = 0
        if batch.identity is not None:
            self._known_id = batch.identity.producer_id
        # If an earlier batch has no answer, the floor stays: that batch may be in the log before this one.
        # The floor may move back: a topic that was deleted and recreated begins at 0.
        if base_offset >= 0 and self.queue and self.queue[0] is batch:
            self.floor = base_offset + batch.count
        self._remove(batch)

    def retry(self, batch: Outgoing, *, resume_at: float) -> None:
        """Send the queue again from its first unanswered batch: this one may or may not have arrived."""
        self._clear_in_flight(batch)
        self._resending = self.in_flight > 0
        if resume_at > self.resume_at:
            self.failures += 1
            self.resume_at = resume_at

    def misnumbered(self, batch: Outgoing, *, resume_at: float = 0.0) -> None:
        """Handle a broker's answer that this number cannot come next.

        The check of the log is delayed to `resume_at` if the last one did not help.
        """
        self._clear_in_flight(batch)
        self._resending = self.in_flight > 0
        if not self.queue or self.queue[0] is not batch:
            return  # expected behind an unanswered batch: it is sent again after that one
        self.must_check = True
        if self.failures:
            self.resume_at = max(self.resume_at, resume_at)
        self.failures += 1

    def refused(self, batch: Outgoing) -> None:
        """Remove a batch that the broker will never accept.

        Its number stays unused; the next batch is rejected for that.
        """
        self._clear_in_flight(batch)
        self._resending = self.in_flight > 0
        self._remove(batch)

    def replaced(self, batch: Outgoing, parts: Iterable[Outgoing]) -> None:
        """Put smaller batches in the place of this one, under its numbers, so that nothing has to be renumbered.

        A broker that refused the batch has not used its numbers: every copy of it was too large or invalid.
        """
        index, identity, header = self.queue.index(batch), batch.identity, batch.header
        self.refused(batch)
        for number, part in enumerate(parts):
            self.queue.insert(index + number, part)
            if identity is not None and header is not None:
                part.stamp(identity, transactional=header.is_transactional)
                identity = identity._replace(sequence=(identity.sequence + part.count) % _SEQUENCES)

    def given_up(self, batch: Outgoing) -> None:
        """Remove a batch that nothing waits for any more. If it was sent, an answer may still come."""
        self._remove(batch)
        unused = self._numbers_from(batch.identity)
        if 0 < unused <= (self._next_sequence - self._unsent_from) % _SEQUENCES:
            # Neither this batch nor any with a higher number was ever sent: the numbers can be used again. Not if one
            # of them is on disk: if its mark were lost, it would come back under a number that is in use.
            numbered = [other for other in self.queue if 0 < self._numbers_from(other.identity) < unused]
            if any(other.stored_identity == other.identity for other in (batch, *numbered)):
                return
            for other in numbered:
                other.stamp(None)
            self._next_sequence = (self._next_sequence - unused) % _SEQUENCES

    def forgotten(self, batch: Outgoing) -> None:
        """Handle the answer, or the loss, of a batch that was given up."""
        self._clear_in_flight(batch)

    # Reading the log

    @property
    def ready_to_check(self) -> bool:
        """Whether the log must be read now: nothing is in flight that could still be written."""
        return self.must_check and not self.checking and self.in_flight == 0

    def check_done(self, offsets: Mapping[Identity, int]) -> list[tuple[Outgoing, int]]:
        """Remove the batches that were found in the log. Returns them with their offsets."""
        self.checking = self.must_check = self.is_stale = False
        self._is_checked = True
        written = [(b, offsets[b.identity]) for b in self.queue if b.identity is not None and b.identity in offsets]
        for batch, offset in written:
            self._remove(batch)
            self.floor = offset + batch.count
        return written

    def check_failed(self, *, resume_at: float) -> None:
        """Back off before the log is read again: a broker may refuse at once, forever."""
        self.checking = False
        self.failures += 1
        self.resume_at = max(self.resume_at, resume_at)

    def renumber(self) -> None:
        """Renumber the queue from 0 under the next epoch, which fences the old numbers.

        Only after the log was read, and never with another owner's producer id: it is not known which of its epochs are
        used.
        """
        for batch in self.queue:
            batch.stamp(None)
        self._epoch += 1
        self._next_sequence = self._unsent_from = 0

    def disown(self) -> None:
        """Stop using our producer id: another client uses it. New batches need another one."""
        if self._producer_id >= 0:
            self._disowned_id, self._producer_id = self._producer_id, -1

    def start_over(self) -> None:
        """Wait for a new epoch of our producer id from the coordinator before numbering more batches."""
        self._producer_id = -1

    def _must_wait_alone(self, batch: Outgoing | None) -> bool:
        """Whether the batch, or a new one, must wait for what is in flight: the broker could accept it out of order."""
        if not self._numbered or not self.in_flight:
            return False
        identity = None if batch is None else batch.identity
        producer_id = self._producer_id if identity is None else identity.producer_id
        return producer_id != self._known_id or producer_id != self._sent_id

    def _numbers_from(self, identity: Identity | None) -> int:
        """How many numbers were assigned from this one on, 0 if it is of another id or epoch."""
        if identity is None or identity[:2] != (self._producer_id, self._epoch):
            return 0
        return (self._next_sequence - identity.sequence) % _SEQUENCES

    def _clear_in_flight(self, batch: Outgoing) -> None:
        """Record that the batch is no longer in flight."""
        if batch.in_flight:
            batch.in_flight = False
            self.in_flight -= 1

    def _remove(self, batch: Outgoing) -> None:
        """Remove the batch from the queue, if it is still there."""
        try:
            self.queue.remove(batch)
        except ValueError:
            pass  # it was given up before the answer came
