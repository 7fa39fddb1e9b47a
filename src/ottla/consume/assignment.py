"""The partitions that a consumer has: takes new ones over, releases revoked ones, and calls the listener.

The target comes from the membership. `Dispenser` starts and stops reading the partitions. Offsets are committed when
partitions are released. Everything runs on the program's thread. An exception of the listener reaches the program and
has no other effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ottla.admin.committed import Committed
from ottla.consume.commits import Commits
from ottla.consume.dispenser import Dispenser
from ottla.consume.listener import Listener
from ottla.consume.membership import Membership
from ottla.consume.start_positions import StartPositions
from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.net.deadline import Deadline

if TYPE_CHECKING:
    from ottla.consume.consumer import Consumer

_log = logging.getLogger(__name__)
Partitions = frozenset[TopicPartition]
Callback = Callable[["Consumer", Partitions], None]
_REVOKE_SECONDS = 5.0
"""Time limit for committing revoked partitions, because other members wait for them."""


class Assignment:
    """The listener is called for `consumer`. With `commits_done`, processed offsets are committed on release."""

    def __init__(
        self,
        consumer: Consumer,
        *,
        listener: Listener,
        dispenser: Dispenser,
        commits: Commits,
        start_positions: StartPositions,
        commits_done: bool,
    ) -> None:
        self.held: Partitions = frozenset()
        self.is_in_listener = False
        """Whether a method of the listener is running."""
        self._consumer = consumer
        self._listener = listener
        self._dispenser = dispenser
        self._commits = commits
        self._start_positions = start_positions
        self._commits_done = commits_done
        self._seen_version = -1

    def follow(self, membership: Membership) -> None:
        """Bring the partitions in line with what the group assigned."""
        target = membership.target()
        if target.version == self._seen_version:
            return
        try:
            self.lose(target.lost & self.held)
            self.release(self.held - target.partitions)
            membership.report_held(self.held)
            self.take(target.partitions - self.held, membership=membership)
            self._seen_version = target.version
        finally:
            membership.report_held(self.held)

    def take(
        self,
        new: Partitions,
        offsets: Mapping[TopicPartition, int] | None = None,
        *,
        membership: Membership | None = None,
    ) -> None:
        """Take these partitions over; `offsets` holds start offsets for some of them."""
        self.held |= new
        if membership is not None:
            membership.report_held(self.held)  # Before the listener runs, because it may commit.
        for partition, offset in (offsets or {}).items():
            self._dispenser.begin(partition, offset)
        if new:
            self._notify(self._listener.assigned, new)

    def release(self, revoked: Partitions, deadline: Deadline | None = None) -> None:
        """Commit and stop these partitions. Other members get them once the membership reports this."""
        if not revoked:
            return
        limit = deadline or Deadline.after(_REVOKE_SECONDS)
        self._start_positions.remember(revoked)
        self._dispenser.stop(revoked)
        try:
            if self._commits_done:
                done = self._dispenser.positions.all_done()
                self.commit_done({tp: committed for tp, committed in done.items() if tp in revoked}, limit)
            self._notify(self._listener.revoked, revoked)
        finally:
            self._commits.wait(limit)  # Includes the commits that the program started.
            self._drop(revoked)

    def lose(self, lost: Partitions) -> None:
        """Drop these partitions without a commit: other members may have them already."""
        if lost:
            self._start_positions.remember(lost)
            self._drop(lost)
            self._notify(self._listener.lost, lost)

    def commit_done(self, offsets: Mapping[TopicPartition, Committed], deadline: Deadline) -> None:
        """Commit automatically and wait. If it fails, log it: the next owner reads those records again."""
        try:
            self._commits.commit(offsets, deadline)
            self._dispenser.positions.committed(offsets)
        except OttlaError as error:
            _log.warning("%s", error)

    def _drop(self, partitions: Partitions) -> None:
        self._commits.give_up(partitions)
        self._start_positions.forget(partitions)
        self._dispenser.forget(partitions)
        self.held -= partitions

    def _notify(self, callback: Callback, partitions: Partitions) -> None:
        self.is_in_listener = True
        try:
            callback(self._consumer, partitions)
        finally:
            self.is_in_listener = False
