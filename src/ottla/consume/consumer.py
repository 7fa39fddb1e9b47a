"""`Consumer`: records of the partitions that a consumer group assigns to this member, as Arrow.

Topics come in; `RecordBatch` values go out when the program asks for them, and offsets go back to the group. Joining,
heartbeats and prefetching run on background threads. Everything that the program can notice, including rebalances,
happens inside its own calls.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType

import pyarrow as pa

from ottla.admin.committed import Committed, fetch_committed
from ottla.admin.identity import TopicCreatedAgain, refuse_replaced
from ottla.config import PLAINTEXT, Retry, Security, Timeouts, check_kind
from ottla.consume import arguments
from ottla.consume.arguments import Topics
from ottla.consume.assignment import Assignment
from ottla.consume.async_poll import AsyncPoll
from ottla.consume.commits import NOT_OURS, Commits, Done, of_another_topic
from ottla.consume.counting import Counting
from ottla.consume.dispenser import Dispenser
from ottla.consume.listener import Listener
from ottla.consume.options import GroupOptions
from ottla.consume.positions import Portion
from ottla.consume.records import records_of
from ottla.consume.start_positions import Start, StartPositions
from ottla.consume.subscription import Subscription
from ottla.errors import CommitFailed, ConfigError, InputError, OttlaError, UsedAfterFork
from ottla.fetch import bounds
from ottla.fetch.bounds import Bound
from ottla.fetch.fetcher import Fetcher
from ottla.fetch.options import Fetching, FetchPolicy, OnLost, parse_isolation, parse_on_lost
from ottla.model import GroupMember, Isolation, Record, TopicPartition
from ottla.net.background import BackgroundTasks
from ottla.net.context import Addresses, ClientContext, Sinks
from ottla.net.deadline import Deadline
from ottla.other_clients import names_checked
from ottla.tally.publisher import Publisher
from ottla.tally.settings import Audit
from ottla.wire.decode import COLUMNS, Decoder

_log = logging.getLogger(__name__)
Partitions = frozenset[TopicPartition]

_GROUP_OPTIONS = GroupOptions()
_FETCHING = Fetching()
_LISTENER = Listener()
_NAP = 1.0
"""Seconds between two maintenance rounds while no records arrive."""
_MAINTENANCE_SECONDS = 0.2
"""The same while the program iterates over single records."""
_CLOSE_SECONDS = 10.0
_INTERRUPTED_SECONDS = 1.0
"""Time limit for closing after Ctrl-C."""


class Consumer:
    """A member of a consumer group, or a reader of partitions that the program names (`assign`).

    Only one thread at a time may use it; `stop` may be called from any thread. Tasks of one event loop may iterate,
    `acommit` and `aclose` side by side. `with` closes it. With automatic
    commits, a block that ends normally commits everything it received; one that raises commits everything except the
    records it was processing. Polling, seeking, pausing and committing raise `OttlaError` after `close`, and while
    another thread uses the consumer.
    """

    @names_checked
    def __init__(
        self,
        cluster: Addresses | None = None,
        *,
        group: str | None = None,
        topics: Topics = (),
        start: Start = "earliest",
        commit_every: float | None = 5.0,
        columns: Collection[str] = COLUMNS,
        listener: Listener = _LISTENER,
        options: GroupOptions = _GROUP_OPTIONS,
        fetching: Fetching = _FETCHING,
        isolation: Isolation | str = Isolation.READ_COMMITTED,
        on_lost: OnLost | str = OnLost.ERROR,
        security: Security = PLAINTEXT,
        client_id: str = "ottla-consumer",
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        events: Sinks = (),
        audit: Audit | None = None,
    ) -> None:
        """`start` is where partitions without a committed offset start: "earliest", "latest", a datetime, or "error".

        `options` are those of the group, `listener` is called when partitions come and go, `fetching` limits memory and
        requests, `on_lost` says what to do if records are gone.
        `commit_every` is the interval of automatic commits in seconds; None leaves commits to the program. Records of
        aborted transactions are skipped and those of open ones waited for, unless `isolation` is "read_uncommitted".
        With `audit`, the consumer counts what the program is done with and publishes tallies. Raises `ConfigError` or
        `InputError` for invalid arguments.
        """
        check_kind("options", options, GroupOptions)
        check_kind("fetching", fetching, Fetching)
        check_kind("listener", listener, Listener)
        arguments.check_settings(group, start, commit_every)
        topic_names = arguments.topic_names(topics)
        if topic_names and group is None:
            raise ConfigError(_NO_GROUP)
        self.group = group
        self._isolation = parse_isolation(isolation)
        policy = FetchPolicy(fetching, self._isolation, parse_on_lost(on_lost), math.inf)
        decoder = Decoder(arguments.column_names(columns), max_batch_bytes=fetching.max_batch_bytes)
        self._context = ClientContext(
            cluster, security=security, client_id=client_id, timeouts=timeouts, retry=retry, events=events
        )
        self._cluster = self._context.cluster
        self._fetcher = Fetcher(self._cluster, policy, channel="consume", events=self._context.events)
        self._dispenser = Dispenser(self._fetcher, decoder, self._context.events)
        self._counting = None if audit is None else self._new_counting(audit, client_id, fetching)
        self._wake = self._fetcher.ring
        self._background = BackgroundTasks(wake=self._wake, name=client_id)
        self._subscription = Subscription(
            self._cluster, group, options=options, background=self._background, changed=self._wake
        )
        self._commits = Commits(
            self._cluster,
            member=lambda: self._subscription.member,
            keeps=self._subscription.keeps,
            name=group or client_id,
        )
        self._start_positions = StartPositions(
            self._cluster,
            self._dispenser,
            background=self._background,
            member=None if group is None else lambda: self._subscription.member,
            start=start,
            isolation=self._isolation,
        )
        self._commit_every = None if group is None else commit_every
        self._commit_at = math.inf if self._commit_every is None else time.monotonic() + self._commit_every
        self._assignment = Assignment(
            self,
            listener=listener,
            dispenser=self._dispenser,
            commits=self._commits,
            start_positions=self._start_positions,
            commits_done=self._commit_every is not None,
        )
        self._maintain_at = 0.0
        self._in_use = threading.RLock()
        self._pid = os.getpid()
        self._started = self._stopped = self._closed = False
        self._was_interrupted = False
        """Whether Ctrl-C came in the middle of a call."""
        self._async_poll = AsyncPoll(self._poll_ahead, wake=self._wake)
        if topic_names:
            self.subscribe(topic_names)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._dispenser.positions.mark_done()
            if self._counting is not None:
                self._counting.mark_done(is_last=True)
        try:
            self.close(_INTERRUPTED_SECONDS if kind is KeyboardInterrupt else _CLOSE_SECONDS)
        except Exception as failed:
            if kind is None:
                raise
            _log.error("%s", failed)  # The program's own error takes precedence.

    def __repr__(self) -> str:
        return f"<Consumer of group {self.group}, {len(self._assignment.held)} partitions>"

    # What to read

    def subscribe(self, topics: Topics) -> None:
        """Subscribe to these topics, or to all whose names match a pattern, instead of the previous ones.

        Raises `ConfigError` without a group, `InputError` after `assign`, and `BrokerError` for a missing topic if the
        group is already joined.
        """
        topic_names = arguments.topic_names(topics)
        if self.group is None:
            raise ConfigError(_NO_GROUP)
        with self._exclusive():
            if self._assignment.held and self._subscription.membership is None:
                raise InputError("this consumer has partitions from assign(): call assign([]) before subscribe()")
            self._subscription.change(topic_names)

    def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Read exactly these partitions without joining a group; a mapping holds their start offsets.

        Raises `InputError` after `subscribe`, and `BrokerError` for a missing topic or partition.
        """
        requested = arguments.partitions(partitions)
        offsets: dict[TopicPartition, int] = {}
        if isinstance(partitions, Mapping):
            bounds.check(partitions, "assign")
            offsets = {arguments.partition(tp): offset for tp, offset in partitions.items()}
        with self._exclusive():
            self._refuse_in_listener("assign")
            if self._subscription.has_subscribed:
                raise InputError("this consumer has subscribed: use either subscribe() or assign()")
            for tp in requested:
                self._cluster.leader(*tp)  # Raises now for a missing topic or partition.
            self._start_fetching()
            self._assignment.release(self._assignment.held - requested)
            self._assignment.take(requested - self._assignment.held, offsets)

    @property
    def assignment(self) -> Partitions:
        """The partitions that this consumer has now."""
        return self._assignment.held

    @property
    def member(self) -> GroupMember:
        """This consumer's membership in its group, for `Transaction.send_offsets`.

        Raises `ConfigError` without a group. Raises `CommitFailed` if partitions were lost whose records the program
        may still be processing: under the new generation their offsets would be accepted, although another member may
        be further. Raises it also if a topic was deleted and created again: a transaction names topics, and would
        commit offsets of the old one for the new one.
        """
        self._require_group()
        member = self._subscription.member  # Before `keeps`: see `commits.py`.
        lost = self._assignment.held - self._subscription.keeps(self._assignment.held)
        if lost:
            raise CommitFailed(member.group, tuple(map(str, sorted(lost))), NOT_OURS)
        positions = self._dispenser.positions
        ids = {tp: positions.topic_id(tp) for tp in self._assignment.held - self._dispenser.replaced}
        try:
            refuse_replaced(self._cluster, ids, deadline=self._deadline(None))
        except TopicCreatedAgain as error:
            raise of_another_topic(member.group, error.partitions) from None
        return member

    # Records

    def poll(self, timeout: float = 0.0) -> pa.RecordBatch | None:
        """Return the next records of one partition, or None if none arrive within `timeout` seconds.

        Raises the error of a partition that cannot be read (`OffsetsLost`, `CorruptBatch`, `BrokerError`), or the one
        that ended the membership; `InputError` for an invalid timeout; `OttlaError` if the consumer is closed.
        """
        arguments.check_wait("timeout", timeout)
        portion = self._next(Deadline.after(timeout))
        if portion is None:
            return None
        records = portion.rest()
        self._dispenser.positions.underway = None  # Nothing after this can be interrupted.
        return records

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while not self._stopped:
            portion = self._next(Deadline.after(_NAP))
            if portion is not None:
                records = portion.rest()
                self._dispenser.positions.underway = None
                yield records

    def records(self) -> Iterator[Record]:
        """Iterate over single records. A commit in between includes the records returned so far, the last one too.

        Raises `InputError` if the consumer was created with a selection of columns.
        """
        if not set(COLUMNS) - {"timestampType"} <= set(self._dispenser.columns):
            raise InputError("records() needs all columns: create the consumer without columns=...")
        return self._iterate_records()

    def _iterate_records(self) -> Iterator[Record]:
        positions, monotonic = self._dispenser.positions, time.monotonic
        while not self._stopped:
            portion = self._next(Deadline.after(_NAP))
            if portion is None:
                continue
            received = portion.used
            for record in records_of(portion.rest()):
                received += 1
                portion.used = received  # The positions are computed from this only when needed.
                yield record
                if positions.underway is not portion or portion.used != received:
                    break  # Released, or the program called seek(), or another iterator of it took records.
                if monotonic() >= self._maintain_at and not self._maintain_between(portion):
                    break

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        while not self._stopped:
            portion = await self._async_poll.next()
            if portion is not None:
                records = portion.rest()
                self._dispenser.positions.underway = None
                return records
        raise StopAsyncIteration

    def maintain(self) -> None:
        """Take part in rebalances, without asking for records: for programs that leave long pauses between two polls.

        What was returned last does not count as finished. Raises the error that ended the membership.
        """
        with self._exclusive():
            self._refuse_in_listener("maintain")
            if self._subscription.has_subscribed:
                self._start_fetching()
            if self._subscription.has_subscribed or self._assignment.held:
                self._maintain()
                self._subscription.join()

    def stop(self) -> None:
        """End iterations and `poll` soon, for good. May be called from any thread."""
        self._stopped = True
        self._maintain_at = 0.0
        self._wake()

    # Positions

    def seek(self, partition: TopicPartition, place: Bound, *, timeout: float | None = None) -> None:
        """Continue at `place`: an offset, "earliest", "latest", or the first record at or after a datetime.

        Raises `InputError` for a partition that this consumer does not have.
        """
        bounds.check(place, "place")
        with self._exclusive():
            tp = self._held_partition(partition)
            if isinstance(place, int):
                # An offset belongs to the topic that was read so far, unless the program knows that it was replaced.
                topic_id = None if tp in self._dispenser.replaced else self._dispenser.positions.topic_id(tp)
                self._dispenser.begin(tp, place, topic_id=topic_id)
                return
            deadline = self._deadline(timeout)
            ids = {name: topic.id for name, topic in self._cluster.topics([tp.topic], deadline=deadline).items()}
            offsets = bounds.resolve(self._cluster, [tp], place, isolation=self._isolation, ids=ids, deadline=deadline)
            self._dispenser.begin(tp, offsets[tp], topic_id=ids[tp.topic])

    def position(self, partition: TopicPartition) -> int | None:
        """Return the offset of the next record, None while it is being looked up.

        Raises `InputError` for a partition that this consumer does not have.
        """
        return self._dispenser.positions.handed(self._held_partition(partition))

    def positions(self) -> dict[TopicPartition, int]:
        """Return all known positions, as `Transaction.send_offsets` takes them.

        Omits partitions of a topic that was deleted and created again, until reading continues.
        """
        handed, replaced = self._dispenser.positions.all_handed(), self._dispenser.replaced
        return {tp: committed.offset for tp, committed in handed.items() if tp not in replaced}

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, Committed]:
        """Return what the group has committed for these partitions, or for those of this consumer.

        Raises `ConfigError` without a group.
        """
        requested = self._assignment.held if partitions is None else arguments.partitions(partitions)
        group = GroupMember(self._require_group())
        return fetch_committed(self._cluster, group, requested, deadline=self._deadline(timeout))

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`. The consumer keeps them."""
        with self._exclusive():
            self._dispenser.pause([self._held_partition(tp) for tp in partitions])

    def resume(self, *partitions: TopicPartition) -> None:
        """Continue with these partitions."""
        with self._exclusive():
            self._dispenser.resume([self._held_partition(tp) for tp in partitions])

    @property
    def paused(self) -> Partitions:
        """The paused partitions."""
        return self._dispenser.paused

    # Commits

    def commit(
        self, offsets: Mapping[TopicPartition, int | Committed] | None = None, *, timeout: float | None = None
    ) -> None:
        """Commit `offsets`, or everything returned so far, and block until the group has them.

        Raises `CommitFailed` if the group has moved on without this member, and `ConfigError` without a group.
        """
        with self._exclusive():
            to_commit = self._to_commit(offsets)
            self._commits.commit(to_commit, self._deadline(timeout))
            self._dispenser.positions.committed(to_commit)

    def commit_soon(
        self, offsets: Mapping[TopicPartition, int | Committed] | None = None, *, done: Done | None = None
    ) -> None:
        """Like `commit`, but return at once; `done(offsets, error)` is called on another thread with the outcome."""
        with self._exclusive():
            self._commits.commit_soon(self._to_commit(offsets), done)

    # The end

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Commit what the program finished (with automatic commits), leave the group, and stop all threads.

        Ends a call of this consumer that runs on another thread, and waits for it. Takes at most `timeout` seconds.
        """
        arguments.check_wait("timeout", timeout)
        if self._closed or os.getpid() != self._pid:  # In a forked child, everything belongs to the parent.
            return
        self.stop()
        deadline = Deadline.after(timeout)
        with self._exclusive(deadline), ExitStack() as last:
            self._refuse_in_listener("close")
            self._was_interrupted = False
            last.callback(self._context.close)
            if self._counting is not None:
                last.callback(self._counting.close)
            last.callback(self._background.join, Deadline.after(0.0))
            last.callback(self._fetcher.stop)
            membership = self._subscription.membership
            if membership is not None:
                last.callback(lambda: membership.leave(deadline.remaining()))
            last.callback(self._commits.close, deadline)
            last.callback(self._async_poll.close)
            try:
                self._assignment.lose(self._assignment.held - self._subscription.keeps(self._assignment.held))
                self._assignment.release(self._assignment.held, deadline)
            finally:
                self._closed = True

    # For asyncio: `async with`, and `aclose` is what `contextlib.aclosing` calls.

    async def acommit(
        self, offsets: Mapping[TopicPartition, int | Committed] | None = None, *, timeout: float | None = None
    ) -> None:
        """`commit` of `offsets` for asyncio, on a thread: others may iterate, a cancelled task waits for its end."""
        await self._async_poll.between(lambda: self.commit(offsets, timeout=timeout))

    async def aclose(self, timeout: float = _CLOSE_SECONDS) -> None:
        """`close` for asyncio, on a thread. Ends iterations of other tasks. A cancelled task waits for its end."""
        arguments.check_wait("timeout", timeout)
        if os.getpid() == self._pid:
            self.stop()
        await self._async_poll.between(lambda: self.close(timeout), is_certain=True)

    async def __aenter__(self) -> Consumer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._async_poll.between(lambda: self.__exit__(kind, error, trace), is_certain=True)

    # Inside

    @contextmanager
    def _exclusive(self, deadline: Deadline | None = None) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"this consumer was created in process {self._pid} before fork(); create a new one in the child process"
            )
        self._async_poll.settle(self._cluster.timeouts.total if deadline is None else deadline.remaining())
        try:
            # Inside the try: Ctrl-C may come right after acquire() and before its result is known.
            if not self._in_use.acquire(timeout=0.0 if deadline is None else deadline.remaining()):
                raise OttlaError(
                    "another thread is using this consumer: use one consumer per thread; only stop() may be shared"
                )
            if self._closed:
                raise OttlaError("this consumer is closed")
            if self._was_interrupted and deadline is None:
                self._dispenser.begin_again()
                self._was_interrupted = False
            yield
        except Exception:
            raise
        except BaseException:
            self._was_interrupted = True
            raise
        finally:
            try:  # Inline: Ctrl-C may come at the start of any function of ours.
                self._in_use.release()
            except RuntimeError:
                pass  # This thread did not acquire it.

    def _refuse_in_listener(self, call: str) -> None:
        if self._assignment.is_in_listener:
            raise OttlaError(f"a listener may seek, pause and commit, but not {call}; stop() ends the iteration")

    def _new_counting(self, audit: Audit, client_id: str, fetching: Fetching) -> Counting:
        check_kind("audit", audit, Audit)
        cluster = self._cluster
        publisher = Publisher(audit, cluster.bootstrap, role="consumer", security=cluster.security, client_id=client_id)
        counting = Counting(publisher, self._dispenser.positions, max_batch_bytes=fetching.max_batch_bytes)
        self._dispenser.counting = counting
        return counting

    def _start_fetching(self) -> None:
        if not self._started:
            self._started = True
            self._fetcher.start()

    def _next(self, deadline: Deadline, *, may_be_hurried: bool = False) -> Portion | None:
        """Return the next portion. It stays `underway` until the caller sets that to None."""
        with self._exclusive():
            self._refuse_in_listener("ask for records")
            self._dispenser.positions.mark_done()
            if self._counting is not None:
                self._counting.mark_done()
            if self._subscription.has_subscribed:
                self._start_fetching()
            elif not self._assignment.held:
                raise InputError("this consumer has nothing to read: call subscribe() or assign() first")
            while not self._stopped:
                self._maintain()
                self._subscription.join()
                portion = self._dispenser.next(deadline.sooner(_NAP))
                if portion is not None:
                    return portion
                if deadline.expired() or (may_be_hurried and self._async_poll.is_hurried):
                    break
            return None

    def _poll_ahead(self) -> Portion | None:
        return self._next(Deadline.after(_NAP), may_be_hurried=True)

    def _maintain_between(self, portion: Portion) -> bool:
        """Run maintenance between two records. Returns whether the program may get the rest of the portion."""
        with self._exclusive():
            self._dispenser.positions.mark_done_in(portion)
            if not self._stopped:
                self._maintain()
        return not self._stopped and self._dispenser.positions.underway is portion

    def _maintain(self) -> None:
        """Do everything besides records: rebalances, start positions, automatic commits, new topics."""
        self._background.collect()
        now = time.monotonic()
        self._maintain_at = now + _MAINTENANCE_SECONDS
        membership = self._subscription.membership
        if membership is not None:
            membership.polled()
            self._assignment.follow(membership)
            membership.check()
        self._start_positions.update(self._assignment.held)
        if now >= self._commit_at and self._commit_every is not None:
            self._commit_at = now + self._commit_every
            done = self._dispenser.positions.all_done()
            if done and self._commits.idle:
                self._commits.commit_soon(done, self._background_commit_done)
        self._subscription.match_topics(now)

    def _background_commit_done(self, offsets: Mapping[TopicPartition, Committed], error: OttlaError | None) -> None:
        if error is None:
            self._dispenser.positions.committed(offsets)
        else:
            _log.warning("%s", error)

    def _to_commit(self, offsets: Mapping[TopicPartition, int | Committed] | None) -> dict[TopicPartition, Committed]:
        self._require_group()
        if offsets is None:
            return self._dispenser.positions.all_handed()
        to_commit = {}
        for partition, value in offsets.items():
            tp = arguments.partition(partition)
            committed = value if isinstance(value, Committed) else Committed(value)
            if type(committed.offset) is not int or committed.offset < 0:
                raise InputError(f"invalid offset {value!r} to commit for {tp}: offsets are integers from 0")
            topic_id = committed.topic_id or self._dispenser.positions.topic_id(tp)
            to_commit[tp] = committed._replace(topic_id=topic_id)
        return to_commit

    def _require_group(self) -> str:
        if self.group is None:
            raise ConfigError("this consumer has no group: pass group='...' to commit or to read committed offsets")
        return self.group

    def _held_partition(self, partition: TopicPartition) -> TopicPartition:
        tp = arguments.partition(partition)
        if tp not in self._assignment.held:
            held = ", ".join(map(str, sorted(self._assignment.held))) or "none"
            raise InputError(f"this consumer does not have {tp}; it has {held}")
        return tp

    def _deadline(self, timeout: float | None) -> Deadline:
        if timeout is not None:
            arguments.check_wait("timeout", timeout)
        return self._cluster.deadline(timeout)


_NO_GROUP = "a consumer without a group cannot subscribe: pass group='...', or use assign()"
