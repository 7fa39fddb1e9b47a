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
from ottla.fetch.course import Course, Failed, Piece, nothing_more
from ottla.fetch.ends import Ends, find_ends
from ottla.fetch.losses import Loss
from ottla.fetch.options import Manner, OnLost
from ottla.model import Isolation
from ottla.net import Cluster
from ottla.net.errands import Errands
from ottla.wire.fetch import Diverging

_log = logging.getLogger(__name__)


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
        cause = f"the log has nothing there yet, and offset {course.stop} was to be reached"
        if self._manner.on_lost is OnLost.ERROR:
            self._run_out(course, seconds, cause)
            return

        def done(ends: Ends) -> None:
            loss = losses.overdue(course, ends)
            if loss is None:
                self._run_out(course, seconds, cause)
            else:
                self._report(course, loss)

        def failed(error: OttlaError) -> None:
            self._run_out(course, seconds, cause, *map(str.strip, str(error).splitlines()))

        course.waiting_since = math.inf  # the answer ends it, whatever it is
        # Records of a transaction that is still open are there.
        self._ask_ends(course, isolation=Isolation.READ_UNCOMMITTED, done=done, failed=failed)

    def find_ends(self, course: Course, reason: str | None) -> None:
        """The offset asked for does not exist, or means another record: look at what there is."""

        def failed(error: OttlaError) -> None:
            if isinstance(error, BrokerError) and not error.retriable:
                self.fail(course, error)
            else:  # it tried for long enough itself
                self.stumble(course, error, time.monotonic())
                self.find_ends(course, reason)

        def done(ends: Ends) -> None:
            course.is_asked = False
            self._misplaced(course, ends, reason)

        self._ask_ends(course, isolation=self._manner.isolation, done=done, failed=failed)

    def _ask_ends(
        self,
        course: Course,
        *,
        isolation: Isolation,
        done: Callable[[Ends], None],
        failed: Callable[[OttlaError], None],
    ) -> None:
        """Nothing else is asked for the course meanwhile."""
        course.inquiry += 1
        course.is_asked = True
        inquiry = course.inquiry

        def is_awaited() -> bool:
            return course.open and course.inquiry == inquiry and not course.is_over

        self._errands.run(
            ("ends", course.at, inquiry),  # an older one may still be under way, and its answer be void
            lambda: find_ends(self._cluster, course.at, isolation=isolation),
            done=lambda ends: done(ends) if is_awaited() else None,
            failed=lambda error: failed(error) if is_awaited() else None,
        )

    def _misplaced(self, course: Course, ends: Ends, reason: str | None) -> None:
        on_lost = self._manner.on_lost
        if reason is not None:
            self._report(course, losses.replaced(course, ends, on_lost, reason))
            return
        loss = losses.outside(course, ends, on_lost)
        if loss is not None:
            self._report(course, loss)
            return
        error = BrokerError(int(ErrorCode.offset_out_of_range), f"reading {course.at} at offset {course.position}")
        self.stumble(course, error, time.monotonic())

    def parted(self, course: Course, where: Diverging) -> None:
        """The log has other records by now than those that were read."""
        self._report(course, losses.parted(course, where.end_offset, self._manner.on_lost))

    def _report(self, course: Course, loss: Loss) -> None:
        start, stop, resume, reason = loss
        if self._manner.on_lost is OnLost.ERROR:
            self.fail(course, OffsetsLost(*course.at, start=start, stop=stop, resume=resume, reason=reason))
            return
        self._events.emit(RangeLost(*course.at, start, stop, resume, reason))
        _log.warning("%s: offsets [%d, %d) are lost: %s; going on at %d", course.at, start, stop, reason, resume)
        course.move(resume)
        if course.is_over:
            self._tell(nothing_more(course))
