"""Finds the start offset of partitions that are new to a consumer: the group's committed offset, otherwise `start`.

Partitions without a position come in; the dispenser starts them, or gets the error to raise for them. The brokers are
asked in the background, so that the program can read other partitions meanwhile.
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

_log = logging.getLogger(__name__)
Partitions = frozenset[TopicPartition]
Start = str | datetime
_ERROR = "error"


class _Lookup(NamedTuple):
    """Committed offsets, start offsets of the other partitions, and the topic ids that they belong to."""

    committed: dict[TopicPartition, Committed]
    starts: dict[TopicPartition, int]
    ids: dict[str, UUID | None]


class StartPositions:
    """`start` applies to partitions without a committed offset; without a group, to all."""

    def __init__(
        self,
        cluster: Cluster,
        dispenser: Dispenser,
        *,
        background: BackgroundTasks,
        member: Callable[[], GroupMember] | None,
        start: Start,
        isolation: Isolation,
    ) -> None:
        self._cluster = cluster
        self._dispenser = dispenser
        self._background = background
        self._member = member
        self._start = start
        self._isolation = isolation
        self._numbers = itertools.count()
        self._lookups: dict[int, Partitions] = {}
        self._last_positions: dict[TopicPartition, Committed] = {}
        """Where released partitions were last, and of which topic."""
        self._failures = 0
        self._not_before = 0.0

    def update(self, held: Partitions) -> None:
        """Look up the partitions that have no position and no lookup running. Call it on every poll."""
        if len(self._dispenser.positions) == len(held) or time.monotonic() < self._not_before:
            return
        self._lookups = {n: partitions for n, partitions in self._lookups.items() if self._is_running(n)}
        in_progress = frozenset[TopicPartition]().union(*self._lookups.values())
        missing = frozenset(partition for partition in held if partition not in self._dispenser.positions)
        missing -= in_progress | self._dispenser.failed
        if missing:
            self._start_lookup(missing)

    def forget(self, partitions: Partitions) -> None:
        """Ignore the results of running lookups for these partitions."""
        self._lookups = {number: in_progress - partitions for number, in_progress in self._lookups.items()}

    def remember(self, partitions: Partitions) -> None:
        """Keep the positions of partitions that are about to be released: they may return with another topic's id."""
        handed, replaced = self._dispenser.positions.all_handed(), self._dispenser.replaced
        self._last_positions |= {tp: handed[tp] for tp in partitions if tp in handed and tp not in replaced}

    def _is_running(self, number: int) -> bool:
        return self._background.busy(("start positions", number))

    def _start_lookup(self, missing: Partitions) -> None:
        number = next(self._numbers)
        self._lookups[number] = missing
        self._background.run(
            ("start positions", number),
            lambda: self._look_up(missing),
            done=lambda lookup: self._apply(number, lookup),
            failed=lambda error: self._failed(number, error),
        )

    def _apply(self, number: int, lookup: _Lookup) -> None:
        self._failures = 0
        for partition in sorted(self._lookups.pop(number, frozenset())):
            if partition in self._dispenser.positions:
                continue  # The program has set a position in the meantime.
            topic_id = lookup.ids.get(partition.topic)
            if partition in lookup.committed:
                offset, epoch, *_ = lookup.committed[partition]
                self._dispenser.begin(partition, offset, epoch=epoch, committed=offset, topic_id=topic_id)
            elif (predecessor := self._predecessor(partition, topic_id)) is not None:
                self._dispenser.begin(partition, predecessor.offset, topic_id=predecessor.topic_id)
            elif partition in lookup.starts:
                self._dispenser.begin(partition, lookup.starts[partition], topic_id=topic_id)
            else:
                reason = f"group {self._group} has no committed offset for {partition}, and start is 'error'"
                self._dispenser.fail(partition, InputError(f"{reason}: seek to the offset where it should start"))

    def _predecessor(self, partition: TopicPartition, topic_id: UUID | None) -> Committed | None:
        """Return where this consumer was in an earlier topic of the same name, if anywhere.

        Then `on_lost` decides where reading continues, not `start`: the topic counts as replaced, as if the partition
        had never been released.
        """
        last = self._last_positions.pop(partition, None)
        return None if last is None or None in (last.topic_id, topic_id) or last.topic_id == topic_id else last

    def _failed(self, number: int, error: OttlaError) -> None:
        partitions = self._lookups.pop(number, frozenset())
        if _is_transient(error):
            self._failures += 1
            self._not_before = time.monotonic() + self._cluster.retry.wait(self._failures, 1.0)
            _log.warning("could not look up start offsets, retrying: %s", error)
            return
        for partition in partitions:
            if partition not in self._dispenser.positions:
                self._dispenser.fail(partition, error)

    @property
    def _group(self) -> str | None:
        return None if self._member is None else self._member().group

    def _look_up(self, new: Collection[TopicPartition]) -> _Lookup:
        deadline = self._cluster.deadline()
        # Ask the brokers: cached metadata may describe an earlier topic of the same name.
        topics = self._cluster.metadata({partition.topic for partition in new}, deadline=deadline).topics
        ids = {name: topic.id for name, topic in topics.items()}
        committed: dict[TopicPartition, Committed] = {}
        if self._member is not None:
            # Wait for open transactions that are about to change an offset (KIP-447).
            stable = Isolation.READ_COMMITTED
            committed = fetch_committed(
                self._cluster, self._member(), new, isolation=stable, ids=ids, deadline=deadline
            )
        missing = [partition for partition in new if partition not in committed]
        if not missing or self._start == _ERROR:
            return _Lookup(committed, {}, ids)
        starts = bounds.resolve(self._cluster, missing, self._start, isolation=self._isolation, deadline=deadline)
        return _Lookup(committed, starts, ids)


def _is_transient(error: OttlaError) -> bool:
    # If the group moved on, ask again under the new generation.
    return worth_repeating(error) or (isinstance(error, BrokerError) and error.code in GROUP_MOVED_ON)
