"""`Consumer`: records of the partitions that a consumer group gives to this member, as Arrow.

Topics come in; `RecordBatch` values go out as the program asks for them, and offsets go back to the group. Joining,
heartbeats and fetching ahead happen on threads of their own; everything that the program can notice, rebalances
included, happens inside its calls.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from types import TracebackType

import pyarrow as pa

from ottla.admin.committed import Committed, fetch_committed
from ottla.config import PLAINTEXT, Address, Retry, Security, Timeouts, check_kind, check_seconds
from ottla.consume.commits import Commits, Done
from ottla.consume.handing import Handing
from ottla.consume.listening import Listener
from ottla.consume.membership import Membership
from ottla.consume.options import GroupOptions
from ottla.consume.singly import records_of
from ottla.errors import ConfigError, InputError, OttlaError
from ottla.events import Event, Events
from ottla.fetch import places
from ottla.fetch.fetcher import Fetcher, Manner
from ottla.fetch.options import Fetching, OnLost, parse_isolation, parse_on_lost
from ottla.fetch.places import Place
from ottla.model import GroupMember, Isolation, Record, TopicPartition
from ottla.net import Cluster
from ottla.net.checks import check_client
from ottla.net.deadline import Deadline
from ottla.net.errands import Errands
from ottla.wire.decode import COLUMNS, Decoder

_log = logging.getLogger(__name__)
Partitions = frozenset[TopicPartition]
Start = str | datetime
Sink = Callable[[Event], None]

_GROUP_OPTIONS = GroupOptions()
_FETCHING = Fetching()
_LISTENER = Listener()
_NAP = 1.0
"""Seconds between two looks at everything else while no records come."""
_PATTERN_SECONDS = 10.0
"""How often topics are matched with a pattern."""
_CLOSE_SECONDS = 10.0
_REVOKE_SECONDS = 5.0
"""For the commit of partitions that others wait for."""


class Consumer:
    """A member of a consumer group, or a reader of partitions that it names itself (`assign`).

    One thread at a time may use it; `stop` may be called from any. `with` closes it: a block that ends well commits
    all it got (with automatic commits), one that raises all but the records it was working on.
    """

    def __init__(
        self,
        cluster: Cluster | str | Iterable[str | Address],
        *,
        group: str | None = None,
        topics: str | Iterable[str] | re.Pattern[str] = (),
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
        events: Events | Iterable[Sink] = (),
    ) -> None:
        """`start` is where a partition begins of which the group has committed nothing: "earliest", "latest", a
        datetime, or "error". `commit_every` is in seconds; None leaves commits to the program.
        """
        check_client(security=security, timeouts=timeouts, retry=retry, client_id=client_id, events=events)
        check_kind("options", options, GroupOptions)
        check_kind("fetching", fetching, Fetching)
        check_kind("listener", listener, Listener)
        _check(group, start, commit_every)
        self.group = group
        self._start = start
        self._isolation = parse_isolation(isolation)
        self._owns_cluster = not isinstance(cluster, Cluster)
        if isinstance(cluster, Cluster):
            self._cluster = cluster
        else:
            self._cluster = Cluster(cluster, security=security, client_id=client_id, timeouts=timeouts, retry=retry)
        self._owned_events = None if isinstance(events, Events) else Events(*events)
        hub = self._owned_events or events
        assert isinstance(hub, Events)
        manner = Manner(fetching, self._isolation, parse_on_lost(on_lost), math.inf)
        self._fetcher = Fetcher(self._cluster, manner, lane="consume", events=hub)
        self._handing = Handing(self._fetcher, Decoder(_names(columns), max_batch_bytes=fetching.max_batch_bytes))
        self._wake = self._fetcher.shelf.ring
        self._errands = Errands(wake=self._wake, name=client_id)
        self._options = options
        self._membership: Membership | None = None
        self._commits = Commits(self._cluster, member=lambda: self.member, name=group or client_id)
        self._commit_every = commit_every
        self._commit_at = math.inf if commit_every is None else time.monotonic() + commit_every
        self._listener = listener
        self._topics: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._match_at = math.inf
        self._held: Partitions = frozenset()
        self._seen_version = -1
        self._in_use = threading.RLock()
        self._started = self._stopped = self._closed = False
        self._worker: ThreadPoolExecutor | None = None
        self._ahead: Future[pa.RecordBatch | None] | None = None
        if topics:
            self.subscribe(topics)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._handing.positions.came_back()
        try:
            self.close()
        except OttlaError as failed:
            if kind is None:
                raise
            _log.error("%s", failed)  # the program's own error is the one to show

    def __repr__(self) -> str:
        return f"<Consumer of group {self.group}, {len(self._held)} partitions>"

    # What to read

    def subscribe(self, topics: str | Iterable[str] | re.Pattern[str]) -> None:
        """Takes part in the group for these topics, or all whose names match a pattern, instead of those before."""
        if self.group is None:
            raise ConfigError("a consumer without a group cannot subscribe: pass group='...', or use assign()")
        with self._use():
            if self._held and self._membership is None:
                raise InputError("this consumer has partitions by assign(): call assign([]) before it subscribes")
            if isinstance(topics, re.Pattern):
                self._pattern, self._topics = topics, frozenset()
                self._match_at = 0.0
            else:
                self._pattern, self._topics = None, frozenset([topics] if isinstance(topics, str) else topics)
                if "" in self._topics or not all(type(name) is str for name in self._topics):
                    raise InputError(f"topics must be names, got {sorted(map(repr, self._topics))}")
            if self._membership is not None and self._pattern is None:
                self._membership.subscribe(self._topics)

    def assign(self, partitions: Iterable[TopicPartition] | Mapping[TopicPartition, int]) -> None:
        """Reads exactly these, without joining a group; a mapping says from which offsets on."""
        given = dict(partitions) if isinstance(partitions, Mapping) else None
        wanted = frozenset(TopicPartition(*at) for at in partitions)
        if given is not None:
            places.check(given, "assign")
        with self._use():
            if self._topics or self._pattern is not None:
                raise InputError("this consumer has subscribed: a consumer either subscribes or assigns")
            self._begin()
            for at in wanted:
                self._cluster.leader(*at)  # a clear error, now, for a topic or partition that does not exist
            gone = self._held - wanted
            self._let_go(gone)
            self._take(wanted - self._held, given or {})

    @property
    def assignment(self) -> Partitions:
        """The partitions that this consumer has now."""
        return self._held

    @property
    def member(self) -> GroupMember:
        """Who this consumer is in its group, for commits and for `Transaction.send_offsets`."""
        if self._membership is not None:
            return self._membership.member
        return GroupMember(self.group or "")

    # Records

    def poll(self, timeout: float = 0.0) -> pa.RecordBatch | None:
        """The next records of one partition; None when there are none within `timeout` seconds."""
        return self._next(Deadline.after(timeout))

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while not self._stopped:
            records = self._next(Deadline.after(_NAP))
            if records is not None:
                yield records

    def records(self) -> Iterator[Record]:
        """Single records. A commit in between counts those that were handed out, the last one included."""
        if not set(COLUMNS) - {"timestampType"} <= set(self._handing.columns):
            raise InputError("records() needs all columns: make the consumer without columns=...")
        for batch in self:
            at = self._handing.last
            assert at is not None
            end = self._handing.positions.handed(at)
            for record in records_of(batch):
                self._handing.positions.rewind(at, record.offset + 1)
                yield record
                if at not in self._handing.positions or self._handing.positions.handed(at) != record.offset + 1:
                    break  # it was let go of, or the program went elsewhere
            else:
                self._handing.positions.rewind(at, end or 0)

    async def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        import asyncio

        if self._worker is None:
            self._worker = ThreadPoolExecutor(1, thread_name_prefix="ottla-poll")
        while not self._stopped:
            if self._ahead is None:
                self._ahead = self._worker.submit(self._next, Deadline.after(_NAP))
            # A cancelled wait leaves it under way: its records are the first that the next wait gets.
            records = await asyncio.shield(asyncio.wrap_future(self._ahead))
            self._ahead = None
            if records is not None:
                yield records

    def stop(self) -> None:
        """Ends iterations and `poll` soon; from any thread."""
        self._stopped = True
        self._wake()

    # Places

    def seek(self, partition: TopicPartition, place: Place, *, timeout: float | None = None) -> None:
        """Goes on at an offset, "earliest", "latest", or the first record at or after a datetime."""
        places.check(place, "place")
        with self._use():
            at = self._of_mine(partition)
            deadline = Deadline.after(self._cluster.timeouts.total if timeout is None else timeout)
            offset = places.resolve(self._cluster, [at], place, isolation=self._isolation, deadline=deadline)[at]
            self._handing.begin(at, offset)
            self._handing.positions.came_back()

    def position(self, partition: TopicPartition) -> int | None:
        """The offset of the next record that will be handed out; None while that is being found out."""
        return self._handing.positions.handed(self._of_mine(partition))

    def positions(self) -> dict[TopicPartition, int]:
        """The same for all partitions of which it is known; what `Transaction.send_offsets` takes."""
        return {at: told.offset for at, told in self._handing.positions.all_handed().items()}

    def committed(
        self, partitions: Iterable[TopicPartition] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, Committed]:
        """What the group has committed for these partitions, or for those of this consumer."""
        wanted = self._held if partitions is None else [TopicPartition(*at) for at in partitions]
        deadline = Deadline.after(self._cluster.timeouts.total if timeout is None else timeout)
        return fetch_committed(self._cluster, GroupMember(self._named_group()), wanted, deadline=deadline)

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
            deadline = Deadline.after(self._cluster.timeouts.total if timeout is None else timeout)
            self._commits.commit(wanted, deadline)
            self._handing.positions.committed(wanted)

    def commit_soon(
        self, offsets: Mapping[TopicPartition, int | Committed] | None = None, *, done: Done | None = None
    ) -> None:
        """Like `commit`, but returns at once; `done(offsets, error)` is called on another thread when it is decided."""
        with self._use():
            self._commits.commit_soon(self._to_commit(offsets), done)

    # The end

    def close(self, timeout: float = _CLOSE_SECONDS) -> None:
        """Commits (if commits are automatic) what the program was through with, leaves the group, ends all threads."""
        if self._closed:
            return
        self.stop()
        deadline = Deadline.after(timeout)
        if self._worker is not None:
            self._worker.shutdown(wait=True, cancel_futures=True)
        with self._use():
            self._closed = True
            try:
                if self._commit_every is not None and self.group is not None:
                    self._commit_done(self._handing.positions.all_done(), deadline)
                self._commits.close(deadline)
            finally:
                if self._membership is not None:
                    self._membership.leave(deadline.remaining())
                self._fetcher.stop()
                self._errands.join(Deadline.after(0.0))
                if self._owns_cluster:
                    self._cluster.close()
                if self._owned_events is not None:
                    self._owned_events.close()

    # Inside

    @contextmanager
    def _use(self) -> Iterator[None]:
        if not self._in_use.acquire(blocking=False):
            raise OttlaError(
                "another thread is using this consumer: make one for each thread; only stop() may be shared"
            )
        try:
            if self._closed:
                raise OttlaError("this consumer is closed")
            yield
        finally:
            self._in_use.release()

    def _begin(self) -> None:
        if not self._started:
            self._started = True
            self._fetcher.start()

    def _join(self) -> None:
        if self._membership is not None or not (self._topics or self._pattern):
            return
        self._begin()
        for name in self._topics:
            self._cluster.topic(name)  # a misspelt name is told at once
        self._membership = Membership(self._cluster, self._named_group(), options=self._options, changed=self._wake)
        self._membership.subscribe(self._topics)
        self._membership.polled()
        self._membership.start()

    def _next(self, deadline: Deadline) -> pa.RecordBatch | None:
        with self._use():
            self._handing.positions.came_back()
            self._join()
            if self._membership is None and not self._held:
                raise InputError("this consumer has nothing to read: subscribe to topics, or assign partitions")
            while not self._stopped:
                self._tend()
                records = self._handing.next(deadline.sooner(_NAP))
                if records is not None:
                    return records
                if deadline.expired():
                    break
            return None

    def _tend(self) -> None:
        """Everything besides records: what the group wants, automatic commits, new topics."""
        self._errands.collect()
        now = time.monotonic()
        if self._membership is not None:
            self._membership.polled()
            self._membership.check()
            self._follow(self._membership)
        if now >= self._commit_at and self.group is not None:
            self._commit_at = now + (self._commit_every or 0.0)
            done = self._handing.positions.all_done()
            if done and self._commits.idle:
                self._commits.commit_soon(done, self._noted)
        if now >= self._match_at and self._pattern is not None:
            self._match_at = now + _PATTERN_SECONDS
            self._match(self._pattern)

    def _follow(self, membership: Membership) -> None:
        wanted = membership.wanted()
        if wanted.version == self._seen_version:
            return
        self._seen_version = wanted.version
        lost = wanted.lost & self._held
        if lost:
            self._handing.forget(lost)
            self._held -= lost
            self._listener.lost(self, lost)
        self._let_go(self._held - wanted.partitions)
        membership.holding(self._held)
        new = wanted.partitions - self._held
        if new:
            self._take(new, {})
            membership.holding(self._held)

    def _let_go(self, gone: Partitions) -> None:
        if not gone:
            return
        self._handing.stop(gone)
        if self._commit_every is not None and self.group is not None:
            done = {at: told for at, told in self._handing.positions.all_done().items() if at in gone}
            self._commit_done(done, Deadline.after(_REVOKE_SECONDS))
        self._listener.revoked(self, gone)
        self._handing.forget(gone)
        self._held -= gone

    def _take(self, new: Partitions, given: Mapping[TopicPartition, int]) -> None:
        self._held |= new
        for at, offset in given.items():
            if at in self._held:
                self._handing.begin(at, offset)
        if new:
            self._listener.assigned(self, new)
        self._find_places(frozenset(at for at in new if at not in self._handing.positions))

    def _find_places(self, new: Partitions) -> None:
        """Where the group is in these partitions; asked beside the program, which may get others' records meanwhile."""
        if not new:
            return

        def done(found: dict[TopicPartition, Committed]) -> None:
            for at, told in found.items():
                if at in self._held and at not in self._handing.positions:
                    known = told.offset if told.metadata is not _NOT_COMMITTED else -1
                    self._handing.begin(at, told.offset, epoch=told.leader_epoch, committed=known)

        def failed(error: OttlaError) -> None:
            if isinstance(error, InputError):
                raise error
            _log.warning("where to begin could not be found out, and is tried again: %s", error)
            self._find_places(frozenset(at for at in new if at in self._held and at not in self._handing.positions))

        self._errands.run(
            ("places", new, time.monotonic()), lambda: self._committed_or_start(new), done=done, failed=failed
        )

    def _committed_or_start(self, new: Partitions) -> dict[TopicPartition, Committed]:
        deadline = Deadline.after(self._cluster.timeouts.total)
        found: dict[TopicPartition, Committed] = {}
        if self.group is not None:
            found = fetch_committed(
                self._cluster, self.member, new, isolation=Isolation.READ_COMMITTED, deadline=deadline
            )
        missing = [at for at in new if at not in found]
        if missing and self._start == "error":
            names = ", ".join(map(str, sorted(missing)))
            raise InputError(f"group {self.group} has committed nothing for {names}, and start is 'error'")
        if missing:
            begun = places.resolve(self._cluster, missing, self._start, isolation=self._isolation, deadline=deadline)
            found |= {at: Committed(offset, metadata=_NOT_COMMITTED) for at, offset in begun.items()}
        return found

    def _match(self, pattern: re.Pattern[str]) -> None:
        def done(names: frozenset[str]) -> None:
            if pattern is self._pattern and names != self._topics and self._membership is not None:
                self._topics = names
                self._membership.subscribe(names)

        def failed(error: OttlaError) -> None:
            _log.warning("topics could not be matched with %s: %s", pattern.pattern, error)

        def look() -> frozenset[str]:
            metadata = self._cluster.metadata(None)
            return frozenset(n for n, t in metadata.topics.items() if not t.internal and pattern.fullmatch(n))

        self._errands.run("match", look, done=done, failed=failed)

    def _commit_done(self, offsets: Mapping[TopicPartition, Committed], deadline: Deadline) -> None:
        """An automatic commit that somebody waits for; when it fails, those records are read again by others."""
        try:
            self._commits.commit(offsets, deadline)
            self._handing.positions.committed(offsets)
        except OttlaError as error:
            _log.warning("%s", error)

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
        for at, told in offsets.items():
            one = told if isinstance(told, Committed) else Committed(told)
            if type(one.offset) is not int or one.offset < 0:
                raise InputError(f"the offset to commit for {at} is {told!r}; offsets are whole numbers from 0")
            wanted[TopicPartition(*at)] = one
        return wanted

    def _named_group(self) -> str:
        if self.group is None:
            raise ConfigError("this consumer has no group: pass group='...' to commit or to ask for commits")
        return self.group

    def _of_mine(self, partition: TopicPartition) -> TopicPartition:
        at = TopicPartition(*partition)
        if at not in self._held:
            mine = ", ".join(map(str, sorted(self._held))) or "none"
            raise InputError(f"{at} is not a partition of this consumer; it has {mine}")
        return at


_NOT_COMMITTED = "\0start"


def _names(columns: Collection[str]) -> Collection[str]:
    return [columns] if isinstance(columns, str) else columns


def _check(group: object, start: object, commit_every: object) -> None:
    if group is not None and (not isinstance(group, str) or not group):
        raise ConfigError(f"group must be a name, got {group!r}")
    if start != "error":
        if not isinstance(start, str | datetime):
            raise InputError(f"start is {start!r}; accepted are 'earliest', 'latest', 'error' and a datetime")
        places.check(start, "start")
    if commit_every is not None:
        check_seconds("Consumer", "commit_every", commit_every, lowest=0.001)
