"""The cursor of one partition: how far it was read, where to stop, and what a response means.

Responses of a broker come in; `Piece` values (batches in order, without unreported gaps) or errors go out. Pure: the
loop that owns a cursor passes in the time and does what the cursor says.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ottla.errors import BrokerError, CorruptBatch, ErrorCode, OttlaError, WireError
from ottla.model import TopicPartition
from ottla.wire.batch import Batch, split
from ottla.wire.fetch import Aborted, Diverging, Fetched, FetchPartition
from ottla.wire.scan import Batches

END_OF_LOG = (1 << 63) - 1
UNKNOWN = -1
_OUT_OF_RANGE = int(ErrorCode.offset_out_of_range)
_USUAL_BYTES = 1024.0
"""What an offset takes in the log, until the first response shows it."""
_SLACK, _SLACK_BYTES = 1.1, 1 << 16
"""The rest of a range may have larger records than the part that was read."""


class Checkpoint(NamedTuple):
    """A confirmed position of a cursor: behind what its reader has taken, or will find in the buffer."""

    position: int
    epoch: int
    topic_id: uuid.UUID | None
    is_over: bool


class ResponseMemory:
    """The memory of one response. `pieces` counts those that are not used up yet."""

    __slots__ = ("pieces", "size_bytes")

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.pieces = 0


class Piece(NamedTuple):
    """What one response had for one partition: the records in `[start, stop)` of these batches.

    It starts where the piece before it ended, unless the cursor moved in between.
    """

    cursor: Cursor
    batches: Sequence[Batch]
    start: int
    stop: int
    next_offset: int
    memory: ResponseMemory
    topic_id: uuid.UUID | None = None
    """The topic of the records: by now another topic may have its name."""
    epoch: int = UNKNOWN
    """The leader epoch of the record before `next_offset`, if known."""

    def checkpoint(self) -> Checkpoint:
        """Return the position of a reader that has taken the piece."""
        return Checkpoint(self.next_offset, self.epoch, self.topic_id, self.next_offset >= self.stop)


class Failed(NamedTuple):
    """A partition that cannot be read any further."""

    cursor: Cursor
    error: OttlaError

    def checkpoint(self) -> Checkpoint:
        """Return the position of a reader that has taken the failure."""
        return self.cursor.checkpoint._replace(is_over=True)


Item = Piece | Failed
"""What a reader gets."""


class OutOfRange(NamedTuple):
    """The broker has no such offset: look up which offsets it has."""


class Diverged(NamedTuple):
    """The log now has other records than those that were read before this offset."""

    where: Diverging


class Cursor:
    """One partition that is being read. Only the loop's thread changes it, except `open` and `paused`."""

    __slots__ = (
        "bytes_per_offset",
        "checkpoint",
        "clamped",
        "contradictions",
        "epoch",
        "failing_since",
        "failures",
        "generation",
        "is_busy",
        "is_id_confirmed",
        "is_over",
        "last_error",
        "leader",
        "leader_epoch",
        "open",
        "paused",
        "position",
        "resume_at",
        "start",
        "stop",
        "topic_id",
        "tp",
        "waiting_since",
    )

    def __init__(
        self,
        tp: TopicPartition,
        start: int,
        stop: int = END_OF_LOG,
        *,
        epoch: int = UNKNOWN,
        topic_id: uuid.UUID | None = None,
    ) -> None:
        self.tp = tp
        self.start = start
        """The start of the range: nothing before it is handed out."""
        self.position = start
        """The next offset to fetch."""
        self.stop = stop
        self.epoch = epoch
        """The leader epoch of the record before the position, if known."""
        self.bytes_per_offset = _USUAL_BYTES
        """The average size of an offset in the log, from the last response."""
        self.topic_id = topic_id
        self.is_id_confirmed = topic_id is not None
        """Whether its offsets are known to belong to the topic with this id: the user said so, or a broker returned
        records for it. Otherwise the id comes from cached metadata, and may be that of an earlier topic of the name."""
        self.leader = UNKNOWN
        """The broker to fetch from; -1 while it must be looked up."""
        self.leader_epoch = UNKNOWN
        self.generation = 0
        """Raised by every move: responses to requests of an earlier generation are void, pieces fetched before are
        not."""
        self.open = True
        self.paused = False
        self.is_over = start >= stop
        """Nothing more is to be read: the end was reached, or it failed."""
        self.checkpoint = Checkpoint(start, epoch, topic_id, self.is_over)
        """As of what the reader took last. Everything else about the position may be half done after an interrupt."""
        self.is_busy = False
        """A request is in flight, or a background task is looking something up."""
        self.resume_at = 0.0
        """When the next request is allowed, by `time.monotonic`."""
        self.failures = 0
        self.contradictions = 0
        """How often in a row a broker refused an offset that its log should have."""
        self.clamped = 0
        """Records so far whose time does not fit into microseconds. Changed by the reader's thread."""
        self.last_error: OttlaError | None = None
        self.failing_since = math.inf
        self.waiting_since = math.inf
        """Since when the broker has returned nothing, although there should be records."""

    def __repr__(self) -> str:
        return f"<Cursor {self.tp} at {self.position}, leader {self.leader}>"

    @property
    def is_bounded(self) -> bool:
        """Whether it reads a range; otherwise it follows the log forever."""
        return self.stop < END_OF_LOG

    def fetch_partition(self, max_bytes: int) -> FetchPartition:
        """Return its part of a Fetch request. For a range, ask for hardly more than is left of it."""
        tp, most = self.tp, max_bytes
        if self.is_bounded:
            left = int((self.stop - self.position) * self.bytes_per_offset * _SLACK) + _SLACK_BYTES
            most = min(most, left)
        return FetchPartition(tp.topic, tp.partition, self.position, most, self.leader_epoch, self.topic_id, self.epoch)

    def move(self, position: int, *, epoch: int = UNKNOWN) -> None:
        """Continue elsewhere. Requests in flight become void; pieces that were fetched before stay valid."""
        self.position = position
        self.epoch = epoch
        self.generation += 1
        self.is_busy = False
        self.is_over = position >= self.stop
        self.reset_errors()

    def restart(self) -> None:
        """Go back to the checkpoint."""
        self.move(self.checkpoint.position, epoch=self.checkpoint.epoch)
        self.topic_id = self.checkpoint.topic_id
        self.is_id_confirmed = self.is_id_confirmed and self.topic_id is not None
        self.is_over = self.checkpoint.is_over

    def reset_errors(self) -> None:
        """Forget past errors and waits."""
        self.failures = self.contradictions = 0
        self.last_error = None
        self.failing_since = self.waiting_since = math.inf
        self.resume_at = 0.0

    def postpone(self, seconds: float) -> None:
        """Exclude a period in which no request could be sent from all timeouts."""
        self.failing_since += seconds
        self.waiting_since += seconds

    def back_off(self, error: OttlaError, now: float, *, resume_at: float) -> None:
        """Record a transient error and send no request before `resume_at`."""
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
        """Interpret the part of a response about this partition. None if it has nothing new.

        A returned error may be transient. `scanned` are the batches, if a scan has found them and nothing is wrong with
        them. Raises `WireError` if the batches are damaged.
        """
        if fetched.error_code == _OUT_OF_RANGE:
            return OutOfRange()
        if fetched.error_code:
            return BrokerError(fetched.error_code, f"reading {self.tp} at offset {self.position}")
        if fetched.diverging is not None and fetched.diverging.epoch >= 0:
            return Diverged(fetched.diverging)
        self.is_id_confirmed = True
        waiting_since = min(self.waiting_since, now)
        self.reset_errors()
        self.waiting_since = waiting_since  # until records are found below
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
        self.bytes_per_offset = len(fetched.records) / (next_offset - first_offset)
        start, self.position = self.position, next_offset
        self.epoch = epoch
        self.is_over = self.position >= self.stop
        kept = without_aborted(batches, fetched.aborted) if committed_only and fetched.aborted else batches
        return Piece(self, kept, start, self.stop, self.position, memory, self.topic_id, self.epoch)


def fetchable(cursors: Iterable[Cursor], now: float) -> list[Cursor]:
    """Return the cursors for which a request may be sent now.

    One comprehension, because there may be thousands of cursors and a call for each would take too long.
    """
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
    """Brokers send the first batch whole, whatever its size (KIP-74), or nothing: a part of it is an error."""
    if not len(records):
        return None
    reason = f"the response ends within its first batch, after {len(records)} bytes"
    return CorruptBatch(reason, base_offset=None, position=len(records))


def _in_order(records: memoryview, position: int) -> list[Batch]:
    """Return the complete batches of a response. They must be in order and end after the position.

    Batches before a damaged one are good: the damaged one is then the first of the next response.
    """
    batches: list[Batch] = []
    reached = 0
    try:
        for batch in split(records):
            base_offset = batch.header.base_offset
            if base_offset < reached:
                raise CorruptBatch(f"it follows a batch that ends at {reached}", base_offset=base_offset, position=0)
            batches.append(batch)
            reached = batch.header.next_offset
    except WireError:
        if reached <= position:
            raise
    if batches and reached <= position:
        # Taken as progress, it would be fetched again and again.
        reason = f"it ends at {reached}, but offset {position} was requested"
        raise CorruptBatch(reason, base_offset=batches[-1].header.base_offset, position=0)
    return batches


def moved(cursor: Cursor) -> Piece:
    """Return an empty piece that tells the reader that the cursor moved, or is over, without any records."""
    memory = ResponseMemory(0)
    memory.pieces = 1
    position = cursor.position
    return Piece(cursor, (), position, cursor.stop, position, memory, cursor.topic_id, cursor.epoch)


def without_aborted(batches: Iterable[Batch], aborted: Iterable[Aborted]) -> list[Batch]:
    """Return the batches that belong to no aborted transaction.

    Each entry of `aborted` names a producer and the first offset of its transaction, which ends with the producer's
    next marker.
    """
    upcoming = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
    active: set[int] = set()
    kept: list[Batch] = []
    for batch in batches:
        header = batch.header
        while upcoming and upcoming[-1].first_offset <= header.last_offset:
            active.add(upcoming.pop().producer_id)
        if header.is_control:
            active.discard(header.producer_id)
        if not (header.is_transactional and not header.is_control and header.producer_id in active):
            kept.append(batch)
    return kept
