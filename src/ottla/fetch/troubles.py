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
from ottla.fetch.course import END_OF_LOG, Course, Failed, Piece, nothing_more
from ottla.fetch.ends import Ends, find_ends
from ottla.fetch.options import Manner, OnLost
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
            since = min(course.trouble_since, course.waiting_since if course.stop < END_OF_LOG else math.inf)
            if course.is_over or not course.open or course.paused or now - since < patience:
                continue
            what = f"reading {course.at} at offset {course.position}"
            if course.trouble is not None:
                causes: tuple[str, ...] = (str(course.trouble).partition("\n")[0],)
            else:
                causes = (f"the log has nothing there yet, and offset {course.stop} was to be reached",)
            self.fail(course, DeadlineExceeded(what, now - since, causes))

    def find_ends(self, course: Course, reason: str | None) -> None:
        """The offset asked for does not exist, or means another record: look at what there is."""
        course.inquiry += 1
        course.is_asked = True
        inquiry = course.inquiry

        def failed(error: OttlaError) -> None:
            if not course.open or course.inquiry != inquiry or course.is_over:
                return
            if isinstance(error, BrokerError) and not error.retriable:
                self.fail(course, error)
            else:  # it tried for long enough itself
                self.stumble(course, error, time.monotonic())
                self.find_ends(course, reason)

        def done(ends: Ends) -> None:
            if course.open and course.inquiry == inquiry and not course.is_over:
                course.is_asked = False
                self._misplaced(course, ends, reason)

        self._errands.run(
            ("ends", course.at, inquiry),  # an older one may still be under way, and its answer be void
            lambda: find_ends(self._cluster, course.at, isolation=self._manner.isolation),
            done=done,
            failed=failed,
        )

    def _misplaced(self, course: Course, ends: Ends, reason: str | None) -> None:
        position = course.position
        if reason is None and ends.first <= position <= ends.last:
            self.stumble(
                course,
                BrokerError(int(ErrorCode.offset_out_of_range), f"reading {course.at} at offset {position}"),
                time.monotonic(),
            )
            return
        if reason is not None:
            lost = (position, min(course.stop, max(position + 1, ends.last)))
        elif position < ends.first:
            reason = "they are older than what the topic keeps"
            lost = (position, min(course.stop, ends.first))
        else:
            reason = f"the log ends at {ends.last}: it was cut back, or the offset was never written"
            lost = (ends.last, position)
        self._report(course, lost, ends, reason)

    def parted(self, course: Course, where: Diverging) -> None:
        """The log has other records by now than those that were read."""
        reason = (
            f"the log was cut back to offset {where.end_offset} and written anew after an unclean leader election:"
            " these offsets have other records than were read"
        )
        start = max(0, min(where.end_offset, course.position))
        self._report(course, (start, course.position), Ends(start, start), reason)

    def _report(self, course: Course, lost: tuple[int, int], ends: Ends, reason: str) -> None:
        start, stop = lost
        resume = ends.last if self._manner.on_lost is OnLost.LATEST else ends.first
        if self._manner.on_lost is OnLost.ERROR:
            self.fail(course, OffsetsLost(*course.at, start=start, stop=stop, resume=ends.first, reason=reason))
            return
        self._events.emit(RangeLost(*course.at, start, stop, resume, reason))
        _log.warning("%s: offsets [%d, %d) are lost: %s; going on at %d", course.at, start, stop, reason, resume)
        course.move(resume)
        if course.is_over:
            self._tell(nothing_more(course))
