"""Commits of one consumer: waiting ones, and ones in the background that call back, in the order in which they came.

Offsets come in; they are in the group's log afterwards, or there is an error that says whether the group moved on. A
member whose generation changes while a commit is under way tries again with the new one, for what it has kept.

A broker looks at the generation of a commit, not at whose the partitions are. So that no commit can overwrite that of
the next owner, every attempt first reads the generation and then leaves out what has been let go of or lost: whatever
is taken away after that look is given to somebody else in a later generation, and the broker refuses the older one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping

from ottla.admin.committed import GROUP_MOVED_ON, Committed, commit
from ottla.admin.identity import TopicCreatedAgain
from ottla.errors import BrokerError, CommitFailed, ErrorCode, OttlaError
from ottla.model import GroupMember, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline

_log = logging.getLogger(__name__)
Partitions = frozenset[TopicPartition]
Offsets = Mapping[TopicPartition, Committed]
Done = Callable[[Offsets, OttlaError | None], None]
"""Called with the offsets, and the error or None, on the thread that commits."""

_PASSING = frozenset({ErrorCode.rebalance_in_progress, ErrorCode.stale_member_epoch, ErrorCode.illegal_generation})
"""The group is changing, and this member may still be part of it in a moment."""
_PAUSE = 0.05
CREATED_AGAIN = "the topic was deleted and created again, and these offsets are of the one before"
_NOT_OF_THIS = "nothing is committed for the new topic"
NOT_OURS = "they were lost or let go of before, and may be another member's by now"


class _Job:
    """One commit. `gone` are those of its partitions that this consumer has let go of since."""

    __slots__ = ("done", "gone", "offsets")

    def __init__(self, offsets: Offsets, done: Done | None) -> None:
        self.offsets = offsets
        self.done = done
        self.gone: Partitions = frozenset()


class Commits:
    """Made for a group; `member` tells who this consumer is in it, `keeps` which of some partitions it still has."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        member: Callable[[], GroupMember],
        keeps: Callable[[Partitions], Partitions],
        name: str,
    ) -> None:
        self._cluster = cluster
        self._member = member
        self._keeps = keeps
        self._name = name
        self._queue: deque[_Job] = deque()
        self._current: _Job | None = None
        # Ctrl-C within the entry of a Condition would keep the lock; within that of a lock it does not.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._queue and self._current is None

    def commit(self, offsets: Offsets, deadline: Deadline) -> None:
        """Returns when they are committed, after all that were begun before."""
        self.wait(deadline)
        self._carry_out(_Job(offsets, None), deadline)

    def commit_soon(self, offsets: Offsets, done: Done | None) -> None:
        """Returns at once; `done` hears how it ended."""
        with self._lock:
            self._queue.append(_Job(offsets, done))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"ottla-commit-{self._name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """They are not this consumer's any more: what is under way for them is not tried again."""
        with self._lock:
            for job in (*self._queue, self._current):
                if job is not None:
                    job.gone |= job.offsets.keys() & partitions

    def wait(self, deadline: Deadline) -> None:
        """Returns when nothing is under way any more, or the deadline has passed."""
        if self._thread is threading.current_thread():
            return
        with self._lock:
            while not self.idle and (left := deadline.remaining()):
                self._changed.wait(left)

    def close(self, deadline: Deadline) -> None:
        """Finishes what was begun, until the deadline."""
        self.wait(deadline)
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(deadline.remaining())

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
                job = self._current = self._queue.popleft()
            self._call_back(job, self._try(job))
            with self._lock:
                self._current = None
                self._changed.notify_all()

    def _try(self, job: _Job) -> OttlaError | None:
        try:
            self._carry_out(job, Deadline.after(self._cluster.timeouts.total))
        except OttlaError as error:
            return error
        except Exception as error:  # a bug: whoever waits must hear of it
            _log.exception("a commit failed in a way that it should not")
            wrapped = OttlaError(f"committing failed: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            return wrapped
        return None

    def _call_back(self, job: _Job, error: OttlaError | None) -> None:
        if job.done is None:
            if error is not None:
                _log.warning("%s", error)
            return
        try:
            job.done(job.offsets, error)
        except Exception:
            _log.exception("the callback of a commit failed")

    def _carry_out(self, job: _Job, deadline: Deadline) -> None:
        replaced: Partitions = frozenset()
        while True:
            member = self._member()  # before the look at what is kept
            kept = self._keeps(frozenset(job.offsets)) - job.gone - replaced
            try:
                commit(self._cluster, member, {at: job.offsets[at] for at in kept}, deadline=deadline)
                break
            except TopicCreatedAgain as error:
                replaced |= error.partitions  # the others are committed all the same
            except BrokerError as error:
                if error.code not in GROUP_MOVED_ON:
                    raise
                self._refused(error, member, kept, deadline)
        if replaced:
            raise of_another_topic(member.group, replaced)
        lost = job.offsets.keys() - kept
        if lost:
            raise CommitFailed(member.group, _names(lost), NOT_OURS)

    def _refused(self, error: BrokerError, member: GroupMember, kept: Partitions, deadline: Deadline) -> None:
        """Returns when it may be tried again."""
        if self._member() != member:
            return  # the refusal was about the generation before
        if error.code not in _PASSING or deadline.remaining() <= _PAUSE:
            raise CommitFailed(member.group, _names(kept), f"{error.row.name}: {error.row.advice}") from error
        time.sleep(_PAUSE)  # until the next heartbeat tells who we are now


def of_another_topic(group: str, partitions: Collection[TopicPartition]) -> CommitFailed:
    """Why the offsets of these were not committed."""
    return CommitFailed(group, _names(partitions), CREATED_AGAIN, outcome=_NOT_OF_THIS)


def _names(partitions: Collection[TopicPartition]) -> tuple[str, ...]:
    return tuple(str(at) for at in sorted(partitions))
