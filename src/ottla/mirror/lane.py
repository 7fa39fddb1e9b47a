"""The mirror of one partition: which batch may be sent next, under which number, and what an answer means.

Pieces of the source's log, answers of the target's broker and the time come in; decisions go out. Pure: the forwarder
that owns a lane does what it says.

A lane holds its target partition for a term (`terms.py`). Batches are numbered in the order of the source and sent in
that order, up to five at a time. A batch is sent only if its run is in the journal. After a lost answer the same
batches are sent again under the same numbers, and the broker recognizes those it has. Whatever cannot be settled that
way ends the term: the lane forgets everything it holds, takes over again, and continues where the target's log ends.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ottla.errors import ErrorCode, OttlaError, error_row
from ottla.fetch.cursor import Cursor, Piece
from ottla.mirror.passage import Acceptance, Reason, passed_on, reason_to_recode
from ottla.mirror.recode import Recoder
from ottla.mirror.terms import Mark, Run, Term
from ottla.model import TopicPartition
from ottla.wire.batch import Batch, BatchHeader, pack_header

MOST_IN_FLIGHT = 5
"""Brokers remember the last five batches of a producer in a partition."""
_SEQUENCES = 1 << 31
_ALL = 1 << 63
_LEAST_BYTES = 1 << 10
_RUNS_PER_CHUNK = 512
"""Entries of the journal stay small: a term with more runs continues in another one."""
_RENEW_IDLE = 3600.0
"""Seconds without a batch after which a term is renewed: brokers forget producers that are idle, after a day by
default, and with them who is shut out."""
_RENEW_AGE = 86_400.0
"""Coordinators forget a transactional id that is not used, after a week by default."""
_FENCED = {ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch, ErrorCode.invalid_producer_id_mapping}
_OUT_OF_STEP = {
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.duplicate_sequence_number,
    ErrorCode.unknown_producer_id,
}
_TOO_LARGE = {ErrorCode.message_too_large, ErrorCode.record_list_too_large}


class Phase(Enum):
    """What a lane is doing."""

    IDLE = "waits to take over"
    TAKING_OVER = "is taking over"
    RUNNING = "mirrors"
    DONE = "has reached its end"
    FAILED = "has failed"


class Verdict(Enum):
    """What an answer means for a batch."""

    RETRY = "send it again"
    TAKE_OVER = "find out what the log has, and continue from there"
    FENCED = "another mirror has taken over"
    FAIL = "it will never be accepted"


class Outbound:
    """One batch on its way to the target."""

    __slots__ = ("header", "in_flight", "is_acknowledged", "number", "original", "reason", "records", "source")

    def __init__(
        self,
        header: BatchHeader,
        records: memoryview,
        *,
        number: int,
        source: int,
        original: Batch,
        reason: Reason | None,
    ) -> None:
        self.header = header
        self.records = records
        self.number = number
        """How many records of the term come before it."""
        self.source = source
        """The source offset after its last record."""
        self.original = original
        self.reason = reason
        self.in_flight = False
        self.is_acknowledged = False

    def parts(self) -> list[bytes | memoryview]:
        """Return the bytes to send, in parts."""
        return [pack_header(self.header), self.records]

    @property
    def size_bytes(self) -> int:
        """The size of the whole batch."""
        return self.header.size_bytes

    @property
    def end(self) -> int:
        """The number after its last record."""
        return self.number + self.header.count


@dataclass(slots=True)
class Counts:
    """What a lane has done since it was created."""

    records: int = 0
    size_bytes: int = 0
    batches: int = 0
    recoded: Counter[Reason] = field(default_factory=Counter)
    """Batches that were decoded and encoded again, by reason."""
    foreign: int = 0
    """Offsets of the target that other producers have taken while this lane was writing."""
    first_time: int | None = None
    last_time: int | None = None
    """Record timestamps, in milliseconds since 1970."""


class Entry(NamedTuple):
    """What a lane has written to the journal: the term with its runs, which cover all records before `number`."""

    term: Term
    number: int


class Lane:
    """One source partition and its target. Only the forwarder's thread uses it."""

    def __init__(self, source: TopicPartition, target: TopicPartition, *, first: int, stop: int) -> None:
        self.source = source
        self.target = target
        self.first = first
        """The source offset to begin at if nothing was mirrored before."""
        self.stop = stop
        """The source offset to stop at."""
        self.accepts = Acceptance(max_bytes=1 << 30)
        """What the target accepts, as of the last takeover."""
        self.most_bytes = 1 << 30
        """The largest batch that is tried: the broker has refused larger ones whatever the topic's settings say."""
        self.phase = Phase.IDLE
        self.term: Term | None = None
        self.cursor: Cursor | None = None
        """The cursor whose pieces are expected."""
        self.queue: deque[Outbound] = deque()
        """Batches without an acknowledgement, in order."""
        self.waiting_bytes = 0
        self.in_flight = 0
        self.resume_at = 0.0
        self.failures = 0
        self.failing_since = math.inf
        """Since when nothing has succeeded, by `time.monotonic`."""
        self.error: OttlaError | None = None
        """The last error; final in the phase FAILED."""
        self.blocked: OttlaError | None = None
        """Why nothing behind the queue can be mirrored; the lane fails when the queue is empty."""
        self.counts = Counts()
        self.began_at = -1
        """The source offset at which this process began."""
        self.position = 0
        """The source offset after everything that was fetched."""
        self.is_marked = True
        """Whether the journal has the lane's last mark."""
        self.newest_time = 0
        """The newest record timestamp that was fetched, in milliseconds."""
        self._runs: list[Run] = []
        """The runs of the current chunk of the term."""
        self._chunk = 0
        self._allowed = _ALL
        """Records before this number may be sent: their runs are in the journal."""
        self._number = 0
        """How many records of the term were numbered so far."""
        self._acknowledged = Mark(0, 0, 0)
        self._shift = 0
        """By how much target offsets are higher than expected, because of foreign records."""
        self._resending = False
        self._pieces: deque[tuple[Piece, int]] = deque()
        """Pieces in use, each with the number after its last record."""
        self._began = 0.0
        self._sent_at = 0.0
        self._sent_time = 0.0
        """When the last batch was sent, by the wall clock."""

    def __repr__(self) -> str:
        return f"<Lane {self.source} -> {self.target} {self.phase.name} at {self.position}>"

    # Terms

    def taken_over(self, term: Term, cursor: Cursor, now: float, wall_time: float) -> None:
        """Begin a term whose first entry is in the journal, and expect the pieces of this cursor."""
        self.phase = Phase.RUNNING
        self.term = term
        self.cursor = cursor
        self.position = cursor.position
        self.began_at = cursor.position if self.began_at < 0 else self.began_at
        self._succeeded()
        self.is_marked = True
        self._runs = []
        self._chunk = 0
        self._allowed = _ALL
        self._number = 0
        self._acknowledged = term.start
        self._shift = 0
        self.blocked = None
        self._resending = False
        self._began = self._sent_at = now
        self._sent_time = wall_time
        self._finish_if_over()

    def not_taken_over(self, error: OttlaError, now: float, *, resume_at: float) -> None:
        """Record that taking over has failed for now."""
        self.phase = Phase.IDLE
        self._failed(error, now)
        self.resume_at = resume_at

    def give_up_term(self) -> list[Piece]:
        """Forget everything that is not acknowledged, and take over again. Returns the pieces to release."""
        released = [piece for piece, _ in self._pieces]
        self._pieces.clear()
        self.queue.clear()
        self.waiting_bytes = self.in_flight = 0  # answers that are still to come belong to another term
        self.term = self.cursor = None
        self.phase = Phase.IDLE
        return released

    def fail(self, error: OttlaError) -> list[Piece]:
        """End the lane with an error. Returns the pieces to release."""
        released = self.give_up_term()
        self.phase = Phase.FAILED
        self.error = error
        return released

    def is_outdated(self, now: float, wall_time: float) -> bool:
        """Whether the term must be renewed before another batch is sent: see `_RENEW_IDLE` and `_RENEW_AGE`.

        Both clocks count: the monotonic one may stand still while a machine is suspended, the other one may be set.
        """
        if self.phase is not Phase.RUNNING:
            return False
        is_idle = now - self._sent_at > _RENEW_IDLE or abs(wall_time - self._sent_time) > _RENEW_IDLE
        return is_idle or (now - self._began > _RENEW_AGE and not self.queue)

    @property
    def acknowledged(self) -> Mark:
        """How far the target has acknowledged."""
        return self._acknowledged

    # The journal

    @property
    def needs_journal(self) -> bool:
        """Whether batches wait for a run that is not in the journal."""
        return self.phase is Phase.RUNNING and self._allowed != _ALL

    def entry(self) -> Entry:
        """Return what is to be written to the journal next: of many new runs, the first ones."""
        assert self.term is not None
        runs = tuple(self._runs[:_RUNS_PER_CHUNK])
        term = replace(self.term, chunk=self._chunk, runs=runs, mark=self._acknowledged)
        return Entry(term, self._runs[len(runs)].number if len(runs) < len(self._runs) else self._number)

    def journaled(self, entry: Entry) -> None:
        """Record that an entry is in the journal: what its runs cover may be sent."""
        if self.term is None or entry.term.identity != self.term.identity:
            return
        self._allowed = next((run.number for run in self._runs if run.number >= entry.number), _ALL)
        self.is_marked = self._acknowledged == entry.term.mark
        if len(entry.term.runs) >= _RUNS_PER_CHUNK and entry.term.chunk == self._chunk:
            self._chunk += 1
            self._runs = self._runs[_RUNS_PER_CHUNK - 1 :]

    # From the source

    def add(self, piece: Piece, recoder: Recoder) -> None:
        """Take a piece of the source's log. A batch that cannot go on blocks the lane; what comes before it goes on."""
        self._pieces.append((piece, self._number))
        if self.blocked is not None:
            return
        for batch in piece.batches:
            header = batch.header
            if header.is_control or not header.count or header.next_offset <= piece.start:
                continue
            if header.base_offset >= self.stop:
                self.position = self.stop  # a marker or a gap may lie before it
                break
            try:
                self._add_batch(batch, piece.start, recoder)
            except OttlaError as error:
                self.blocked = error
                break
            self._pieces[-1] = piece, self._number
            self.position = min(header.next_offset, self.stop)
        else:
            self.position = min(piece.next_offset, self.stop)

    def _add_batch(self, batch: Batch, start: int, recoder: Recoder) -> None:
        header = batch.header
        self.newest_time = max(self.newest_time, header.max_timestamp)
        reason = reason_to_recode(header, self.accepts, start=start, stop=self.stop)
        if reason is None:
            self._enqueue(header, batch.records, [(header.base_offset, header.count)], batch, None)
            return
        topic, partition = self.source
        recoded = recoder.recode(batch, self.accepts, topic=topic, partition=partition, start=start, stop=self.stop)
        for new, offsets in recoded:
            self._enqueue(new.header, new.records, _stretches(offsets), batch, reason)

    def _enqueue(
        self,
        header: BatchHeader,
        records: memoryview,
        stretches: Sequence[tuple[int, int]],
        original: Batch,
        reason: Reason | None,
    ) -> None:
        """Number a batch and put it into the queue. `stretches` has the source offsets of its records."""
        assert self.term is not None
        number = self._number
        for source, count in stretches:
            self._extend_run(source, count, original.header.leader_epoch)
        stamped = passed_on(
            header,
            producer_id=self.term.producer_id,
            epoch=self.term.epoch,
            sequence=number % _SEQUENCES,
        )
        end = stretches[-1][0] + stretches[-1][1]
        self.queue.append(Outbound(stamped, records, number=number, source=end, original=original, reason=reason))
        self.waiting_bytes += stamped.size_bytes

    def _extend_run(self, source: int, count: int, leader_epoch: int) -> None:
        """Number records: in the current run if they follow it without a gap, else in a new one."""
        last = self._runs[-1] if self._runs else None
        if last is None or source - last.source != self._number - last.number or leader_epoch != last.leader_epoch:
            self._runs.append(Run(self._number, source, self._expected(self._number), leader_epoch))
            self._allowed = min(self._allowed, self._number)
        self._number += count

    def _expected(self, number: int) -> int:
        """Return the target offset of a record, unless another producer writes to the partition."""
        assert self.term is not None
        return self.term.start.target + number + self._shift

    # To the target

    def sendable(self, now: float) -> Outbound | None:
        """Return the batch that may be sent now, or None."""
        if self.phase is not Phase.RUNNING or now < self.resume_at or self.in_flight >= MOST_IN_FLIGHT:
            return None
        if self._resending:
            if self.in_flight:
                return None
            self._resending = False
        outbound = next((batch for batch in self.queue if not batch.in_flight and not batch.is_acknowledged), None)
        return outbound if outbound is not None and outbound.end <= self._allowed else None

    def sent(self, outbound: Outbound, now: float, wall_time: float) -> None:
        """Record that the batch is in flight."""
        outbound.in_flight = True
        self.in_flight += 1
        self._sent_at, self._sent_time = now, wall_time

    def is_too_low(self, outbound: Outbound, base_offset: int) -> bool:
        """Whether a batch lies before the place that is left for it: the target was cut back or created again."""
        return base_offset < self._expected(outbound.number)

    def accept(self, outbound: Outbound, base_offset: int) -> list[Piece]:
        """Record an acknowledgement. Returns the pieces that are no longer needed."""
        self._landed(outbound)
        outbound.is_acknowledged = True
        self._succeeded()
        if base_offset > self._expected(outbound.number):
            self._shift_by(base_offset - self._expected(outbound.number), outbound.number)
        self._count(outbound)
        while self.queue and self.queue[0].is_acknowledged:
            first = self.queue.popleft()
            self._acknowledged = Mark(first.end, first.source, self._expected(first.end))
            self.is_marked = False
        released = []
        while self._pieces and self._pieces[0][1] <= self._acknowledged.number and not self._holds(self._pieces[0][1]):
            released.append(self._pieces.popleft()[0])
        self._finish_if_over()
        return released

    def retry(self, outbound: Outbound, error: OttlaError, now: float, *, resume_at: float) -> None:
        """Send the queue again from its first batch without an acknowledgement: this one may or may not be there."""
        self._landed(outbound)
        self._resending = self.in_flight > 0
        if resume_at > self.resume_at:
            self._failed(error, now)
            self.resume_at = resume_at

    def verdict_on(self, outbound: Outbound, code: int) -> Verdict:
        """Return what an error of the broker means."""
        row = error_row(code)
        if row.code in _FENCED:
            return Verdict.FENCED
        if row.code in _OUT_OF_STEP:
            # Behind a batch that was not stored this is to be expected; the first one in line must be in step.
            return Verdict.TAKE_OVER if self.queue and self.queue[0] is outbound else Verdict.RETRY
        if row.code in _TOO_LARGE:
            # The target's limit was lowered, or it has segments smaller than that: from now on, make smaller batches.
            self.most_bytes = max(1, min(self.accepts.max_bytes, outbound.size_bytes) // 2)
            self.accepts = replace(self.accepts, max_bytes=self.most_bytes)
            return Verdict.TAKE_OVER
        return Verdict.RETRY if row.retriable else Verdict.FAIL

    def reached_end(self) -> list[Piece]:
        """Release the pieces that had nothing to send, if nothing is queued. Returns them."""
        released = []
        while self._pieces and not self.queue:
            released.append(self._pieces.popleft()[0])
        self._finish_if_over()
        return released

    def _failed(self, error: OttlaError, now: float) -> None:
        self.error = error
        self.failures += 1
        self.failing_since = min(self.failing_since, now)

    def _succeeded(self) -> None:
        self.error = None
        self.failures = 0
        self.failing_since = math.inf

    def _holds(self, number: int) -> bool:
        """Whether a batch before this number is still queued."""
        return bool(self.queue) and self.queue[0].number < number

    def _landed(self, outbound: Outbound) -> None:
        if outbound.in_flight:
            outbound.in_flight = False
            self.in_flight -= 1

    def _shift_by(self, offsets: int, number: int) -> None:
        """Another producer has taken offsets of the target before this record: everything from it on lies higher."""
        self._shift += offsets
        self.counts.foreign += offsets
        index = bisect.bisect_right(self._runs, number, key=lambda run: run.number) - 1
        if index < 0:  # its run is in an earlier chunk, which is in the journal as it is
            self._runs = [run._replace(target=run.target + offsets) for run in self._runs]
            return
        run = self._runs[index]
        behind = number - run.number
        moved = [
            run._replace(number=number, source=run.source + behind, target=run.target + behind + offsets),
            *(later._replace(target=later.target + offsets) for later in self._runs[index + 1 :]),
        ]
        self._runs[index if not behind else index + 1 :] = moved

    def _count(self, outbound: Outbound) -> None:
        header, counts = outbound.header, self.counts
        counts.records += header.count
        counts.size_bytes += header.size_bytes
        counts.batches += 1
        if outbound.reason is not None:
            counts.recoded[outbound.reason] += 1
        counts.first_time = header.base_timestamp if counts.first_time is None else counts.first_time
        counts.last_time = max(counts.last_time or 0, header.max_timestamp)
        self.waiting_bytes -= header.size_bytes

    def _finish_if_over(self) -> None:
        is_over = self.position >= self.stop and self.blocked is None
        if self.phase is Phase.RUNNING and is_over and not self.queue and not self._pieces:
            self.phase = Phase.DONE


def _stretches(offsets: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the stretches of offsets that follow each other, each as its first offset and its length."""
    breaks = np.flatnonzero(np.diff(offsets) != 1) + 1
    firsts = [0, *breaks.tolist()]
    ends = [*breaks.tolist(), len(offsets)]
    return [(int(offsets[first]), end - first) for first, end in zip(firsts, ends, strict=True)]
