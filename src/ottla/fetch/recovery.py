"""Handles partitions that cannot be read: retries them, gives up, or finds out which offsets are lost.

Cursors and their errors come in. Each is backed off, moved to where the log can be read, or failed, as the reader's
policy says; items for the reader go out. Questions to brokers (where does the log start and end?) run in background
tasks, never on the loop.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
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
from ottla.fetch.cursor import Cursor, Failed, Item, moved
from ottla.fetch.log_extent import EpochEnd, LogExtent, find_epoch_end, find_extent
from ottla.fetch.losses import Loss
from ottla.fetch.options import FetchPolicy, OnLost
from ottla.model import Isolation, TopicPartition
from ottla.net import Cluster
from ottla.net.attempts import worth_repeating
from ottla.net.background import BackgroundTasks
from ottla.net.deadline import Deadline
from ottla.wire.fetch import Diverging

if TYPE_CHECKING:
    from ottla.admin.transactions import OpenTransaction

_log = logging.getLogger(__name__)
T = TypeVar("T")
_CREATED_AGAIN = "the topic was deleted and created again under the same name"
_CONTRADICTIONS = 10
"""How often in a row a broker may refuse an offset that lies within the extent of its log."""


class _LogState(NamedTuple):
    """A broker's description of a log that it could not read from. `epoch_end` is None if it was not requested."""

    extent: LogExtent
    epoch_end: EpochEnd | None = None


class _Successor(NamedTuple):
    """The topic that has the name now."""

    topic_id: UUID | None
    extent: LogExtent


class _Inquiry(NamedTuple):
    """A question about a cursor that runs in the background, and what to do with its answer."""

    cursor: Cursor
    generation: int
    done: Callable[[Any], Item | None]
    failed: Callable[[OttlaError], Item | None]

    @property
    def is_awaited(self) -> bool:
        """Whether the answer still counts: the cursor has not moved or ended since."""
        cursor = self.cursor
        return cursor.open and cursor.generation == self.generation and not cursor.is_over


class Recovery:
    """Handles the errors of all cursors of one loop. Only for the loop's thread."""

    def __init__(
        self,
        cluster: Cluster,
        policy: FetchPolicy,
        *,
        background: BackgroundTasks,
        events: Events,
        chance: random.Random,
        report_loss: Callable[[events.RangeLost], None] | None = None,
    ) -> None:
        """`report_loss` gets the losses, instead of the log and `events`."""
        self._cluster = cluster
        self._policy = policy
        self._background = background
        self._events = events
        self._chance = chance
        self._report_loss = report_loss or partial(emit_loss, events)
        self._answered: deque[tuple[_Inquiry, Any, OttlaError | None]] = deque()

    def handle(self, cursor: Cursor, error: BrokerError, now: float) -> Failed | None:
        """Retry after an error of a broker, or fail the cursor if a retry is pointless."""
        if not worth_repeating(error):
            return self.fail(cursor, error)
        self.back_off(cursor, error, now)
        return None

    def back_off(self, cursor: Cursor, error: OttlaError, now: float) -> None:
        """Retry a cursor later, after a transient error."""
        wait = self._cluster.retry.wait(cursor.failures + 1, self._chance.random())
        cursor.back_off(error, now, resume_at=now + wait)
        self._events.emit(events.FetchRetried(*cursor.tp, cursor.position, error))

    def fail(self, cursor: Cursor, error: OttlaError) -> Failed:
        """End a cursor with an error, which gets the partition and offset if it lacks them."""
        cursor.is_over = True
        if isinstance(error, CorruptBatch):
            error.topic, error.partition = cursor.tp
        elif isinstance(error, WireError):
            wrapped = type(error)(f"{cursor.tp} at offset {cursor.position}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        return Failed(cursor, error)

    def give_up(self, cursors: Iterable[Cursor], now: float) -> list[Failed]:
        """Fail the cursors that were stuck for too long, some of them after a last look at their log."""
        patience = self._policy.patience
        if patience == math.inf:
            return []
        failed: list[Failed] = []
        limit = now - patience
        # A comprehension first: there may be thousands of cursors, and hardly ever one that is stuck.
        for cursor in [cursor for cursor in cursors if cursor.failing_since <= limit or cursor.waiting_since <= limit]:
            since = min(cursor.failing_since, cursor.waiting_since if cursor.is_bounded else math.inf)
            if cursor.is_over or not cursor.open or cursor.paused or now - since < patience:
                continue
            if cursor.last_error is not None:
                failed.append(self._time_out(cursor, now - since, *_causes(cursor.last_error)))
            elif (overdue := self._overdue(cursor, now - since)) is not None:
                failed.append(overdue)
        return failed

    def results(self) -> Iterator[Item]:
        """Handle the answers to inquiries since the last call, and yield what the reader must get."""
        while self._answered:
            inquiry, answer, error = self._answered.popleft()
            if not inquiry.is_awaited:
                continue
            if error is None:
                inquiry.cursor.is_busy = False
            item = inquiry.done(answer) if error is None else inquiry.failed(error)
            if item is not None:
                yield item

    def forget(self) -> None:
        """Drop the answers that were not handled."""
        self._answered.clear()

    def find_extent(self, cursor: Cursor) -> None:
        """Look up what the log has, after the broker refused the offset as out of range."""
        tp, position, epoch = cursor.tp, cursor.position, cursor.epoch

        def look() -> _LogState:
            extent = find_extent(self._cluster, tp, isolation=self._policy.isolation)
            is_inside = extent.first <= position <= extent.last
            return _LogState(extent, find_epoch_end(self._cluster, tp, epoch) if is_inside and epoch >= 0 else None)

        self._inquire(
            cursor,
            look,
            done=lambda log: self._out_of_range(cursor, log),
            failed=lambda error: self._look_again(cursor, error, self.find_extent),
        )

    def check_replaced(self, cursor: Cursor) -> None:
        """Find out why metadata has another topic id: the topic was created again, or that broker lags behind."""
        tp = cursor.tp
        if self._background.busy(("look", tp, cursor.generation)):
            return
        old_ids = frozenset([(tp.topic, cursor.topic_id)] if cursor.topic_id is not None else [])

        def look() -> _Successor | None:
            if not replaced(self._cluster, old_ids, deadline=Deadline.after(self._cluster.timeouts.request)):
                return None
            topic = self._cluster.topic(tp.topic)
            if topic.partition(tp.partition) is None:
                return _Successor(topic.id, LogExtent(0, 0))  # the partition may be added later
            return _Successor(topic.id, find_extent(self._cluster, tp, isolation=self._policy.isolation))

        def done(successor: _Successor | None) -> Item | None:
            if successor is None:
                error = BrokerError(int(ErrorCode.unknown_topic_id), f"reading {tp}")
                self.back_off(cursor, error, time.monotonic())
                return None
            loss = losses.replaced(cursor, successor.extent, self._policy.on_lost, _CREATED_AGAIN)
            cursor.topic_id = successor.topic_id
            return self._report(cursor, loss)

        self._inquire(
            cursor, look, done=done, failed=lambda error: self._look_again(cursor, error, self.check_replaced)
        )

    def diverged(self, cursor: Cursor, where: Diverging) -> Item | None:
        """Handle a log that now has other records than those that were read."""
        loss = losses.diverged(cursor, where.end_offset, self._policy.on_lost)
        if loss is not None:
            return self._report(cursor, loss)
        cursor.move(cursor.position, epoch=where.epoch)
        return None

    def _time_out(self, cursor: Cursor, seconds: float, *causes: str) -> Failed:
        what = f"reading {cursor.tp} at offset {cursor.position}"
        return self.fail(cursor, DeadlineExceeded(what, seconds, causes))

    def _overdue(self, cursor: Cursor, seconds: float) -> Failed | None:
        """Handle a range without new records for too long: the log ends early, or has records that cannot be read
        yet."""
        plain = f"the log has no records there yet, but offset {cursor.stop} was to be reached"
        is_strict = self._policy.on_lost is OnLost.ERROR
        committed_only = self._policy.isolation is Isolation.READ_COMMITTED
        if is_strict and not committed_only:
            return self._time_out(cursor, seconds, plain)

        def look() -> tuple[LogExtent | None, OpenTransaction | None]:
            # Uncommitted, because records of an open transaction are in the log.
            uncommitted = Isolation.READ_UNCOMMITTED
            extent = None if is_strict else find_extent(self._cluster, cursor.tp, isolation=uncommitted)
            return extent, self._open_transaction(cursor) if committed_only else None

        def done(answer: tuple[LogExtent | None, OpenTransaction | None]) -> Item | None:
            extent, transaction = answer
            loss = None if extent is None else losses.overdue(cursor, extent)
            if loss is not None:
                return self._report(cursor, loss)
            return self._time_out(cursor, seconds, plain if transaction is None else _held_up_by(transaction))

        def failed(error: OttlaError) -> Item | None:
            return self._time_out(cursor, seconds, plain, *map(str.strip, str(error).splitlines()))

        cursor.waiting_since = math.inf  # the inquiry ends the cursor or moves it, whatever its answer
        self._inquire(cursor, look, done=done, failed=failed)
        return None

    def _open_transaction(self, cursor: Cursor) -> OpenTransaction | None:
        """Return the transaction that holds the cursor up, if a broker names one."""
        from ottla.admin.transactions import oldest_open

        deadline = Deadline.after(self._cluster.timeouts.request)
        try:
            transaction = oldest_open(self._cluster, cursor.tp, deadline=deadline)
        except OttlaError as error:
            _log.debug("cannot find out whether a transaction holds up %s: %s", cursor.tp, error)
            return None
        return transaction if transaction is not None and transaction.start <= cursor.position else None

    def _look_again(self, cursor: Cursor, error: OttlaError, look: Callable[[Cursor], None]) -> Failed | None:
        if isinstance(error, BrokerError) and not worth_repeating(error):
            return self.fail(cursor, error)
        # The lookup itself retried until its deadline. `give_up` ends this when the policy's patience is over.
        self.back_off(cursor, error, time.monotonic())
        look(cursor)
        return None

    def _inquire(
        self,
        cursor: Cursor,
        look: Callable[[], T],
        *,
        done: Callable[[T], Item | None],
        failed: Callable[[OttlaError], Item | None],
    ) -> None:
        """Run `look` in the background. Nothing is fetched for the cursor meanwhile."""
        cursor.generation += 1
        cursor.is_busy = True
        inquiry = _Inquiry(cursor, cursor.generation, done, failed)
        self._background.run(
            ("look", cursor.tp, inquiry.generation),  # an older inquiry may still run; its answer is void
            look,
            done=lambda answer: self._answered.append((inquiry, answer, None)),
            failed=lambda error: self._answered.append((inquiry, None, error)),
        )

    def _out_of_range(self, cursor: Cursor, log: _LogState) -> Item | None:
        on_lost, epoch_end = self._policy.on_lost, log.epoch_end
        loss = losses.outside(cursor, log.extent, on_lost)
        if loss is None and epoch_end is not None:
            if epoch_end.epoch < 0:
                loss = losses.foreign(cursor, log.extent, on_lost)
            else:
                loss = losses.diverged(cursor, epoch_end.offset, on_lost)
        if loss is not None:
            return self._report(cursor, loss)
        error = BrokerError(int(ErrorCode.offset_out_of_range), f"reading {cursor.tp} at offset {cursor.position}")
        cursor.contradictions += 1
        if cursor.contradictions >= _CONTRADICTIONS:
            return self.fail(cursor, error)
        self.back_off(cursor, error, time.monotonic())
        return None

    def _report(self, cursor: Cursor, loss: Loss) -> Item:
        start, stop, resume, reason, is_replaced = loss
        if self._policy.on_lost is OnLost.ERROR:
            error = OffsetsLost(*cursor.tp, start=start, stop=stop, resume=resume, reason=reason, replaced=is_replaced)
            return self.fail(cursor, error)
        self._report_loss(events.RangeLost(*cursor.tp, start, stop, resume, reason))
        cursor.move(resume)
        return moved(cursor)


def emit_loss(hub: Events, loss: events.RangeLost) -> None:
    """Log a loss and emit its event."""
    hub.emit(loss)
    tp = TopicPartition(loss.topic, loss.partition)
    _log.warning(
        "%s: offsets [%d, %d) are lost: %s; continuing at %d", tp, loss.start, loss.stop, loss.reason, loss.resume
    )


def _causes(error: OttlaError) -> tuple[str, ...]:
    """Return a cause for each address that does not answer, else the first line of the error."""
    if isinstance(error, NoBrokerReachable):
        return tuple(map(str, error.attempts))
    return (str(error).partition("\n")[0],)


def _held_up_by(transaction: OpenTransaction) -> str:
    return (
        f"{transaction}, holds it up from offset {transaction.start} on: committed data can be read when it ends,"
        " at the latest after its timeout"
    )
