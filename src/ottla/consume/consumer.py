"""`Consumer`: records of the partitions that a consumer group gives to this member, as Arrow.

Topics come in; `RecordBatch` values go out as the program asks for them, and offsets go back to the group. Joining,
heartbeats and fetching ahead happen on threads of their own; everything that the program can notice, rebalances
included, happens inside its calls.
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
from ottla.wire.decode import COLUMNS, Decoder

_log = logging.getLogger(__name__)
Partitions = frozenset[TopicPartition]

_GROUP_OPTIONS = GroupOptions()
_FETCHING = Fetching()
_LISTENER = Listener()
_NAP = 1.0
"""Seconds between two looks at everything else while no records come."""
_TEND_SECONDS = 0.2
"""The same while records are handed out one by one."""
_CLOSE_SECONDS = 10.0
_INTERRUPTED_SECONDS = 1.0
"""To close after Ctrl-C."""


class Consumer:
    """A member of a consumer group, or a reader of partitions that it names itself (`assign`).

    One thread at a time may use it; `stop` may be called from any. `with` closes it: a block that ends well commits
    all it got (with automatic commits), one that raises all but the records it was working on.
    """

    def __init__(
        self,
        cluster: Addresses,
        *,
        group: str | None = None,
        topics: Topics = (),
        start: Start = "earliest",
        commit_every: float | None = 5.0,
        columns: Collection[str] = COLUMNS,
        listener: Listener = _LISTENER,
        options: GroupOptions = _GROUP_OPTIONS,
        fetching: Fetching = _FETCHING,
        isolation: Isolation | str = Isolation.READ_UNCOMMITTED,
        on_lost: OnLost | str = OnLost.ERROR,
        security: Security = PLAINTEXT,
        client_id: str = "ottla-consumer",
        timeouts: Timeouts | None = None,
        retry: Retry | None = None,
        events: Sinks = (),
    ) -> None:
        """`start` is where a partition begins of which the group has committed nothing: "earliest", "latest", a
        datetime, or "error". `commit_every` is in seconds; None leaves commits to the program.
        """
        check_kind("options", options, GroupOptions)
        check_kind("fetching", fetching, Fetching)
        check_kind("listener", listener, Listener)
        arguments.check_settings(group, start, commit_every)
        wanted = arguments.topic_names(topics)
        if wanted and group is None:
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
        self._handing = Dispenser(self._fetcher, decoder, self._context.events)
        self._wake = self._fetcher.ring
        self._errands = BackgroundTasks(wake=self._wake, name=client_id)
        self._subscription = Subscription(
            self._cluster, group, options=options, errands=self._errands, changed=self._wake
        )
        self._commits = Commits(
            self._cluster,
            member=lambda: self._subscription.member,
            keeps=self._subscription.keeps,
            name=group or client_id,
        )
        self._beginnings = StartPositions(
            self._cluster,
            self._handing,
            errands=self._errands,
            member=None if group is None else lambda: self._subscription.member,
            start=start,
            isolation=self._isolation,
        )
        self._commit_every = None if group is None else commit_every
        self._commit_at = math.inf if self._commit_every is None else time.monotonic() + self._commit_every
        self._share = Assignment(
            self,
            listener=listener,
            handing=self._handing,
            commits=self._commits,
            beginnings=self._beginnings,
            commits_done=self._commit_every is not None,
        )
        self._tend_at = 0.0
        self._in_use = threading.RLock()
        self._pid = os.getpid()
        self._started = self._stopped = self._closed = self._hurried = False
        self._is_shaken = False
        """Ctrl-C came in the middle of something."""
        self._awaiting = AsyncPoll(self._poll_ahead, hurry=self._hurry)
        if wanted:
            self.subscribe(wanted)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._handing.positions.came_back()
        try:
            self.close(_INTERRUPTED_SECONDS if kind is KeyboardInterrupt else _CLOSE_SECONDS)
        except Exception as failed:
            if kind is None:
                raise
            _log.error("%s", failed)  # the program's own error is the one to show

    def __repr__(self) -> str:
        return f"<Consumer of group {self.group}, {len(self._share.held)} partitions>"

    # What to read

    def subscribe(self, topics: Topics) -> None:
        """Takes part in the group for these topics, or all whose names match a pattern, instead of those before."""
        wanted = arguments.topic_names(topics)
        if self.group is None:
            raise ConfigError(_NO_GROUP)
        with self._use():
            if self._share.held and self._subscription.membership is None:
                raise InputError("this consumer has partitions by assign(): call assign([]) before it subscribes")
            self._subscription.want(wanted)

    def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Reads exactly these, without joining a group; a mapping says from which offsets on."""
        wanted = arguments.partitions(partitions)
        given: dict[TopicPartition, int] = {}
        if isinstance(partitions, Mapping):
            bounds.check(partitions, "assign")
            given = {arguments.partition(at): offset for at, offset in partitions.items()}
        with self._use():
            self._refuse_in_listener("assign")
            if self._subscription.is_there:
                raise InputError("this consumer has subscribed: a consumer either subscribes or assigns")
            for at in wanted:
                self._cluster.leader(*at)  # a clear error, now, for a topic or partition that does not exist
            self._begin()
            self._share.let_go(self._share.held - wanted)
            self._share.take(wanted - self._share.held, given)

    @property
    def assignment(self) -> Partitions:
        """The partitions that this consumer has now."""
        return self._share.held

    @property
    def member(self) -> GroupMember:
        """Who this consumer is in its group, for `Transaction.send_offsets`.

        Raises CommitFailed when partitions were lost of which it may still have records in work: under its new name,
        their offsets would be taken although another member may be further by now. The same when a topic was deleted
        and created again: a transaction names topics, and would commit the old one's offsets for the new one.
        """
        self._named_group()
        member = self._subscription.member  # before the look at what is kept, as in `Commits`
        lost = self._share.held - self._subscription.keeps(self._share.held)
        if lost:
            raise CommitFailed(member.group, tuple(map(str, sorted(lost))), NOT_OURS)
        positions = self._handing.positions
        ids = {at: positions.topic_id(at) for at in self._share.held - self._handing.replaced}
        try:
            refuse_replaced(self._cluster, ids, deadline=self._deadline(None))
        except TopicCreatedAgain as error:
            raise of_another_topic(member.group, error.partitions) from None
        return member

    # Records

    def poll(self, timeout: float = 0.0) -> pa.RecordBatch | None:
        """The next records of one partition; None when there are none within `timeout` seconds."""
        arguments.check_wait("timeout", timeout)
        portion = self._next(Deadline.after(timeout))
        if portion is None:
            return None
        records = portion.rest()
        self._handing.positions.underway = None  # nothing after this can be interrupted
        return records

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while not self._stopped:
            portion = self._next(Deadline.after(_NAP))
            if portion is not None:
                records = portion.rest()
                self._handing.positions.underway = None
                yield records

    def records(self) -> Iterator[Record]:
        """Single records. A commit in between counts those that were handed out, the last one included."""
        if not set(COLUMNS) - {"timestampType"} <= set(self._handing.columns):
            raise InputError("records() needs all columns: make the consumer without columns=...")
        return self._singly()

    def _singly(self) -> Iterator[Record]:
        positions, monotonic = self._handing.positions, time.monotonic
        while not self._stopped:
            portion = self._next(Deadline.after(_NAP))
            if portion is None:
                continue
            for record in records_of(portion.rest()):
                portion.used += 1  # all else that has to be known of a record is worked out when somebody asks
                yield record
                if positions.underway is not portion:
                    break  # it was let go of, or the program went elsewhere
                if monotonic() >= self._tend_at and not self._tend_between(portion):
                    break

    def __aiter__(self) -> Consumer:
        return self

    async def __anext__(self) -> pa.RecordBatch:
        while not self._stopped:
            portion = await self._awaiting.next()
            if portion is not None:
                records = portion.rest()
                self._handing.positions.underway = None
                return records
        raise StopAsyncIteration

    def stop(self) -> None:
        """Ends iterations and `poll` soon; from any thread, and for good."""
        self._stopped = True
        self._tend_at = 0.0
        self._wake()

    # Places

    def seek(self, partition: TopicPartition, place: Bound, *, timeout: float | None = None) -> None:
        """Goes on at an offset, "earliest", "latest", or the first record at or after a datetime."""
        bounds.check(place, "place")
        with self._use():
            at = self._of_mine(partition)
            if isinstance(place, int):
                # An offset is of the topic that was read so far, unless the program knows already that it is gone.
                topic_id = None if at in self._handing.replaced else self._handing.positions.topic_id(at)
                self._handing.begin(at, place, topic_id=topic_id)
                return
            deadline = self._deadline(timeout)
            ids = {name: topic.id for name, topic in self._cluster.topics([at.topic], deadline=deadline).items()}
            found = bounds.resolve(self._cluster, [at], place, isolation=self._isolation, ids=ids, deadline=deadline)
            self._handing.begin(at, found[at], topic_id=ids[at.topic])

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record that will be handed out; None while that is being found out."""
        return self._handing.positions.handed(self._of_mine(partition))

    def positions(self) -> dict[TopicPartition, int]:
        """The same for all partitions of which it is known; what `Transaction.send_offsets` takes.

        Partitions of a topic that was found deleted and created again have none, until it is read on.
        """
        handed, replaced = self._handing.positions.all_handed(), self._handing.replaced
        return {at: told.offset for at, told in handed.items() if at not in replaced}

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, Committed]:
        """What the group has committed for these partitions, or for those of this consumer."""
        wanted = self._share.held if partitions is None else arguments.partitions(partitions)
        group = GroupMember(self._named_group())
        return fetch_committed(self._cluster, group, wanted, deadline=self._deadline(timeout))

    def pause(self, *partitions: TopicPartition) -> None:
        """Hands out nothing of these until `resume`; they stay this consumer's."""
        with self._use():
            self._handing.pause([self._of_mine(at) for at in partitions])

    def resume(self, *partitions: TopicPartition) -> None:
        """Goes on with these."""
        with self._use():
            self._handing.resume([self._of_mine(at) for at in partitions])

    @property
    def paused(self) -> Partitions:
        """What is paused."""
        return self._handing.paused

    # Commits

    def commit(
        self, offsets: Mapping[TopicPartition, int | Committed] | None = None, *, timeout: float | None = None
    ) -> None:
        """Commits what was handed out so far, or these offsets, and returns when the group has them.

        Raises CommitFailed when the group has moved on without this member.
        """
        with self._use():
            wanted = self._to_commit(offsets)
            self._commits.commit(wanted, self._deadline(timeout))
            self._handing.positions.committed(wanted)

    def commit_soon(
        self, offsets: Mapping[TopicPartition, int | Committed] | None = None, *, done: Done | None = None
    ) -> None:
        """Like `commit`, but returns at once; `done(offsets, error)` is called on another thread when it is decided."""
        with self._use():
            self._commits.commit_soon(self._to_commit(offsets), done)

    # The end

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Commits (if commits are automatic) what the program was through with, leaves the group, ends all threads.

        Waits for another thread that is in a call of this consumer, and ends that call.
        """
        arguments.check_wait("timeout", timeout)
        if self._closed or os.getpid() != self._pid:  # what a forked child has is its parent's
            return
        self.stop()
        deadline = Deadline.after(timeout)
        with self._use(deadline), ExitStack() as last:
            self._refuse_in_listener("close")
            self._is_shaken = False
            last.callback(self._context.close)
            last.callback(self._errands.join, Deadline.after(0.0))
            last.callback(self._fetcher.stop)
            membership = self._subscription.membership
            if membership is not None:
                last.callback(lambda: membership.leave(deadline.remaining()))
            last.callback(self._commits.close, deadline)
            last.callback(self._awaiting.close)
            try:
                self._share.lose(self._share.held - self._subscription.keeps(self._share.held))
                self._share.let_go(self._share.held, deadline)
            finally:
                self._closed = True

    # Inside

    @contextmanager
    def _use(self, deadline: Deadline | None = None) -> Iterator[None]:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"this consumer was made in process {self._pid} before fork(); make one of its own in the child"
            )
        self._awaiting.settle(self._cluster.timeouts.total if deadline is None else deadline.remaining())
        try:
            # Inside, because Ctrl-C may come when it is acquired and nobody has heard of it.
            if not self._in_use.acquire(timeout=0.0 if deadline is None else deadline.remaining()):
                raise OttlaError(
                    "another thread is using this consumer: make one for each thread; only stop() may be shared"
                )
            if self._closed:
                raise OttlaError("this consumer is closed")
            if self._is_shaken and deadline is None:
                self._handing.begin_again()
                self._is_shaken = False
            yield
        except Exception:
            raise
        except BaseException:
            self._is_shaken = True
            raise
        finally:
            try:  # in place: Ctrl-C may come at the beginning of a function of ours
                self._in_use.release()
            except RuntimeError:
                pass  # this thread did not get it

    def _refuse_in_listener(self, call: str) -> None:
        if self._share.is_telling:
            raise OttlaError(f"a listener may seek, pause and commit, but not {call}; stop() ends the iteration")

    def _begin(self) -> None:
        if not self._started:
            self._started = True
            self._fetcher.start()

    def _next(self, deadline: Deadline) -> Portion | None:
        """What comes is `underway` until the caller says that it has got there."""
        with self._use():
            self._refuse_in_listener("ask for records")
            self._handing.positions.came_back()
            if self._subscription.is_there:
                self._begin()
            elif not self._share.held:
                raise InputError("this consumer has nothing to read: subscribe to topics, or assign partitions")
            while not (self._stopped or self._hurried):
                self._tend()
                self._subscription.join()
                portion = self._handing.next(deadline.sooner(_NAP))
                if portion is not None:
                    return portion
                if deadline.expired():
                    break
            return None

    def _poll_ahead(self) -> Portion | None:
        self._hurried = False
        return self._next(Deadline.after(_NAP))

    def _hurry(self) -> None:
        self._hurried = True
        self._wake()

    def _tend_between(self, portion: Portion) -> bool:
        """Whether the program is to get the rest of the portion."""
        with self._use():
            self._handing.positions.came_back_in(portion)
            if not self._stopped:
                self._tend()
        return not self._stopped and self._handing.positions.underway is portion

    def _tend(self) -> None:
        """Everything besides records: what the group wants, automatic commits, new topics."""
        self._errands.collect()
        now = time.monotonic()
        self._tend_at = now + _TEND_SECONDS
        membership = self._subscription.membership
        if membership is not None:
            membership.polled()
            self._share.follow(membership)
            membership.check()
        self._beginnings.look(self._share.held)
        if now >= self._commit_at and self._commit_every is not None:
            self._commit_at = now + self._commit_every
            done = self._handing.positions.all_done()
            if done and self._commits.idle:
                self._commits.commit_soon(done, self._noted)
        self._subscription.look(now)

    def _noted(self, offsets: Mapping[TopicPartition, Committed], error: OttlaError | None) -> None:
        if error is None:
            self._handing.positions.committed(offsets)
        else:
            _log.warning("%s", error)

    def _to_commit(self, offsets: Mapping[TopicPartition, int | Committed] | None) -> dict[TopicPartition, Committed]:
        self._named_group()
        if offsets is None:
            return self._handing.positions.all_handed()
        wanted = {}
        for given, told in offsets.items():
            at = arguments.partition(given)
            one = told if isinstance(told, Committed) else Committed(told)
            if type(one.offset) is not int or one.offset < 0:
                raise InputError(f"the offset to commit for {at} is {told!r}; offsets are whole numbers from 0")
            wanted[at] = one._replace(topic_id=one.topic_id or self._handing.positions.topic_id(at))
        return wanted

    def _named_group(self) -> str:
        if self.group is None:
            raise ConfigError("this consumer has no group: pass group='...' to commit or to ask for commits")
        return self.group

    def _of_mine(self, partition: TopicPartition) -> TopicPartition:
        at = arguments.partition(partition)
        if at not in self._share.held:
            mine = ", ".join(map(str, sorted(self._share.held))) or "none"
            raise InputError(f"{at} is not a partition of this consumer; it has {mine}")
        return at

    def _deadline(self, timeout: float | None) -> Deadline:
        if timeout is not None:
            arguments.check_wait("timeout", timeout)
        return Deadline.after(self._cluster.timeouts.total if timeout is None else timeout)


_NO_GROUP = "a consumer without a group cannot subscribe: pass group='...', or use assign()"
