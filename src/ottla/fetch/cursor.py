"""How far one partition has been read: where the next request begins, where to stop, and what an answer means.

Answers of a broker come in, `Piece` values (batches in order, without gaps that were not told) or what went wrong go
out. Pure: the loop that owns a cursor gives it the time and does what it says.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.errors import BrokerError, CorruptBatch, OttlaError, WireError
from ottla.model import TopicPartition
from ottla.wire.batch import Batch, split
from ottla.wire.fetch import Aborted, Diverging, Fetched, FetchPartition
from ottla.wire.scan import Batches

END_OF_LOG = (1 << 63) - 1
UNKNOWN = -1
_USUAL_BYTES = 1024.0
"""What an offset takes in the log, until an answer tells."""
_SLACK, _SLACK_BYTES = 1.1, 1 << 16
"""The rest of a range may have larger records than what was read of it last."""


class Checkpoint(NamedTuple):
    """How far a cursor is for certain: up to what its reader has, or finds on the buffer."""

    position: int
    epoch: int
    topic_id: uuid.UUID | None
    is_over: bool


class ResponseMemory:
    """The memory of one answer; `pieces` of it are not used up yet."""

    __slots__ = ("pieces", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.pieces = 0


class Piece(NamedTuple):
    """What one answer had for one partition: the records in `[start, stop)` of these batches.

    It begins where the one before it ended, unless the cursor went on elsewhere in between.
    """

    cursor: Cursor
    batches: Sequence[Batch]
    start: int
    stop: int
    next_offset: int
    memory: ResponseMemory
    topic_id: uuid.UUID | None = None
    """The topic that they are of: another one may have its name by now."""
    epoch: int = UNKNOWN
    """The leader epoch of the record before `next_offset`, as far as known."""

    def checkpoint(self) -> Checkpoint:
        """Where its reader is with it."""
        return Checkpoint(self.next_offset, self.epoch, self.topic_id, self.next_offset >= self.stop)


class Failed(NamedTuple):
    """A partition cannot be read on."""

    cursor: Cursor
    error: OttlaError

    def checkpoint(self) -> Checkpoint:
        """Where its reader is with it."""
        return self.cursor.checkpoint._replace(is_over=True)


class OutOfRange(NamedTuple):
    """The broker has no such offset: find out what it has."""


class Diverged(NamedTuple):
    """The log has other records by now than those that were read before this offset."""

    where: Diverging


class Cursor:
    """One partition that is being read. The loop's thread changes it; `open` and `paused` are its user's."""

    __slots__ = (
        "tp",
        "clamped",
        "contradictions",
        "density",
        "epoch",
        "checkpoint",
        "failures",
        "generation",
        "is_busy",
        "is_id_confirmed",
        "is_over",
        "leader",
        "leader_epoch",
        "open",
        "paused",
        "position",
        "resume_at",
        "start",
        "stop",
        "topic_id",
        "last_error",
        "failing_since",
        "waiting_since",
    )

    def __init__(
        self,
        at: TopicPartition,
        start: int,
        stop: int = END_OF_LOG,
        *,
        epoch: int = UNKNOWN,
        topic_id: uuid.UUID | None = None,
    ) -> None:
        self.tp = at
        self.start = start
        """Of a range: nothing before it is handed out."""
        self.position = start
        """The next offset to ask for."""
        self.stop = stop
        self.epoch = epoch
        """The leader epoch of the record before the position, as far as known."""
        self.density = _USUAL_BYTES
        """Bytes that an offset takes in the log, as of the last answer."""
        self.topic_id = topic_id
        self.is_id_confirmed = topic_id is not None
        """Whether its offsets are known to be of the topic with this id: because its user said so, or a broker had
        records for it. Otherwise the id was only remembered, and may be that of an earlier topic of the name."""
        self.leader = UNKNOWN
        """The broker to ask; -1 while it must be looked up."""
        self.leader_epoch = UNKNOWN
        self.generation = 0
        """Counts what was asked: answers to an older question are void, pieces that were fetched before are not."""
        self.open = True
        self.paused = False
        self.is_over = start >= stop
        """Nothing more is to be read: the end was reached, or it failed."""
        self.checkpoint = Checkpoint(start, epoch, topic_id, self.is_over)
        """As of what its reader took last. All else about the position may be half done after an interrupt."""
        self.is_busy = False
        """A request is under way, or something is being found out."""
        self.resume_at = 0.0
        self.failures = 0
        self.contradictions = 0
        """Refusals in a row of an offset that the log should have."""
        self.clamped = 0
        """Records so far whose time does not fit in microseconds; its user's, too."""
        self.last_error: OttlaError | None = None
        self.failing_since = math.inf
        self.waiting_since = math.inf
        """Since when the broker has had nothing for us, although there should be something."""

    def __repr__(self) -> str:
        return f"<Course {self.tp} at {self.position}, leader {self.leader}>"

    @property
    def is_bounded(self) -> bool:
        """Whether it is a range; otherwise it follows the log for ever."""
        return self.stop < END_OF_LOG

    def wanted(self, max_bytes: int) -> FetchPartition:
        """What to ask for; of a range, hardly more than there is left of it."""
        at, most = self.tp, max_bytes
        if self.is_bounded:
            left = int((self.stop - self.position) * self.density * _SLACK) + _SLACK_BYTES
            most = min(most, left)
        return FetchPartition(at.topic, at.partition, self.position, most, self.leader_epoch, self.topic_id, self.epoch)

    def move(self, position: int, *, epoch: int = UNKNOWN) -> None:
        """Goes on elsewhere; what was asked for before is void, what was fetched before is not."""
        self.position = position
        self.epoch = epoch
        self.generation += 1
        self.is_busy = False
        self.is_over = position >= self.stop
        self.recover()

    def restart(self) -> None:
        """Goes back to what is a fact."""
        self.move(self.checkpoint.position, epoch=self.checkpoint.epoch)
        self.topic_id = self.checkpoint.topic_id
        self.is_id_confirmed = self.is_id_confirmed and self.topic_id is not None
        self.is_over = self.checkpoint.is_over

    def recover(self) -> None:
        """The last trouble is over."""
        self.failures = self.contradictions = 0
        self.last_error = None
        self.failing_since = self.waiting_since = math.inf
        self.resume_at = 0.0

    def postpone(self, seconds: float) -> None:
        """For so long nobody could ask for it: its patience begins later."""
        self.failing_since += seconds
        self.waiting_since += seconds

    def stumble(self, error: OttlaError, now: float, *, resume_at: float) -> None:
        """Something went wrong that may go by."""
        self.failures += 1
        self.last_error = error
        self.failing_since = min(self.failing_since, now)
        self.resume_at = resume_at

    def take(
        self,
        fetched: Fetched,
        memory: ResponseMemory,
        now: float,
        *,
        committed_only: bool,
        scanned: Batches | None = None,
    ) -> Piece | OutOfRange | Diverged | BrokerError | CorruptBatch | None:
        """What the answer means; None when there is nothing new. An error that it returns may go by.

        `scanned` are its batches, if they were looked for already and nothing is wrong with them.
        """
        if fetched.error_code == OUT_OF_RANGE:
            return OutOfRange()
        if fetched.error_code:
            return BrokerError(fetched.error_code, f"reading {self.tp} at offset {self.position}")
        if fetched.diverging is not None and fetched.diverging.epoch >= 0:
            return Diverged(fetched.diverging)
        self.is_id_confirmed = True
        self.recover_but_wait(now, fetched)
        batches: Sequence[Batch]
        if scanned is not None and scanned.next_offset > self.position:
            batches = scanned
            first_offset, next_offset, epoch = scanned.first_offset, scanned.next_offset, scanned.epoch
        else:
            batches = _in_order(fetched.records, self.position) if len(fetched.records) else []
            if not batches:
                return _cut_short(fetched.records)
            last = batches[-1].header
            first_offset, next_offset, epoch = batches[0].header.base_offset, last.next_offset, last.leader_epoch
        self.waiting_since = math.inf
        self.density = len(fetched.records) / (next_offset - first_offset)
        start, self.position = self.position, next_offset
        self.epoch = epoch
        self.is_over = self.position >= self.stop
        kept = without_aborted(batches, fetched.aborted) if committed_only and fetched.aborted else batches
        return Piece(self, kept, start, self.stop, self.position, memory, self.topic_id, self.epoch)

    def recover_but_wait(self, now: float, fetched: Fetched) -> None:
        """An answer came; whether it has anything is seen next."""
        waiting = min(self.waiting_since, now)
        self.recover()
        self.waiting_since = waiting


OUT_OF_RANGE = 1


def fetchable(cursors: Iterable[Cursor], now: float) -> list[Cursor]:
    """Those for which a request may be sent now. There may be thousands: a call for each would take too long."""
    return [
        cursor
        for cursor in cursors
        if not (
            cursor.is_busy
            or cursor.is_over
            or cursor.paused
            or not cursor.open
            or cursor.leader < 0
            or now < cursor.resume_at
        )
    ]


def _cut_short(records: memoryview) -> CorruptBatch | None:
    """Brokers send the first batch whole, whatever its size (KIP-74), or nothing."""
    if not len(records):
        return None
    reason = f"the answer ends within its first batch, after {len(records)} bytes"
    return CorruptBatch(reason, base_offset=None, position=len(records))


def _in_order(records: memoryview, position: int) -> list[Batch]:
    """The whole batches of an answer: they must follow one another, and lead beyond the position.

    Those before a damaged one are good: the damaged one is the first of the next answer.
    """
    batches: list[Batch] = []
    reached = 0
    try:
        for batch in split(records):
            base_offset = batch.header.base_offset
            if base_offset < reached:
                raise CorruptBatch(
                    f"it lies behind a batch that ends at {reached}", base_offset=base_offset, position=0
                )
            batches.append(batch)
            reached = batch.header.next_offset
    except WireError:
        if reached <= position:
            raise
    if batches and reached <= position:
        # Taken as progress it would be asked for again and again.
        reason = f"it ends at {reached}, and offset {position} was asked for"
        raise CorruptBatch(reason, base_offset=batches[-1].header.base_offset, position=0)
    return batches


def moved(cursor: Cursor) -> Piece:
    """Tells a reader that the cursor went on elsewhere, or is over, although no records came."""
    memory = ResponseMemory(0)
    memory.pieces = 1
    at = cursor.position
    return Piece(cursor, (), at, cursor.stop, at, memory, cursor.topic_id, cursor.epoch)


def without_aborted(batches: Iterable[Batch], aborted: Iterable[Aborted]) -> list[Batch]:
    """The batches that belong to no aborted transaction.

    `aborted` names, for each, the producer and where it began; it ends with that producer's next marker.
    """
    coming = sorted(aborted, key=lambda one: one.first_offset, reverse=True)
    active: set[int] = set()
    kept: list[Batch] = []
    for batch in batches:
        header = batch.header
        while coming and coming[-1].first_offset <= header.last_offset:
            active.add(coming.pop().producer_id)
        if header.is_control:
            active.discard(header.producer_id)
        if not (header.is_transactional and not header.is_control and header.producer_id in active):
            kept.append(batch)
    return kept
