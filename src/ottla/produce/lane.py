"""The batches of one partition, in order: which may be sent now, under which identity, and what an answer means.

Pure: sealed batches, answers and the time come in, decisions go out. A lane keeps the promises of the producer for its
partition: nothing lost, nothing twice, nothing out of order, whatever the network does.

How. Batches are numbered in the order of the line (producer id, epoch, sequence), and a broker stores a number once
and only after the one before it. A batch that was sent keeps its number until the broker has answered, however often
it is sent again. After a failure everything under way is waited for, then the line is sent again from its front. Only
when a broker says of the front that its number cannot come next (error 45 and its kin: a batch before it was refused
or given up, or the broker forgot us) is the line numbered anew, under the next epoch. A broker that says so has not
stored the front, hence nothing behind it; unless it was long ago, so the end of the log is read first, and what is
found there is not sent again.

A broker that does not know a producer id takes any number from it, so numbers keep the order only once it has
acknowledged one of that id. Until then, and where the id changes in the line, a batch goes alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from enum import Enum

from ottla.errors import ErrorCode, error_row
from ottla.model import TopicPartition
from ottla.produce.outgoing import Identity, Outgoing

MOST_IN_FLIGHT = 5
"""A broker remembers the last five batches of a producer in a partition."""
FORGOTTEN_AFTER = 1.0
"""Seconds without a batch after which a broker may have forgotten our producer id: they expire, brokers restart."""
CHECK_AFTER = 600.0
"""Seconds without a batch after which a broker may have forgotten even what it wrote without our hearing of it (ids
live for a day by default) and would write that again: the log is read before it is sent again."""
LAST_EPOCH = (1 << 15) - 1
_SEQUENCES = 1 << 31


class Verdict(Enum):
    """What an error code in the answer to a batch means for it."""

    RETRY = "send it again"
    CHECK = "look into the log whether it is there"
    SPLIT = "cut it into smaller ones"
    REFUSE = "it will never be taken"
    FENCED = "another producer has taken over"


_CHECK = {
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.duplicate_sequence_number,
    ErrorCode.unknown_producer_id,
    ErrorCode.invalid_producer_epoch,
}
_SPLIT = {ErrorCode.message_too_large, ErrorCode.record_list_too_large}
_FENCED = {ErrorCode.producer_fenced, ErrorCode.transaction_coordinator_fenced}


def verdict_on(code: int, *, records: int) -> Verdict:
    """What to do about a batch of so many records that was answered with `code`."""
    row = error_row(code)
    if row.code in _FENCED:
        return Verdict.FENCED
    if row.code in _CHECK:
        return Verdict.CHECK
    if row.code in _SPLIT:
        return Verdict.SPLIT if records > 1 else Verdict.REFUSE
    return Verdict.RETRY if row.retriable else Verdict.REFUSE


class Lane:
    """One partition's line. Its owner is one thread."""

    def __init__(self, at: TopicPartition, *, in_flight: int = MOST_IN_FLIGHT, numbered: bool = True) -> None:
        self.at = at
        self.open: Outgoing | None = None
        """The batch that is being filled."""
        self.line: deque[Outgoing] = deque()
        """Sealed and not decided, in order."""
        self.floor = -1
        """The offset after the last batch that was acknowledged; what is in the line can only lie behind it."""
        self.failures = 0
        """In a row."""
        self.resume_at = 0.0
        self.flying = 0
        """Batches that were sent and have no answer yet, also those that were given up meanwhile."""
        self.must_check = False
        """The log has to be read before anything else is sent."""
        self.checking = False
        self.is_stale = False
        """It has to be read because much time has passed, not because the broker said that numbers cannot go on."""
        self.stored: Outgoing | None = None
        """The batch that is on disk, as it must be before it is sent; its owner's."""
        self._is_checked = False
        """Since something was sent."""
        self._most_in_flight = in_flight
        self._numbered = numbered
        self._resending = False
        self._producer_id = -1
        self._disowned_id = -1
        self._epoch = 0
        self._next_sequence = 0
        self._unsent_from = 0
        """Of the numbers given, those from here on were never sent."""
        self._known_id = -1
        """The producer id that the broker knows, since it has acknowledged a batch of it; -1 for none."""
        self._sent_id = -1
        """Of what is under way: never two of them at once."""
        self._sent_at = -math.inf

    # What to send

    def add(self, batch: Outgoing) -> None:
        """A sealed batch goes to the end of the line."""
        self.line.append(batch)

    def sendable(self, now: float) -> Outgoing | None:
        """The batch that may be sent now."""
        if self.checking or self.must_check or now < self.resume_at or self.flying >= self._most_in_flight:
            return None
        if self._resending:
            if self.flying:
                return None
            self._resending = False
        batch = next((batch for batch in self.line if not batch.flying), None)
        if batch is None or self._goes_alone(batch):
            return None
        if batch.attempts and batch.identity is not None and now - self._sent_at > CHECK_AFTER and not self._is_checked:
            self.must_check = self.is_stale = True
            return None
        return batch

    @property
    def needs_identity(self) -> bool:
        """Whether a producer id is needed before anything new can be numbered."""
        return self._numbered and (self._producer_id < 0 or self._epoch > LAST_EPOCH)

    def may_adopt(self, producer_id: int, epoch: int = 0) -> bool:
        """Whether no number under this id and epoch can be in use: not again the one that was disowned or used up."""
        return producer_id not in (self._producer_id, self._disowned_id) or epoch > self._epoch

    def adopt(self, producer_id: int, epoch: int = 0) -> None:
        """What is numbered from now on belongs to this producer id."""
        self._producer_id, self._epoch = producer_id, epoch
        self._next_sequence = self._unsent_from = 0

    @property
    def waits(self) -> bool:
        """Whether nothing can be sent before an answer comes."""
        if not self.flying:
            return False
        unsent = next((batch for batch in self.line if not batch.flying), None)
        return self.flying >= self._most_in_flight or self._resending or self._goes_alone(unsent)

    @property
    def has_unsent(self) -> bool:
        """Whether a sealed batch is not under way."""
        return any(not batch.flying for batch in self.line)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to send and nothing to wait for."""
        return self.open is None and not self.line and not self.flying and not self.must_check and not self.checking

    @property
    def epoch(self) -> int:
        """Of what is numbered next."""
        return self._epoch

    @property
    def producer_id(self) -> int:
        """Of what is numbered next, -1 when there is none."""
        return self._producer_id

    def number(self, batch: Outgoing, *, transactional: bool = False) -> Identity | None:
        """Gives the batch the next number, unless it has one; the batches before it in the line must have theirs."""
        if not self._numbered or batch.identity is not None:
            return batch.identity
        identity = Identity(self._producer_id, self._epoch, self._next_sequence)
        self._next_sequence = (self._next_sequence + batch.count) % _SEQUENCES
        batch.stamp(identity, transactional=transactional)
        return identity

    @property
    def next_identity(self) -> Identity | None:
        """Under which the next batch is sent, if nothing else happens."""
        return Identity(self._producer_id, self._epoch, self._next_sequence) if self._numbered else None

    def add_numbered(self, batch: Outgoing) -> None:
        """A sealed batch that has `next_identity` already goes to the end of the line."""
        self.line.append(batch)
        if batch.identity is not None:
            self._next_sequence = (batch.identity.sequence + batch.count) % _SEQUENCES

    def sent(self, batch: Outgoing, now: float) -> None:
        """The batch is under way."""
        batch.flying = True
        batch.attempts += 1
        batch.sent_at = now if batch.sent_at is None else batch.sent_at
        self.flying += 1
        self.stored = None
        if now - self._sent_at > FORGOTTEN_AFTER:
            self._known_id = -1
        self._sent_at = now
        self._is_checked = False
        self._sent_id = -1 if batch.identity is None else batch.identity.producer_id
        left = self._left_from(batch.identity)
        if left and left - batch.count < (self._next_sequence - self._unsent_from) % _SEQUENCES:
            self._unsent_from = (self._next_sequence - left + batch.count) % _SEQUENCES

    # What came back

    def acknowledged(self, batch: Outgoing, base_offset: int) -> None:
        """The broker has it."""
        self._landed(batch)
        self.failures = 0
        if batch.identity is not None:
            self._known_id = batch.identity.producer_id
        # With one before it that has no answer, the floor stays: that one may be in the log before this.
        # It may go back: a topic that was deleted and created again begins at 0.
        if base_offset >= 0 and self.line and self.line[0] is batch:
            self.floor = base_offset + batch.count
        self._remove(batch)

    def again(self, batch: Outgoing, *, resume_at: float) -> None:
        """It may or may not have arrived: the line is sent again, from its first batch that has no answer."""
        self._landed(batch)
        self._resending = self.flying > 0
        if resume_at > self.resume_at:
            self.failures += 1
            self.resume_at = resume_at

    def misnumbered(self, batch: Outgoing, *, resume_at: float = 0.0) -> None:
        """The broker says that this number cannot come next. What to do about it waits if that was in vain before."""
        self._landed(batch)
        self._resending = self.flying > 0
        if not self.line or self.line[0] is not batch:
            return  # behind one that is still open that is no news: its turn comes again
        self.must_check = True
        if self.failures:
            self.resume_at = max(self.resume_at, resume_at)
        self.failures += 1

    def refused(self, batch: Outgoing) -> None:
        """The broker will never take it. Its number is left out; the next batch will hear of that."""
        self._landed(batch)
        self._resending = self.flying > 0
        self._remove(batch)

    def replaced(self, batch: Outgoing, parts: Iterable[Outgoing]) -> None:
        """It is sent as several smaller batches instead, under its numbers: nothing has to be numbered anew.

        A broker that refused it has not used them, since all copies of it were too large.
        """
        at, identity, header = self.line.index(batch), batch.identity, batch.header
        self.refused(batch)
        for place, part in enumerate(parts):
            self.line.insert(at + place, part)
            if identity is not None and header is not None:
                part.stamp(identity, transactional=header.is_transactional)
                identity = identity._replace(sequence=(identity.sequence + part.count) % _SEQUENCES)

    def given_up(self, batch: Outgoing) -> None:
        """Nobody waits for it any more; if it was sent, an answer may still come."""
        self._remove(batch)
        free = self._left_from(batch.identity)
        if 0 < free <= (self._next_sequence - self._unsent_from) % _SEQUENCES:
            # Neither it nor anything numbered after it was ever sent: the numbers are free again. Not if one of them is
            # on disk: should the mark that it is done be lost, it would come back under a number that is in use.
            numbered = [other for other in self.line if 0 < self._left_from(other.identity) < free]
            if any(other.stored_identity == other.identity for other in (batch, *numbered)):
                return
            for other in numbered:
                other.stamp(None)
            self._next_sequence = (self._next_sequence - free) % _SEQUENCES

    def forgotten(self, batch: Outgoing) -> None:
        """The answer to a batch that was given up has come, or never will."""
        self._landed(batch)

    # Reading the log

    @property
    def ready_to_check(self) -> bool:
        """Whether the log must be read now: nothing is under way that could still be written."""
        return self.must_check and not self.checking and self.flying == 0

    def checked(self, found: Mapping[Identity, int]) -> list[tuple[Outgoing, int]]:
        """The log was read from the floor on: what is in it is done. Returns those batches, with their offsets."""
        self.checking = self.must_check = self.is_stale = False
        self._is_checked = True
        written = [(b, found[b.identity]) for b in self.line if b.identity is not None and b.identity in found]
        for batch, offset in written:
            self._remove(batch)
            self.floor = offset + batch.count
        return written

    def unchecked(self, *, resume_at: float) -> None:
        """The log could not be read, and must be: but not at once, since it may be refused at once, for ever."""
        self.checking = False
        self.failures += 1
        self.resume_at = max(self.resume_at, resume_at)

    def number_again(self) -> None:
        """The line loses its numbers, and is numbered from 0 under the next epoch, which shuts out the old ones.

        Only after the log was read, and never with another owner's producer id: it is not known which of its epochs
        are used.
        """
        for batch in self.line:
            batch.stamp(None)
        self._epoch += 1
        self._next_sequence = self._unsent_from = 0

    def disown(self) -> None:
        """Somebody else uses our producer id: what is numbered from now on needs another one."""
        if self._producer_id >= 0:
            self._disowned_id, self._producer_id = self._producer_id, -1

    def start_over(self) -> None:
        """Our producer id gets a new epoch from the coordinator: what is numbered from now on waits for that."""
        self._producer_id = -1

    def _goes_alone(self, batch: Outgoing | None) -> bool:
        """Whether the batch, or a new one, must wait for what is under way: the broker may take it out of turn."""
        if not self._numbered or not self.flying:
            return False
        identity = None if batch is None else batch.identity
        producer_id = self._producer_id if identity is None else identity.producer_id
        return producer_id != self._known_id or producer_id != self._sent_id

    def _left_from(self, identity: Identity | None) -> int:
        """How many of our numbers were given from this one on; 0 for those of another id or epoch."""
        if identity is None or identity[:2] != (self._producer_id, self._epoch):
            return 0
        return (self._next_sequence - identity.sequence) % _SEQUENCES

    def _landed(self, batch: Outgoing) -> None:
        if batch.flying:
            batch.flying = False
            self.flying -= 1

    def _remove(self, batch: Outgoing) -> None:
        try:
            self.line.remove(batch)
        except ValueError:
            pass  # given up before the answer came
