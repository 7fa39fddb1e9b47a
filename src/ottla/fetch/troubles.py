"""What to do when a partition cannot be read: try again, give up, or find out which offsets are lost.

Courses and what went wrong with them come in; they are put off, moved to where the log can be read, or told as failed,
as the reader was configured. Where a log begins and ends is asked beside the loop.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeVar
from uuid import UUID

from ottla.admin.identity import replaced
from ottla.admin.transactions import OpenTransaction, oldest_open
from ottla.errors import (
    BrokerError,
    CorruptBatch,
    DeadlineExceeded,
    ErrorCode,
    OffsetsLost,
    OttlaError,
    WireError,
)
from ottla.events import Events, FetchRetried, RangeLost
from ottla.fetch import losses
from ottla.fetch.course import Course, Failed, Piece, moved
from ottla.fetch.ends import Ends, EpochEnd, find_ends, find_epoch_end
from ottla.fetch.losses import Loss
from ottla.fetch.options import Manner, OnLost
from ottla.model import Isolation
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.net.errands import Errands
from ottla.wire.fetch import Diverging

_log = logging.getLogger(__name__)
T = TypeVar("T")
_CREATED_AGAIN = "the topic was deleted and created again under the same name"
_CONTRADICTIONS = 10
"""So often in a row a broker may have no record at an offset that lies within what it says its log has."""


class _Log(NamedTuple):
    """What a broker says about a log from which it could not read. `epoch_end` is None where that is not asked for."""

    ends: Ends
    epoch_end: EpochEnd | None = None


class _Successor(NamedTuple):
    """The topic that has the name now."""

    topic_id: UUID | None
    ends: Ends


class Troubles:
    """Used by the thread of the loop; `tell` hands what a reader must hear of to it."""

    def __init__(
        self,
        cluster: Cluster,
        manner: Manner,
        *,
        errands: Errands,
        events: Events,
        chance: random.Random,
        tell: Callable[[Piece | Failed], None],
    ) -> None:
        self._cluster = cluster
        self._manner = manner
        self._errands = errands
        self._events = events
        self._chance = chance
        self._tell = tell

    def meet(self, course: Course, error: BrokerError, now: float) -> None:
        """A broker refused: tries again, or not."""
        if error.retriable:
            self.stumble(course, error, now)
        else:
            self.fail(course, error)

    def stumble(self, course: Course, error: OttlaError, now: float) -> None:
        """Something went wrong that may go by."""
        wait = self._cluster.retry.wait(course.failures + 1, self._chance.random())
        course.stumble(error, now, resume_at=now + wait)
        self._events.emit(FetchRetried(*course.at, course.position, error))

    def fail(self, course: Course, error: OttlaError) -> None:
        """The partition cannot be read on."""
        course.is_over = True
        if isinstance(error, CorruptBatch):
            error.topic, error.partition = course.at
        elif isinstance(error, WireError):
            wrapped = type(error)(f"{course.at} at offset {course.position}: {error}")
            wrapped.__cause__ = error
            error = wrapped
        self._tell(Failed(course, error))

    def give_up(self, courses: Iterable[Course], now: float) -> None:
        """Whoever is stuck for too long fails."""
        patience = self._manner.patience
        if patience == math.inf:
            return
        for course in courses:
            since = min(course.trouble_since, course.waiting_since if course.is_bounded else math.inf)
            if course.is_over or not course.open or course.paused or now - since < patience:
                continue
            if course.trouble is not None:
                self._run_out(course, now - since, str(course.trouble).partition("\n")[0])
            else:
                self._overdue(course, now - since)

    def _run_out(self, course: Course, seconds: float, *causes: str) -> None:
        what = f"reading {course.at} at offset {course.position}"
        self.fail(course, DeadlineExceeded(what, seconds, causes))

    def _overdue(self, course: Course, seconds: float) -> None:
        """The log had nothing for so long: it ends there, or has something that cannot be read yet."""
        plain = f"the log has nothing there yet, and offset {course.stop} was to be reached"
        is_strict = self._manner.on_lost is OnLost.ERROR
        committed_only = self._manner.isolation is Isolation.READ_COMMITTED
        if is_strict and not committed_only:
            self._run_out(course, seconds, plain)
            return

        def look() -> tuple[Ends | None, OpenTransaction | None]:
            # Records of a transaction that is still open are there.
            uncommitted = Isolation.READ_UNCOMMITTED
            ends = None if is_strict else find_ends(self._cluster, course.at, isolation=uncommitted)
            return ends, self._open_transaction(course) if committed_only else None

        def done(found: tuple[Ends | None, OpenTransaction | None]) -> None:
            ends, transaction = found
            loss = None if ends is None else losses.overdue(course, ends)
            if loss is None:
                self._run_out(course, seconds, plain if transaction is None else _held_up_by(transaction))
            else:
                self._report(course, loss)

        def failed(error: OttlaError) -> None:
            self._run_out(course, seconds, plain, *map(str.strip, str(error).splitlines()))

        course.waiting_since = math.inf  # the answer ends it, whatever it is
        self._inquire(course, look, done=done, failed=failed)

    def _open_transaction(self, course: Course) -> OpenTransaction | None:
        """The one that holds it up, as far as a broker tells."""
        deadline = Deadline.after(self._cluster.timeouts.request)
        try:
            found = oldest_open(self._cluster, course.at, deadline=deadline)
        except OttlaError as error:
            _log.debug("whether a transaction holds up %s is not known: %s", course.at, error)
            return None
        return found if found is not None and found.start <= course.position else None

    def find_ends(self, course: Course) -> None:
        """The broker has no record at the offset that was asked for: look at what it has."""
        at, position, epoch = course.at, course.position, course.epoch

        def look() -> _Log:
            ends = find_ends(self._cluster, at, isolation=self._manner.isolation)
            inside = ends.first <= position <= ends.last
            return _Log(ends, find_epoch_end(self._cluster, at, epoch) if inside and epoch >= 0 else None)

        self._inquire(
            course,
            look,
            done=lambda log: self._misplaced(course, log),
            failed=lambda error: self._look_again(course, error, self.find_ends),
        )

    def suspect(self, course: Course) -> None:
        """Metadata has another id for its topic: it was created again, or the broker that says so is behind."""
        at = course.at
        if self._errands.busy(("look", at, course.inquiry)):
            return
        old = frozenset([(at.topic, course.topic_id)] if course.topic_id is not None else [])

        def look() -> _Successor | None:
            if not replaced(self._cluster, old, deadline=Deadline.after(self._cluster.timeouts.request)):
                return None
            topic = self._cluster.topic(at.topic)
            if topic.partition(at.partition) is None:
                return _Successor(topic.id, Ends(0, 0))  # it may get one later
            return _Successor(topic.id, find_ends(self._cluster, at, isolation=self._manner.isolation))

        def done(found: _Successor | None) -> None:
            if found is None:
                error = BrokerError(int(ErrorCode.unknown_topic_id), f"reading {at}")
                self.stumble(course, error, time.monotonic())
                return
            course.topic_id = found.topic_id
            self._report(course, losses.replaced(course, found.ends, self._manner.on_lost, _CREATED_AGAIN))

        self._inquire(course, look, done=done, failed=lambda error: self._look_again(course, error, self.suspect))

    def _look_again(self, course: Course, error: OttlaError, look: Callable[[Course], None]) -> None:
        if isinstance(error, BrokerError) and not error.retriable:
            self.fail(course, error)
        else:  # it tried for long enough itself
            self.stumble(course, error, time.monotonic())
            look(course)

    def _inquire(
        self, course: Course, look: Callable[[], T], *, done: Callable[[T], None], failed: Callable[[OttlaError], None]
    ) -> None:
        """Asks beside the loop; nothing else is asked for the course meanwhile."""
        course.inquiry += 1
        course.is_asked = True
        inquiry = course.inquiry

        def is_awaited() -> bool:
            return course.open and course.inquiry == inquiry and not course.is_over

        def answered(found: T) -> None:
            if is_awaited():
                course.is_asked = False
                done(found)

        self._errands.run(
            ("look", course.at, inquiry),  # an older one may still be under way, and its answer be void
            look,
            done=answered,
            failed=lambda error: failed(error) if is_awaited() else None,
        )

    def _misplaced(self, course: Course, log: _Log) -> None:
        on_lost, epoch_end = self._manner.on_lost, log.epoch_end
        loss = losses.outside(course, log.ends, on_lost)
        if loss is None and epoch_end is not None:
            if epoch_end.epoch < 0:
                loss = losses.foreign(course, log.ends, on_lost)
            else:
                loss = losses.parted(course, epoch_end.offset, on_lost)
        if loss is not None:
            self._report(course, loss)
            return
        error = BrokerError(int(ErrorCode.offset_out_of_range), f"reading {course.at} at offset {course.position}")
        course.contradictions += 1
        if course.contradictions >= _CONTRADICTIONS:
            self.fail(course, error)
        else:
            self.stumble(course, error, time.monotonic())

    def parted(self, course: Course, where: Diverging) -> None:
        """The log has other records by now than those that were read."""
        loss = losses.parted(course, where.end_offset, self._manner.on_lost)
        if loss is None:
            course.move(course.position, epoch=where.epoch)
        else:
            self._report(course, loss)

    def _report(self, course: Course, loss: Loss) -> None:
        start, stop, resume, reason, is_replaced = loss
        if self._manner.on_lost is OnLost.ERROR:
            error = OffsetsLost(*course.at, start=start, stop=stop, resume=resume, reason=reason, replaced=is_replaced)
            self.fail(course, error)
            return
        self._events.emit(RangeLost(*course.at, start, stop, resume, reason))
        _log.warning("%s: offsets [%d, %d) are lost: %s; going on at %d", course.at, start, stop, reason, resume)
        course.move(resume)
        self._tell(moved(course))


def _held_up_by(transaction: OpenTransaction) -> str:
    return (
        f"{transaction}, holds it up from offset {transaction.start} on: committed data can be read when it ends,"
        " at the latest after its timeout"
    )
