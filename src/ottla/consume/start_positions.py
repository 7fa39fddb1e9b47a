"""Finds out where a consumer begins in partitions that are new to it: where its group is, or else at `start`.

Partitions without a place come in; they are begun, or fail with what is to be said about them. Brokers are asked
beside the program, which may get records of other partitions meanwhile.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Collection
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ottla.admin.committed import GROUP_MOVED_ON, Committed, fetch_committed
from ottla.consume.dispenser import Dispenser
from ottla.errors import BrokerError, InputError, OttlaError
from ottla.fetch import bounds
from ottla.model import GroupMember, Isolation, TopicPartition
from ottla.net import Cluster
from ottla.net.attempts import worth_repeating
from ottla.net.background import BackgroundTasks
from ottla.net.deadline import Deadline

_log = logging.getLogger(__name__)
Partitions = frozenset[TopicPartition]
Start = str | datetime
_ERROR = "error"


class _Found(NamedTuple):
    """What the group has committed, where the others begin, and of which topics all that is."""

    committed: dict[TopicPartition, Committed]
    begun: dict[TopicPartition, int]
    ids: dict[str, UUID | None]


class StartPositions:
    """`start` is for partitions of which the group has committed nothing; without a group, for all."""

    def __init__(
        self,
        cluster: Cluster,
        handing: Dispenser,
        *,
        errands: BackgroundTasks,
        member: Callable[[], GroupMember] | None,
        start: Start,
        isolation: Isolation,
    ) -> None:
        self._cluster = cluster
        self._handing = handing
        self._errands = errands
        self._member = member
        self._start = start
        self._isolation = isolation
        self._numbers = itertools.count()
        self._searches: dict[int, Partitions] = {}
        self._left: dict[TopicPartition, Committed] = {}
        """Where partitions were when they were let go of last, and of which topic."""
        self._failures = 0
        self._not_before = 0.0

    def look(self, held: Partitions) -> None:
        """Begins what has a place by now, and searches for those that have none."""
        if len(self._handing.positions) == len(held) or time.monotonic() < self._not_before:
            return
        self._searches = {n: these for n, these in self._searches.items() if self._errands.busy(("places", n))}
        searched = frozenset[TopicPartition]().union(*self._searches.values())
        missing = frozenset(at for at in held if at not in self._handing.positions)
        missing -= searched | self._handing.failed
        if missing:
            self._search(missing)

    def forget(self, partitions: Partitions) -> None:
        """What is being found out about these does not count any more."""
        self._searches = {number: these - partitions for number, these in self._searches.items()}

    def leave(self, partitions: Partitions) -> None:
        """They are about to be let go of, and may come back when another topic has the name."""
        handed, told = self._handing.positions.all_handed(), self._handing.replaced
        self._left |= {at: handed[at] for at in partitions if at in handed and at not in told}

    def _search(self, missing: Partitions) -> None:
        number = next(self._numbers)
        self._searches[number] = missing
        self._errands.run(
            ("places", number),
            lambda: self._find(missing),
            done=lambda found: self._found(number, found),
            failed=lambda error: self._failed(number, error),
        )

    def _found(self, number: int, found: _Found) -> None:
        self._failures = 0
        for at in sorted(self._searches.pop(number, frozenset())):
            if at in self._handing.positions:
                continue  # the program went elsewhere meanwhile
            topic_id = found.ids.get(at.topic)
            if at in found.committed:
                offset, epoch, *_ = found.committed[at]
                self._handing.begin(at, offset, epoch=epoch, committed=offset, topic_id=topic_id)
            elif (before := self._predecessor(at, topic_id)) is not None:
                self._handing.begin(at, before.offset, topic_id=before.topic_id)
            elif at in found.begun:
                self._handing.begin(at, found.begun[at], topic_id=topic_id)
            else:
                reason = f"group {self._group} has committed nothing for {at}, and start is 'error'"
                self._handing.fail(at, InputError(f"{reason}: seek to where it should begin"))

    def _predecessor(self, at: TopicPartition, topic_id: UUID | None) -> Committed | None:
        """Where this consumer was in an earlier topic of the name. Where it goes on is for `on_lost` to say then, and
        not for `start`: it is found replaced, as if it had never been let go of."""
        left = self._left.pop(at, None)
        return None if left is None or None in (left.topic_id, topic_id) or left.topic_id == topic_id else left

    def _failed(self, number: int, error: OttlaError) -> None:
        these = self._searches.pop(number, frozenset())
        if _may_go_by(error):
            self._failures += 1
            self._not_before = time.monotonic() + self._cluster.retry.wait(self._failures, 1.0)
            _log.warning("where to begin could not be found out, and is tried again: %s", error)
            return
        for at in these:
            if at not in self._handing.positions:
                self._handing.fail(at, error)

    @property
    def _group(self) -> str | None:
        return None if self._member is None else self._member().group

    def _find(self, new: Collection[TopicPartition]) -> _Found:
        deadline = Deadline.after(self._cluster.timeouts.total)
        # From the brokers, not from memory: what is remembered may be an earlier topic of the same name.
        topics = self._cluster.metadata({at.topic for at in new}, deadline=deadline).topics
        ids = {name: topic.id for name, topic in topics.items()}
        committed: dict[TopicPartition, Committed] = {}
        if self._member is not None:
            # A transaction that is about to change an offset is waited for (KIP-447).
            stable = Isolation.READ_COMMITTED
            committed = fetch_committed(
                self._cluster, self._member(), new, isolation=stable, ids=ids, deadline=deadline
            )
        missing = [at for at in new if at not in committed]
        if not missing or self._start == _ERROR:
            return _Found(committed, {}, ids)
        begun = bounds.resolve(self._cluster, missing, self._start, isolation=self._isolation, deadline=deadline)
        return _Found(committed, begun, ids)


def _may_go_by(error: OttlaError) -> bool:
    # A group that moves on is asked again as the member that this consumer is by then.
    return worth_repeating(error) or (isinstance(error, BrokerError) and error.code in GROUP_MOVED_ON)
