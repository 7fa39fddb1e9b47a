"""Commits the offsets of one consumer, blocking or in the background, in the order of the calls.

Offsets come in; afterwards the group has them, or an error says whether the group moved on. If the generation changes
during a commit, the commit is retried with the new one, for the partitions that the member kept.

A broker checks the generation of a commit, not who owns the partitions. To never overwrite the commit of the next
owner, each attempt first reads the generation and then drops the partitions that were released or lost. A partition
that is taken away after this check goes to its next owner in a later generation, so the broker refuses the commit.
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
"""Called with the offsets and the error, or None, on the thread that commits."""

_PASSING = frozenset({ErrorCode.rebalance_in_progress, ErrorCode.stale_member_epoch, ErrorCode.illegal_generation})
"""The group is rebalancing; this member may still be part of the next generation."""
_PAUSE = 0.05
"""Seconds between two attempts."""
CREATED_AGAIN = "the topic was deleted and created again, and these offsets belong to the old one"
_NOT_OF_THIS = "nothing was committed for the new topic"
NOT_OURS = "the partitions were lost or released and may belong to another member by now"


class _Job:
    """One commit. `gone` are those of its partitions that this consumer has released since."""

    __slots__ = ("done", "gone", "offsets")

    def __init__(self, offsets: Offsets, done: Done | None) -> None:
        self.offsets = offsets
        self.done = done
        self.gone: Partitions = frozenset()


class Commits:
    """`member` returns the consumer's current membership; `keeps` returns which of some partitions it still owns."""

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
        # Ctrl-C while entering a Condition would keep the lock held; while entering a lock it does not.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether no commit is queued or running."""
        return not self._queue and self._current is None

    def commit(self, offsets: Offsets, deadline: Deadline) -> None:
        """Block until the offsets are committed, after all earlier commits.

        Raises `CommitFailed` if the group moved on, or another `OttlaError` if the commit failed by the deadline.
        """
        self.wait(deadline)
        self._carry_out(_Job(offsets, None), deadline)

    def commit_soon(self, offsets: Offsets, done: Done | None) -> None:
        """Queue a commit and return at once; `done` is called with the outcome."""
        with self._lock:
            self._queue.append(_Job(offsets, done))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"ottla-commit-{self._name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def give_up(self, partitions: Collection[TopicPartition]) -> None:
        """Stop retrying commits of these partitions: this consumer no longer owns them."""
        with self._lock:
            for job in (*self._queue, self._current):
                if job is not None:
                    job.gone |= job.offsets.keys() & partitions

    def wait(self, deadline: Deadline) -> None:
        """Block until no commit is queued or running, or until the deadline."""
        if self._thread is threading.current_thread():
            return
        with self._lock:
            while not self.idle and (left := deadline.remaining()):
                self._changed.wait(left)

    def close(self, deadline: Deadline) -> None:
        """Finish queued commits until the deadline, then stop the thread."""
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
            self._carry_out(job, self._cluster.deadline())
        except OttlaError as error:
            return error
        except Exception as error:  # A bug, but the caller that waits must get an error.
            _log.exception("unexpected error in a commit; this is a bug")
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
            _log.exception("the callback of a commit raised")

    def _carry_out(self, job: _Job, deadline: Deadline) -> None:
        replaced: Partitions = frozenset()
        while True:
            member = self._member()  # Before `_keeps`: see the top of this module.
            kept = self._keeps(frozenset(job.offsets)) - job.gone - replaced
            try:
                commit(
                    self._cluster, member, {partition: job.offsets[partition] for partition in kept}, deadline=deadline
                )
                break
            except TopicCreatedAgain as error:
                replaced |= error.partitions  # Commit the others nevertheless.
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
        """Return if the commit may be retried, after a pause. Raises `CommitFailed` if not."""
        if self._member() != member:
            return  # The refusal concerned an earlier generation.
        if error.code not in _PASSING or deadline.remaining() <= _PAUSE:
            raise CommitFailed(member.group, _names(kept), f"{error.row.name}: {error.row.advice}") from error
        time.sleep(_PAUSE)  # The next heartbeat brings the new generation.


def of_another_topic(group: str, partitions: Collection[TopicPartition]) -> CommitFailed:
    """Return the error for offsets of a topic that was deleted and created again."""
    return CommitFailed(group, _names(partitions), CREATED_AGAIN, outcome=_NOT_OF_THIS)


def _names(partitions: Collection[TopicPartition]) -> tuple[str, ...]:
    return tuple(str(partition) for partition in sorted(partitions))
