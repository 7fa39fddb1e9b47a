"""What to do when a partition cannot be read: try again, give up, or find out which offsets are lost.

Courses and what went wrong with them come in; they are put off, moved to where the log can be read, or failed, as the
reader was configured. What a reader must hear of that goes out. Where a log begins and ends is asked beside the loop.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from uuid import UUID

from ottla import events
from ottla.admin.identity import replaced
from ottla.errors import (
    BrokerError,
    CorruptBatch,
    DeadlineExceeded,
    ErrorCode,
    NoBrokerReachable,
    OffsetsLost,
    OttlaError,
    WireError,
)
from ottla.events import Events
from ottla.fetch import losses
from ottla.fetch.cursor import Cursor, Failed, Piece, moved
from ottla.fetch.log_extent import EpochEnd, LogExtent, find_ends, find_epoch_end
from ottla.fetch.losses import Loss
from ottla.fetch.options import FetchPolicy, OnLost
from ottla.model import Isolation
from ottla.net import Cluster
from ottla.net.attempts import worth_repeating
from ottla.net.background import BackgroundTasks
from ottla.net.deadline import Deadline
from ottla.wire.fetch import Diverging

if TYPE_CHECKING:
    from ottla.admin.transactions import OpenTransaction

_log = logging.getLogger(__name__)
T = TypeVar("T")
News = Piece | Failed
"""What a reader must hear of."""
_CREATED_AGAIN = "the topic was deleted and created again under the same name"
_CONTRADICTIONS = 10
"""So often in a row a broker may have no record at an offset that lies within what it says its log has."""


class _Log(NamedTuple):
    """What a broker says about a log from which it could not read. `epoch_end` is None where that is not asked for."""

    ends: LogExtent
    epoch_end: EpochEnd | None = None


class _Successor(NamedTuple):
    """The topic that has the name now."""

    topic_id: UUID | None
    ends: LogExtent


class _Inquiry(NamedTuple):
    """Something that is being found out about a cursor, and what its answer means."""

    cursor: Cursor
    number: int
    done: Callable[[Any], News | None]
    failed: Callable[[OttlaError], News | None]

    @property
    def is_awaited(self) -> bool:
        """Whether the answer still counts."""
        cursor = self.cursor
        return cursor.open and cursor.inquiry == self.number and not cursor.is_over


class Recovery:
    """Used by the loop."""

    def __init__(
        self,
        cluster: Cluster,
        policy: FetchPolicy,
        *,
        background: BackgroundTasks,
        events: Events,
        chance: random.Random,
    ) -> None:
        self._cluster = cluster
        self._policy = policy
        self._background = background
        self._events = events
        self._chance = chance
        self._answered: deque[tuple[_Inquiry, Any, OttlaError | None]] = deque()

    def meet(self, cursor: Cursor, error: BrokerError, now: float) -> Failed | None:
        """A broker refused: tries again, or not."""
        if not worth_repeating(error):
            return self.fail(cursor, error)
        self.stumble(cursor, error, now)
        return None

    def stumble(self, cursor: Cursor, error: OttlaError, now: float) -> None:
        """Something went wrong that may go by."""
        wait = self._cluster.retry.wait(cursor.failures + 1, self._chance.random())
        cursor.stumble(error, now, resume_at=now + wait)
        self._events.emit(events.FetchRetried(*cursor.at, cursor.position, error))

    def fail(self, cursor: Cursor, error: OttlaError) -> Failed:
        """The partition cannot be read on."""
        cursor.is_over = True
        if isinstance(error, CorruptBatch):
            error.topic, error.partition = cursor.at
        elif isinstance(error, WireError):
            wrapped = type(error)(f"{cursor.at} at offset {cursor.position}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        return Failed(cursor, error)

    def give_up(self, cursors: Iterable[Cursor], now: float) -> list[Failed]:
        """Those that are stuck for too long fail, some of them after a last look at their log."""
        patience = self._policy.patience
        if patience == math.inf:
            return []
        failed: list[Failed] = []
        limit = now - patience
        # There may be thousands, and hardly ever one that is stuck.
        for cursor in [one for one in cursors if one.trouble_since <= limit or one.waiting_since <= limit]:
            since = min(cursor.trouble_since, cursor.waiting_since if cursor.is_bounded else math.inf)
            if cursor.is_over or not cursor.open or cursor.paused or now - since < patience:
                continue
            if cursor.trouble is not None:
                failed.append(self._run_out(cursor, now - since, *_causes(cursor.trouble)))
            elif (overdue := self._overdue(cursor, now - since)) is not None:
                failed.append(overdue)
        return failed

    def found(self) -> Iterator[News]:
        """What came of the inquiries since the last time, as far as a reader must hear of it."""
        while self._answered:
            inquiry, answer, error = self._answered.popleft()
            if not inquiry.is_awaited:
                continue
            if error is None:
                inquiry.cursor.is_asked = False
            news = inquiry.done(answer) if error is None else inquiry.failed(error)
            if news is not None:
                yield news

    def forget(self) -> None:
        """Nothing comes of what was being found out."""
        self._answered.clear()

    def find_ends(self, cursor: Cursor) -> None:
        """The broker has no record at the offset that was asked for: look at what it has."""
        at, position, epoch = cursor.at, cursor.position, cursor.epoch

        def look() -> _Log:
            ends = find_ends(self._cluster, at, isolation=self._policy.isolation)
            inside = ends.first <= position <= ends.last
            return _Log(ends, find_epoch_end(self._cluster, at, epoch) if inside and epoch >= 0 else None)

        self._inquire(
            cursor,
            look,
            done=lambda log: self._misplaced(cursor, log),
            failed=lambda error: self._look_again(cursor, error, self.find_ends),
        )

    def suspect(self, cursor: Cursor) -> None:
        """Metadata has another id for its topic: it was created again, or the broker that says so is behind."""
        at = cursor.at
        if self._background.busy(("look", at, cursor.inquiry)):
            return
        old = frozenset([(at.topic, cursor.topic_id)] if cursor.topic_id is not None else [])

        def look() -> _Successor | None:
            if not replaced(self._cluster, old, deadline=Deadline.after(self._cluster.timeouts.request)):
                return None
            topic = self._cluster.topic(at.topic)
            if topic.partition(at.partition) is None:
                return _Successor(topic.id, LogExtent(0, 0))  # it may get one later
            return _Successor(topic.id, find_ends(self._cluster, at, isolation=self._policy.isolation))

        def done(found: _Successor | None) -> News | None:
            if found is None:
                error = BrokerError(int(ErrorCode.unknown_topic_id), f"reading {at}")
                self.stumble(cursor, error, time.monotonic())
                return None
            loss = losses.replaced(cursor, found.ends, self._policy.on_lost, _CREATED_AGAIN)
            cursor.topic_id = found.topic_id
            return self._report(cursor, loss)

        self._inquire(cursor, look, done=done, failed=lambda error: self._look_again(cursor, error, self.suspect))

    def parted(self, cursor: Cursor, where: Diverging) -> News | None:
        """The log has other records by now than those that were read."""
        loss = losses.parted(cursor, where.end_offset, self._policy.on_lost)
        if loss is not None:
            return self._report(cursor, loss)
        cursor.move(cursor.position, epoch=where.epoch)
        return None

    def _run_out(self, cursor: Cursor, seconds: float, *causes: str) -> Failed:
        what = f"reading {cursor.at} at offset {cursor.position}"
        return self.fail(cursor, DeadlineExceeded(what, seconds, causes))

    def _overdue(self, cursor: Cursor, seconds: float) -> Failed | None:
        """The log had nothing for so long: it ends there, or has something that cannot be read yet."""
        plain = f"the log has nothing there yet, and offset {cursor.stop} was to be reached"
        is_strict = self._policy.on_lost is OnLost.ERROR
        committed_only = self._policy.isolation is Isolation.READ_COMMITTED
        if is_strict and not committed_only:
            return self._run_out(cursor, seconds, plain)

        def look() -> tuple[LogExtent | None, OpenTransaction | None]:
            # Records of a transaction that is still open are there.
            uncommitted = Isolation.READ_UNCOMMITTED
            ends = None if is_strict else find_ends(self._cluster, cursor.at, isolation=uncommitted)
            return ends, self._open_transaction(cursor) if committed_only else None

        def done(found: tuple[LogExtent | None, OpenTransaction | None]) -> News | None:
            ends, transaction = found
            loss = None if ends is None else losses.overdue(cursor, ends)
            if loss is not None:
                return self._report(cursor, loss)
            return self._run_out(cursor, seconds, plain if transaction is None else _held_up_by(transaction))

        def failed(error: OttlaError) -> News | None:
            return self._run_out(cursor, seconds, plain, *map(str.strip, str(error).splitlines()))

        cursor.waiting_since = math.inf  # the answer ends it, whatever it is
        self._inquire(cursor, look, done=done, failed=failed)
        return None

    def _open_transaction(self, cursor: Cursor) -> OpenTransaction | None:
        """The one that holds it up, as far as a broker tells."""
        from ottla.admin.transactions import oldest_open

        deadline = Deadline.after(self._cluster.timeouts.request)
        try:
            found = oldest_open(self._cluster, cursor.at, deadline=deadline)
        except OttlaError as error:
            _log.debug("whether a transaction holds up %s is not known: %s", cursor.at, error)
            return None
        return found if found is not None and found.start <= cursor.position else None

    def _look_again(self, cursor: Cursor, error: OttlaError, look: Callable[[Cursor], None]) -> Failed | None:
        if isinstance(error, BrokerError) and not worth_repeating(error):
            return self.fail(cursor, error)
        # It tried for long enough itself. That ends with the reader's patience.
        self.stumble(cursor, error, time.monotonic())
        look(cursor)
        return None

    def _inquire(
        self,
        cursor: Cursor,
        look: Callable[[], T],
        *,
        done: Callable[[T], News | None],
        failed: Callable[[OttlaError], News | None],
    ) -> None:
        """Asks beside the loop; nothing else is asked for the cursor meanwhile."""
        cursor.inquiry += 1
        cursor.is_asked = True
        inquiry = _Inquiry(cursor, cursor.inquiry, done, failed)
        self._background.run(
            ("look", cursor.at, inquiry.number),  # an older one may still be under way, and its answer be void
            look,
            done=lambda answer: self._answered.append((inquiry, answer, None)),
            failed=lambda error: self._answered.append((inquiry, None, error)),
        )

    def _misplaced(self, cursor: Cursor, log: _Log) -> News | None:
        on_lost, epoch_end = self._policy.on_lost, log.epoch_end
        loss = losses.outside(cursor, log.ends, on_lost)
        if loss is None and epoch_end is not None:
            if epoch_end.epoch < 0:
                loss = losses.foreign(cursor, log.ends, on_lost)
            else:
                loss = losses.parted(cursor, epoch_end.offset, on_lost)
        if loss is not None:
            return self._report(cursor, loss)
        error = BrokerError(int(ErrorCode.offset_out_of_range), f"reading {cursor.at} at offset {cursor.position}")
        cursor.contradictions += 1
        if cursor.contradictions >= _CONTRADICTIONS:
            return self.fail(cursor, error)
        self.stumble(cursor, error, time.monotonic())
        return None

    def _report(self, cursor: Cursor, loss: Loss) -> News:
        start, stop, resume, reason, is_replaced = loss
        if self._policy.on_lost is OnLost.ERROR:
            error = OffsetsLost(*cursor.at, start=start, stop=stop, resume=resume, reason=reason, replaced=is_replaced)
            return self.fail(cursor, error)
        self._events.emit(events.RangeLost(*cursor.at, start, stop, resume, reason))
        _log.warning("%s: offsets [%d, %d) are lost: %s; going on at %d", cursor.at, start, stop, reason, resume)
        cursor.move(resume)
        return moved(cursor)


def _causes(trouble: OttlaError) -> tuple[str, ...]:
    """One for each address where nobody is there, else what the trouble says first."""
    if isinstance(trouble, NoBrokerReachable):
        return tuple(map(str, trouble.attempts))
    return (str(trouble).partition("\n")[0],)


def _held_up_by(transaction: OpenTransaction) -> str:
    return (
        f"{transaction}, holds it up from offset {transaction.start} on: committed data can be read when it ends,"
        " at the latest after its timeout"
    )
