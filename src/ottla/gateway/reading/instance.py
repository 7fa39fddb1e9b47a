"""A consumer instance of the REST Proxy: a member of a group whose records are handed out piece by piece. Blocks.

Calls of one client come in, one at a time; records, positions and commits go out. It knows what its client has got and
what the client was done with when it asked for more, and commits no more than that by itself. It knows no HTTP.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa

from ottla.admin.committed import Committed
from ottla.consume.consumer import Consumer
from ottla.consume.listener import Listener
from ottla.consume.records import records_of
from ottla.errors import CommitFailed, InputError, OffsetsLost, OttlaError
from ottla.gateway.http.problems import Problem, problem_of, replaced
from ottla.gateway.reading.log_reader import Size, row_bytes
from ottla.model import Isolation, Record, TopicPartition

_log = logging.getLogger(__name__)
COMMIT_SECONDS = 5.0
"""How often done records are committed, and how long a commit may take."""
_CLOSE_SECONDS = 5.0
_JOIN_SECONDS = 10.0
"""How long a group may take to give a new member its partitions, if there are any for it."""
Partitions = frozenset[TopicPartition]
Place = int | str | datetime
"""An offset, earliest, latest, or a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the client decided when it created the instance."""

    form: str = "binary"
    start: str = "latest"
    """Where a partition without a committed offset starts: earliest, latest, or `error`."""
    commits: bool = True
    """Whether records that the client is done with are committed by themselves."""
    isolation: Isolation = Isolation.READ_UNCOMMITTED
    wait_seconds: float = 1.0
    """How long a read waits unless it says otherwise."""
    min_bytes: int = 1


Connect = Callable[[str, Terms, Listener], Consumer]
"""Returns a consumer of a group."""


class Instance(Listener):
    """One instance. Its calls must not overlap."""

    def __init__(self, group: str, name: str, terms: Terms, connect: Connect) -> None:
        self.group = group
        self.name = name
        self.terms = terms
        self.topics: frozenset[str] = frozenset()
        self.pattern = ""
        """A pattern of names that others resolve to `topics`; empty if there is none."""
        self.buffered_bytes = 0
        self._connect = connect
        self._consumer: Consumer | None = None
        self._buffer: deque[pa.RecordBatch] = deque()
        self._done: dict[TopicPartition, int] = {}
        """Behind what the client had when it last asked for more."""
        self._joining_until = 0.0
        self._is_closed = False
        self._committed: dict[TopicPartition, int] = {}
        self._commit_at = 0.0

    # What to read

    def subscribe(self, topics: frozenset[str], pattern: str = "") -> None:
        """Read these topics as a member of the group. Raises `Problem`."""
        if self._consumer is not None and not (self.topics or self.pattern):
            raise illegal("this instance has partitions of its own: subscriptions and assignments exclude each other")
        if topics:
            if not self.topics:
                self._joining_until = time.monotonic() + _JOIN_SECONDS
            self._open().subscribe(topics)
        elif not pattern:
            self.unsubscribe()
        if topics or pattern:
            self.topics, self.pattern = topics, pattern

    def unsubscribe(self) -> None:
        """Leave the group, or let go of the assigned partitions. Commits what is done, if that is so agreed."""
        self._acknowledge()
        self.topics, self.pattern = frozenset(), ""
        self._joining_until = 0.0
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(_CLOSE_SECONDS)
        self._drop(frozenset(self._partitions()))
        self._done.clear()
        self._committed.clear()

    def assign(self, partitions: Partitions) -> None:
        """Read exactly these partitions, without the other members of the group. Raises `Problem`."""
        if self.topics or self.pattern:
            raise illegal("this instance has a subscription: subscriptions and assignments exclude each other")
        if not partitions:
            self.unsubscribe()
            return
        consumer = self._open()
        try:
            consumer.assign(partitions)
        finally:
            if not consumer.assignment:
                self.unsubscribe()

    def assignment(self) -> Partitions:
        """Return the partitions that it has now."""
        return frozenset() if self._consumer is None else self._consumer.assignment

    def joining_seconds(self) -> float:
        """Return how long it is still worth waiting for the group to give it partitions."""
        return 0.0 if self.assignment() else max(0.0, self._joining_until - time.monotonic())

    # Records

    def begin_read(self) -> None:
        """Note that the client asks for more: it is done with what it had. Raises `Problem` without a subscription."""
        if self._consumer is None and not self.pattern:
            raise illegal("this instance is not subscribed to any topics or assigned any partitions")
        self._acknowledge()

    def gather(self, size_bytes: int, seconds: float) -> int:
        """Wait some seconds for records until there are as many bytes. Returns how many there are.

        Raises `Problem` and `OttlaError` if there is none.
        """
        until = time.monotonic() + seconds
        while self._consumer is not None and self.buffered_bytes < size_bytes:
            try:
                batch = self._consumer.poll(max(0.0, until - time.monotonic()))
            except OttlaError as error:
                if self._buffer:
                    break  # what is there goes out first; the error comes again
                raise _problem_of(error) from error
            if batch is None:
                break
            if len(batch):
                self._buffer.append(batch)
                self._measure()
        self._commit_if_due()
        return self.buffered_bytes

    def peek(self, size: Size) -> list[Record]:
        """Return the next records, at least one if there is any. They are still to be taken."""
        found: list[Record] = []
        left = size.bytes
        for batch in self._buffer:
            ends = np.cumsum(row_bytes(batch))
            kept = min(int(np.searchsorted(ends, left, "right")), size.rows - len(found))
            kept = max(kept, 0 if found else 1)
            found += records_of(batch.slice(0, kept))
            if kept < len(batch):
                break
            left -= int(ends[-1])
        return found

    def take(self, count: int) -> None:
        """The client gets this many of the next records."""
        while count:
            batch = self._buffer.popleft()
            if count < len(batch):
                self._buffer.appendleft(batch.slice(count))
            count -= min(count, len(batch))
        self._measure()

    # Positions

    def seek(self, places: Mapping[TopicPartition, Place]) -> None:
        """Continue at these places. Raises `Problem` for a partition that it does not have."""
        consumer = self._require(places)
        for tp, place in places.items():
            self._drop(frozenset({tp}))
            self._done.pop(tp, None)
            consumer.seek(tp, place, timeout=COMMIT_SECONDS)

    def commit(self, offsets: Mapping[TopicPartition, Committed] | None) -> None:
        """Commit these offsets, or all that the client has got. Raises `Problem`."""
        consumer = self._consumer
        if consumer is None:
            raise illegal("this instance has no partitions: it has no subscription and no assignment")
        wanted = {tp: Committed(offset) for tp, offset in self._positions().items()} if offsets is None else offsets
        try:
            consumer.commit(wanted, timeout=COMMIT_SECONDS)
        except OttlaError as error:
            raise _problem_of(error) from error
        self._committed |= {tp: each.offset for tp, each in wanted.items()}

    def committed(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Committed]:
        """Return what the group has committed."""
        if self._consumer is not None:
            return self._consumer.committed(partitions, timeout=COMMIT_SECONDS)
        consumer = self._connect(self.group, self.terms, self)
        try:
            return consumer.committed(partitions, timeout=COMMIT_SECONDS)
        finally:
            consumer.close(_CLOSE_SECONDS)

    # Its life

    def maintain(self) -> None:
        """Take part in rebalances, and commit if that is due."""
        if self._consumer is not None:
            self._consumer.maintain()
            self._commit_if_due()

    def close(self, *, has_all: bool = False) -> None:
        """Leave the group. With `has_all` the client has got, and is done with, all that was sent to it."""
        self._is_closed = True
        if has_all:
            self._acknowledge()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close(_CLOSE_SECONDS)
        self._buffer.clear()
        self._measure()

    def revoked(self, consumer: Consumer, partitions: Partitions) -> None:
        """Commit what is done before other members have the partitions; what was not sent goes to them."""
        if self.terms.commits:
            due = self._due(partitions)
            try:
                if due:
                    consumer.commit(due, timeout=COMMIT_SECONDS)
            except OttlaError as error:
                _log.warning("%s", error)
        self._forget(partitions)

    def lost(self, consumer: Consumer, partitions: Partitions) -> None:
        """Other members may have the partitions already."""
        self._forget(partitions)

    # Inside

    def _open(self) -> Consumer:
        if self._is_closed:  # the task that matches patterns may come late
            raise illegal("this instance has ended")
        if self._consumer is None:
            self._consumer = self._connect(self.group, self.terms, self)
        return self._consumer

    def _acknowledge(self) -> None:
        if self._consumer is not None:
            self._done = self._positions()

    def _positions(self) -> dict[TopicPartition, int]:
        """Return behind what the client has got, without what waits for it."""
        positions = {} if self._consumer is None else self._consumer.positions()
        for batch in reversed(self._buffer):
            positions[_partition_of(batch)] = batch.column("offset")[0].as_py()
        return positions

    def _due(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        return {
            tp: offset for tp, offset in self._done.items() if tp in partitions and self._committed.get(tp) != offset
        }

    def _commit_if_due(self) -> None:
        now = time.monotonic()
        if self._consumer is None or not self.terms.commits or now < self._commit_at:
            return
        self._commit_at = now + COMMIT_SECONDS
        due = self._due(self._consumer.assignment)
        if due:
            self._consumer.commit_soon(due, done=self._note_commit)

    def _note_commit(self, offsets: Mapping[TopicPartition, Committed], error: OttlaError | None) -> None:
        if error is None:
            self._committed |= {tp: each.offset for tp, each in offsets.items()}
        else:
            _log.warning("%s", error)

    def _require(self, partitions: Collection[TopicPartition]) -> Consumer:
        consumer = self._consumer
        for tp in partitions:
            if consumer is None or tp not in consumer.assignment:
                raise illegal(f"no current assignment for partition {tp}")
        if consumer is None:
            raise illegal("this instance has no partitions")
        return consumer

    def _partitions(self) -> Iterator[TopicPartition]:
        return map(_partition_of, self._buffer)

    def _forget(self, partitions: Partitions) -> None:
        self._drop(partitions)
        for tp in partitions:
            self._done.pop(tp, None)
            self._committed.pop(tp, None)

    def _drop(self, partitions: Partitions) -> None:
        """Drop records that wait for the client."""
        self._buffer = deque(batch for batch in self._buffer if _partition_of(batch) not in partitions)
        self._measure()

    def _measure(self) -> None:
        self.buffered_bytes = sum(int(row_bytes(batch).sum()) for batch in self._buffer)


def illegal(text: str) -> Problem:
    """Return the answer for a call that does not fit the state of an instance."""
    return Problem(409, text, code=40903)


def _partition_of(batch: pa.RecordBatch) -> TopicPartition:
    return TopicPartition(batch.column("topic")[0].as_py(), batch.column("partition")[0].as_py())


def _problem_of(error: OttlaError) -> Problem:
    if isinstance(error, OffsetsLost):
        if error.replaced:
            return replaced(error.topic)
        text = f"{error.topic}-{error.partition}: offsets {error.start} to {error.stop - 1} are lost: {error.reason}"
        details = {"lost": {"start": error.start, "stop": error.stop}, "begin_offset": error.resume}
        return Problem(410, text, code=41001, details=details)
    if isinstance(error, CommitFailed | InputError):
        return illegal(str(error))
    return problem_of(error)
