"""Commits of one consumer: waiting ones, and ones in the background that call back, in the order in which they came.

Offsets come in; they are in the group's log afterwards, or there is an error that says whether the group moved on. A
member whose generation changes while a commit is under way tries again with the new one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from ottla.admin.committed import GROUP_MOVED_ON, Committed, commit
from ottla.errors import BrokerError, CommitFailed, ErrorCode, OttlaError
from ottla.model import GroupMember, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline

_log = logging.getLogger(__name__)
Offsets = Mapping[TopicPartition, Committed]
Done = Callable[[Offsets, OttlaError | None], None]
"""Called with the offsets, and the error or None, on the thread that commits."""

_PASSING = frozenset({ErrorCode.rebalance_in_progress, ErrorCode.stale_member_epoch, ErrorCode.illegal_generation})
"""The group is changing, and this member may still be part of it in a moment."""
_PAUSE = 0.05


class Commits:
    """Made for a group; `member` tells who this consumer is in it at the moment."""

    def __init__(self, cluster: Cluster, *, member: Callable[[], GroupMember], name: str) -> None:
        self._cluster = cluster
        self._member = member
        self._name = name
        self._queue: deque[tuple[Offsets, Done | None]] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._queue and not self._busy

    def commit(self, offsets: Offsets, deadline: Deadline) -> None:
        """Returns when they are committed, after all that were begun before."""
        self.wait(deadline)
        self._commit(offsets, deadline)

    def commit_soon(self, offsets: Offsets, done: Done | None) -> None:
        """Returns at once; `done` hears how it ended."""
        with self._changed:
            self._queue.append((offsets, done))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"ottla-commit-{self._name}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, deadline: Deadline) -> None:
        """Returns when nothing is under way any more, or the deadline has passed."""
        if self._thread is threading.current_thread():
            return
        with self._changed:
            while (self._queue or self._busy) and (left := deadline.remaining()):
                self._changed.wait(left)

    def close(self, deadline: Deadline) -> None:
        """Finishes what was begun, until the deadline."""
        self.wait(deadline)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(deadline.remaining())

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
                offsets, done = self._queue.popleft()
                self._busy = True
            error: OttlaError | None = None
            try:
                self._commit(offsets, Deadline.after(self._cluster.timeouts.total))
            except OttlaError as failed:
                error = failed
            self._call_back(offsets, done, error)
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _call_back(self, offsets: Offsets, done: Done | None, error: OttlaError | None) -> None:
        if done is None:
            if error is not None:
                _log.warning("%s", error)
            return
        try:
            done(offsets, error)
        except Exception:
            _log.exception("the callback of a commit failed")

    def _commit(self, offsets: Offsets, deadline: Deadline) -> None:
        if not offsets:
            return
        while True:
            member = self._member()
            try:
                commit(self._cluster, member, offsets, deadline=deadline)
                return
            except BrokerError as error:
                if error.code not in GROUP_MOVED_ON:
                    raise
                # Another epoch by now: the refusal was about the old one. Else it may come with the next heartbeat.
                changed = self._member() != member
                patient = error.code in _PASSING and deadline.remaining() > _PAUSE
                if not changed and not patient:
                    names = tuple(str(at) for at in sorted(offsets))
                    raise CommitFailed(member.group, names, f"{error.row.name}: {error.row.advice}") from error
                if not changed:
                    time.sleep(_PAUSE)  # until the next heartbeat tells who we are now
