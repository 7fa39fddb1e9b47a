"""The partitions that a consumer has: takes what its group gives it, lets go of what it takes away, tells the listener.

What the group wants comes from the membership; partitions begin and end in `Dispenser`. Offsets are committed on the
way out. All of it on the program's thread. A listener that raises is heard of by the program, and changes nothing else.
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
Tell = Callable[["Consumer", Partitions], None]
_REVOKE_SECONDS = 5.0
"""For the commit of partitions that others wait for."""


class Assignment:
    """`owner` is whom the listener is called for; with `commits_done`, what the program is through with is committed
    when partitions go."""

    def __init__(
        self,
        owner: Consumer,
        *,
        listener: Listener,
        handing: Dispenser,
        commits: Commits,
        beginnings: StartPositions,
        commits_done: bool,
    ) -> None:
        self.held: Partitions = frozenset()
        self.is_telling = False
        """A listener is being called."""
        self._owner = owner
        self._listener = listener
        self._handing = handing
        self._commits = commits
        self._beginnings = beginnings
        self._commits_done = commits_done
        self._seen_version = -1

    def follow(self, membership: Membership) -> None:
        """Does what the group wants."""
        wanted = membership.wanted()
        if wanted.version == self._seen_version:
            return
        try:
            self.lose(wanted.lost & self.held)
            self.let_go(self.held - wanted.partitions)
            membership.holding(self.held)
            self.take(wanted.partitions - self.held, membership=membership)
            self._seen_version = wanted.version
        finally:
            membership.holding(self.held)

    def take(
        self,
        new: Partitions,
        given: Mapping[TopicPartition, int] | None = None,
        *,
        membership: Membership | None = None,
    ) -> None:
        """They are this consumer's now; `given` says where some begin."""
        self.held |= new
        if membership is not None:
            membership.holding(self.held)  # before the listener, which may commit
        for at, offset in (given or {}).items():
            self._handing.begin(at, offset)
        if new:
            self._tell(self._listener.assigned, new)

    def let_go(self, gone: Partitions, deadline: Deadline | None = None) -> None:
        """Somebody else gets them, when this has returned and the group is told."""
        if not gone:
            return
        limit = deadline or Deadline.after(_REVOKE_SECONDS)
        self._beginnings.leave(gone)
        self._handing.stop(gone)
        try:
            if self._commits_done:
                done = self._handing.positions.all_done()
                self.commit_done({at: told for at, told in done.items() if at in gone}, limit)
            self._tell(self._listener.revoked, gone)
        finally:
            self._commits.wait(limit)  # what the program began to commit, too
            self._drop(gone)

    def lose(self, lost: Partitions) -> None:
        """Somebody else may have them already."""
        if lost:
            self._beginnings.leave(lost)
            self._drop(lost)
            self._tell(self._listener.lost, lost)

    def commit_done(self, offsets: Mapping[TopicPartition, Committed], deadline: Deadline) -> None:
        """An automatic commit that somebody waits for; when it fails, those records are read again by others."""
        try:
            self._commits.commit(offsets, deadline)
            self._handing.positions.committed(offsets)
        except OttlaError as error:
            _log.warning("%s", error)

    def _drop(self, gone: Partitions) -> None:
        self._commits.give_up(gone)
        self._beginnings.forget(gone)
        self._handing.forget(gone)
        self.held -= gone

    def _tell(self, tell: Tell, partitions: Partitions) -> None:
        self.is_telling = True
        try:
            tell(self._owner, partitions)
        finally:
            self.is_telling = False
