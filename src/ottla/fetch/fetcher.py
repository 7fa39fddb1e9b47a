"""Fetches ahead: sends Fetch requests to the leaders of all cursors and puts the responses into the buffer.

Cursors come in, pieces go into the buffer, within its memory limit and in the order of each partition. It is the actor
of a loop (`net/loop.py`) and never blocks: connecting, metadata and offset lookups are background tasks. It does not
decode records.
"""

from __future__ import annotations

import itertools
import math
import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ottla.errors import BrokerError, CorruptBatch, ErrorCode, OttlaError, WireError
from ottla.events import Events
from ottla.fetch.buffer import FetchBuffer
from ottla.fetch.cursor import Cursor, Diverged, Failed, Item, OutOfRange, Piece, ResponseMemory, fetchable
from ottla.fetch.leaders import Leaders
from ottla.fetch.options import FetchPolicy
from ottla.fetch.recovery import Recovery
from ottla.fetch.session import Session
from ottla.model import Isolation, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.net.frames import Buffers
from ottla.net.links import Link
from ottla.net.loop import Answer, Loop
from ottla.net.metadata import Metadata
from ottla.net.refresh import MetadataRefresh
from ottla.wire import fetch
from ottla.wire.scan import Batches, scan

if TYPE_CHECKING:
    from ottla.events import RangeLost

_LEAST_BYTES = 1 << 16
"""A request for less is not worth it, unless the buffer is empty."""
_LEAST_PER_PARTITION = 1 << 20
"""A broker omits a partition whose next batch is larger than this limit, unless it is the first of the request."""
_DECODING_BYTES = 24 << 20
"""The part of the memory that is set aside for decoded columns, including those that the program still holds."""
_GROWTH_SECONDS = 30.0
"""How often to look for new partitions."""
_BULK_BYTES = 1 << 16
"""The size of a response from which on decoding is worth another thread."""
_SCANNED_BYTES = 1 << 14
"""The size of a response from which on a kernel finds its batches."""
_STOP_SECONDS = 5.0
_TASK_SECONDS = 0.5
"""How long to wait for background tasks at the end. Connecting to a dead machine would take longer."""
_TOPIC_ID = operator.attrgetter("topic_id")
_UNKNOWN_TOPIC = frozenset(
    {ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id}
)


class _Request:
    """One Fetch request in flight."""

    __slots__ = ("cursors", "generations", "reserved", "session", "version")

    def __init__(self, cursors: list[Cursor], session: Session, *, reserved: int, version: int) -> None:
        self.cursors = cursors
        self.generations = [cursor.generation for cursor in cursors]
        self.session = session
        self.reserved = reserved
        self.version = version


class Fetcher:
    """Fetches from `start` to `stop`. `channel` names its connections."""

    def __init__(
        self,
        cluster: Cluster,
        policy: FetchPolicy,
        *,
        channel: str,
        events: Events,
        buffers: Buffers | None = None,
        report_loss: Callable[[RangeLost], None] | None = None,
    ) -> None:
        self.channel = channel
        self._cluster = cluster
        self._policy = policy
        self._loop: Loop[_Request] = Loop(
            cluster, channel=channel, name=f"ottla-{channel}", most_requests=1, events=events
        )
        memory = policy.fetching.memory_bytes
        self.buffers = Buffers(memory // 2) if buffers is None else buffers
        self.buffer = FetchBuffer(memory - min(_DECODING_BYTES, memory // 2), room=self._loop.wakeup.ring)
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._topics: frozenset[str] = frozenset()
        """The topics of the cursors."""
        self._turns: deque[Cursor] = deque()
        """The cursors in the order of the next requests: those that got records move to the end."""
        self._recovery = Recovery(
            cluster,
            policy,
            background=self._loop.background,
            events=events,
            chance=self._loop.chance,
            report_loss=report_loss,
        )
        self._leaders = Leaders(self._new_refresh())
        self._sessions: dict[int, Session] = {}
        """Fetch sessions by broker id."""
        self._full_since = math.inf
        """Since when the buffer is full, so that no request is sent."""
        self._all_fetched: Callable[[], None] | None = None
        self._ended: Callable[[], None] | None = None
        self._is_bulk = False
        """Whether the last piece that was taken was large: then two threads fetch and decode at the same time."""

    # Any thread

    def start(self) -> None:
        """Start fetching."""
        self._loop.start(self)

    def stop(self) -> None:
        """Stop fetching and drop what is in the buffer."""
        self._loop.stop(self, Deadline.after(_STOP_SECONDS))
        self.buffer.clear()

    def stop_soon(self, ended: Callable[[], None]) -> None:
        """Stop fetching, without waiting for it. Then the loop's thread calls `ended`. Finalizers may call it."""
        self._ended = ended
        self._loop.stop_soon()

    def add(self, cursors: Iterable[Cursor]) -> None:
        """Read these cursors from now on."""
        new = list(cursors)
        self._loop.call(lambda: self._add(new))

    def tell_when_fetched(self, tell: Callable[[], None]) -> None:
        """Calls `tell` once, on the loop's thread, when the brokers have sent everything."""

        def begin() -> None:
            self._all_fetched = tell
            self._tell_if_all_fetched()

        self._loop.call(begin)

    def follow(self, topics: Iterable[str]) -> None:
        """Also read partitions that are added to these topics later, from their start."""
        followed = frozenset(topics)
        self._loop.call(lambda: self._leaders.follow(followed, time.monotonic()))

    def remove(self, cursors: Iterable[Cursor]) -> None:
        """Stop reading these cursors. Nothing of them is handed out from this moment on."""
        removed = list(cursors)
        for cursor in removed:
            cursor.open = False
        self._loop.call(lambda: self._remove(removed))

    def resume(self, cursor: Cursor) -> None:
        """Continue a paused cursor."""
        cursor.paused = False
        self.ring()

    def ring(self) -> None:
        """Wake a reader that waits, without an item. Signal handlers may call it."""
        self.buffer.ring()
        self._loop.wakeup.ring()

    def wait(self, deadline: Deadline) -> None:
        """Block until `take` has something, `ring` was called, or the deadline passes. Only one thread at a time.

        The waiting thread drives the loop meanwhile, so that an arriving record need not wake another thread.
        """
        while not (self.buffer.is_ready() or deadline.expired()):
            if self._is_bulk or self._loop.is_stopping:
                self.buffer.wait(deadline)
            else:
                self._loop.drive(self, self.buffer.is_ready, deadline)

    def take(self) -> Piece | Failed | None:
        """Take the first item of the buffer. None if there is none, or `ring` was called."""
        item = self.buffer.take()
        if isinstance(item, Piece):
            self._is_bulk = item.memory.size_bytes >= _BULK_BYTES
            if self._is_bulk:
                self._loop.hand_over()
        return item

    def abandon(self) -> None:
        """Forget the pieces that an interrupted reader has taken."""
        self.buffer.abandon()
        self._loop.call(self.buffer.recount)

    def check(self) -> None:
        """Raises `OttlaError` if the loop has crashed, and as `Cluster.check_usable` does."""
        self._cluster.check_usable()
        if self._loop.has_stopped:
            raise OttlaError("the fetching thread has ended; see the log for the reason")

    # The actor

    def begin(self) -> None:
        """Do nothing: requests are sent in turns (`Actor.begin`)."""

    def turn(self, now: float) -> float:
        """Receive responses, send requests and fill the buffer (`Actor.turn`)."""
        items: list[Item] = []
        for answer in self._loop.answers():
            items += self._receive(answer, now)
            del answer  # it keeps the memory of all its pieces alive
        items += self._recovery.results()
        for result in self._loop.lookups.done():
            if result.metadata is not None:
                self._learn(result.metadata, now)
            elif result.error is not None:
                self._leaders.refresh.failed(result.lookup, result.error, now)
                self._back_off_without_leader(result.lookup.topics, result.error, now)
        for link in self._loop.links.changed():
            self._link_changed(link, now)
        if (lookup := self._leaders.due(now, self._topics)) is not None:
            self._loop.lookups.run(lookup)
        hand_out_first = self._loop.is_mine and _is_small(items)
        if not hand_out_first:
            items += self._send_requests(now)
        if self._full_since == math.inf:
            items += self._recovery.give_up(self._cursors.values(), now)
        # After the requests: a reader that wakes up takes the interpreter lock away from them.
        for item in items:
            self.buffer.put(item)
        if hand_out_first:
            return now
        resumes = (cursor.resume_at for cursor in self._cursors.values() if cursor.resume_at > now)
        return min((*resumes, self._loop.links.next_at(now), self._leaders.next_at(self._topics)))

    def recover(self) -> None:
        """Restart every cursor at its checkpoint (`Actor.recover`)."""
        self.buffer.recover()
        self._recovery.forget()
        self._leaders = Leaders(self._new_refresh(), self._leaders.followed)
        self._leaders.refresh.mark_fresh(time.monotonic())
        self._turns = deque(self._cursors.values())
        self._topics = frozenset(tp.topic for tp in self._cursors)
        self._full_since = math.inf
        for session in self._sessions.values():
            session.reset()
        for cursor in self._turns:
            cursor.restart()
            self._set_leader(cursor)

    def end(self, error: OttlaError | None) -> None:
        """Fail the cursors if the loop crashed, and release connections and memory (`Actor.end`)."""
        if error is not None:
            for cursor in self._cursors.values():
                self.buffer.put(Failed(cursor, error))
        for link in self._loop.links:
            if link.connection is not None:
                link.connection.use_buffers(Buffers())
                if link.requests:  # its response would reach the next reader; an idle connection is reused
                    link.connection.close()
        self._loop.background.join(Deadline.after(_TASK_SECONDS))
        if self._ended is not None:
            self.buffer.clear()
            self._ended()

    def _new_refresh(self) -> MetadataRefresh:
        timeouts = self._cluster.timeouts
        refresh_seconds = min(_GROWTH_SECONDS, timeouts.metadata_age)
        return MetadataRefresh(
            self._cluster.retry, self._loop.chance, longest=timeouts.request, refresh_seconds=refresh_seconds
        )

    # Cursors

    def _add(self, cursors: list[Cursor]) -> None:
        for cursor in cursors:
            before = self._cursors.get(cursor.tp)
            if before is cursor:
                continue  # the command was interrupted and is called again
            if before is not None:
                self._remove([before])
            self._cursors[cursor.tp] = cursor
            self._turns.append(cursor)
            self._set_leader(cursor)
        self._topics |= {cursor.tp.topic for cursor in cursors}

    def _remove(self, cursors: list[Cursor]) -> None:
        self.buffer.discard(cursors)
        for cursor in cursors:
            cursor.open = False
            if self._cursors.get(cursor.tp) is cursor:
                del self._cursors[cursor.tp]
        self._turns = deque(cursor for cursor in self._turns if cursor.open)
        self._topics = frozenset(tp.topic for tp in self._cursors)

    # Leaders

    def _set_leader(self, cursor: Cursor) -> None:
        """Set the leader from cached metadata. If it is unknown, it is looked up."""
        if self._leaders.learn(cursor, self._cluster.known).is_other:
            self._recovery.check_replaced(cursor)

    def _learn(self, metadata: Metadata, now: float) -> None:
        self._leaders.refresh.learned(now)
        self._add(self._leaders.newcomers(metadata, self._cursors))
        missing: dict[str, OttlaError] = {}
        for cursor in list(self._cursors.values()):
            if cursor.tp.topic not in metadata.topics:
                continue
            error, is_other = self._leaders.learn(cursor, metadata)
            if is_other:
                self._recovery.check_replaced(cursor)
            if error is not None:
                missing[cursor.tp.topic] = error
        if missing:
            self._leaders.refresh.look_again(missing, now)
        for topic, error in missing.items():
            self._back_off_without_leader({topic}, error, now)

    def _back_off_without_leader(self, topics: Iterable[str], error: OttlaError, now: float) -> None:
        for cursor in self._cursors.values():
            if cursor.tp.topic in topics and cursor.leader < 0:
                self._recovery.back_off(cursor, error, now)

    def _link_changed(self, link: Link, now: float) -> None:
        """Look up the leaders of the partitions of a broker that is down: they may have moved."""
        if not link.is_away:
            return
        for cursor in self._cursors.values():
            if cursor.leader == link.broker.id and not cursor.is_over:
                self._leaders.doubt(cursor)
                if link.error is not None and cursor.failing_since > now:
                    self._recovery.back_off(cursor, link.error, now)

    # Requests

    def _send_requests(self, now: float) -> Iterator[Item]:
        ready = fetchable(self._turns, now)
        links = self._loop.links
        for leader in dict.fromkeys([cursor.leader for cursor in ready]):
            cursors = [cursor for cursor in ready if cursor.leader == leader]
            link = links.get(leader)
            if link is None:
                for cursor in cursors:
                    self._leaders.doubt(cursor)
            elif not link.is_up:
                links.connect(link, now)
            elif link.has_room:
                yield from self._send(link, cursors, now)

    def _send(self, link: Link, cursors: list[Cursor], now: float) -> list[Failed]:
        """Send a Fetch request for these cursors. Returns those that cannot be read from this broker."""
        fetching = self._policy.fetching
        connection = link.connection
        if connection is None:
            return []
        reserved = self.buffer.reserve(fetching.request_bytes, least=_LEAST_BYTES)
        if not reserved:
            self._full_since = min(self._full_since, now)
            return []
        self._end_full(now)
        try:
            version = connection.version(fetch.API_KEY, highest=fetch.HIGHEST_VERSION)
        except OttlaError as error:
            self.buffer.settle(reserved, None)
            return [self._recovery.fail(cursor, error) for cursor in cursors]
        if version > fetch.LOWEST_VERSION and not all(map(_TOPIC_ID, cursors)):
            version = fetch.LOWEST_VERSION
        # Not less if there is little room: a session remembers this limit, and `reserved` limits the whole response.
        each = max(reserved // len(cursors), _LEAST_PER_PARTITION)
        connection.use_buffers(self.buffers)
        session = self._sessions.setdefault(link.broker.id, Session())
        session_request = session.request(cursors, version=version)
        request = _Request(cursors, session, reserved=reserved, version=version)
        body = fetch.fetch_request(
            [cursor.fetch_partition(each) for cursor in session_request.cursors],
            version=version,
            max_wait_ms=int(fetching.max_wait * 1000),
            min_bytes=self._min_bytes(cursors, each),
            max_bytes=reserved,
            isolation=self._policy.isolation,
            session=session_request.session,
            forgotten=session_request.forgotten,
        )
        for cursor in cursors:
            cursor.is_busy = True
        seconds = self._cluster.timeouts.request + fetching.max_wait
        self._loop.request(request, link, fetch.API_KEY, version, body, seconds=seconds)
        return []

    def _min_bytes(self, cursors: Sequence[Cursor], each: int) -> int:
        """Limit `min_bytes` to what the broker may send at all: it would wait in vain for more."""
        min_bytes = self._policy.fetching.min_bytes
        if min_bytes <= 1:
            return min_bytes
        return min(min_bytes, sum(cursor.fetch_partition(each).max_bytes for cursor in cursors))

    def _end_full(self, now: float) -> None:
        """There is room again: the time without room does not count for any timeout."""
        if self._full_since < math.inf:
            for cursor in self._cursors.values():
                cursor.postpone(now - self._full_since)
            self._full_since = math.inf

    # Responses

    def _receive(self, answer: Answer[_Request], now: float) -> list[Item]:
        request = answer.request
        if answer.error is not None:
            self._lost(request, answer.error, now)
            return []
        try:
            response = fetch.fetch_response(answer.body, version=request.version)
        except OttlaError as error:
            self._loop.distrust(answer.link, error)
            self._lost(request, error, now)
            return []
        for cursor, generation in zip(request.cursors, request.generations, strict=True):
            if cursor.generation == generation:
                cursor.is_busy = False
        if response.error_code:
            self.buffer.settle(request.reserved, None)
            if request.session.was_lost(response.error_code):
                return []
            request.session.reset()
            refusal = BrokerError(response.error_code, f"Fetch from {answer.link.broker}")
            outcomes = (self._recovery.handle(cursor, refusal, now) for cursor in request.cursors)
            return [failed for failed in outcomes if failed is not None]
        request.session.answered(response.session_id)
        if self._policy.patience < math.inf:
            # Partitions that a session omits have nothing new. For the others, `Cursor.take` resets this.
            for cursor, generation in zip(request.cursors, request.generations, strict=True):
                if cursor.generation == generation and cursor.waiting_since > now:
                    cursor.waiting_since = now
        response_memory = ResponseMemory(len(answer.body))
        items: list[Item] = []
        scanned: Iterable[Batches | None] = itertools.repeat(None)
        if len(answer.body) >= _SCANNED_BYTES:
            scanned = scan(answer.body, [fetched.span for fetched in response.partitions])
        for fetched, batches in zip(response.partitions, scanned, strict=False):
            number = request.session.number_of(fetched.topic, fetched.partition)
            if number is None:
                continue
            cursor = request.cursors[number]
            is_awaited = cursor.generation == request.generations[number]
            if is_awaited and cursor.open and not cursor.paused and not cursor.is_over:
                item = self._take(cursor, fetched, batches, response_memory, now)
                if item is not None:
                    items.append(item)
        self._tell_if_all_fetched()
        pieces = [item for item in items if isinstance(item, Piece) and item.memory is response_memory]
        response_memory.pieces = len(pieces)
        self.buffer.settle(request.reserved, response_memory)
        if pieces:
            self._rotate({piece.cursor for piece in pieces})
        return items

    def _tell_if_all_fetched(self) -> None:
        if self._all_fetched is not None and all(cursor.is_over for cursor in self._cursors.values()):
            tell, self._all_fetched = self._all_fetched, None
            tell()

    def _rotate(self, served: set[Cursor]) -> None:
        if len(self._turns) > len(served):
            first = [cursor for cursor in self._turns if cursor not in served]
            self._turns = deque([*first, *(cursor for cursor in self._turns if cursor in served)])

    def _take(
        self, cursor: Cursor, fetched: fetch.Fetched, scanned: Batches | None, memory: ResponseMemory, now: float
    ) -> Item | None:
        committed_only = self._policy.isolation is Isolation.READ_COMMITTED
        try:
            outcome = cursor.take(fetched, memory, now, committed_only=committed_only, scanned=scanned)
        except WireError as error:
            return self._recovery.fail(cursor, error)
        match outcome:
            case Piece():
                return outcome
            case OutOfRange():
                self._recovery.find_extent(cursor)
            case Diverged(where):
                return self._recovery.diverged(cursor, where)
            case BrokerError():
                return self._refused(cursor, fetched, outcome, now)
            case CorruptBatch():
                self._recovery.back_off(cursor, outcome, now)
            case None:
                pass
        return None

    def _refused(self, cursor: Cursor, fetched: fetch.Fetched, error: BrokerError, now: float) -> Failed | None:
        leader = fetched.leader
        # Only if it is another one: a broker that names itself would be asked again at once, forever (KIP-951).
        if (
            leader is not None
            and (leader.id, leader.epoch) != (cursor.leader, cursor.leader_epoch)
            and self._cluster.leader_moved(*cursor.tp, leader=leader.id, epoch=leader.epoch)
        ):
            cursor.leader, cursor.leader_epoch = leader.id, leader.epoch
            return None
        if error.row.refresh or error.code in _UNKNOWN_TOPIC:
            self._leaders.doubt(cursor)
        return self._recovery.handle(cursor, error, now)

    def _lost(self, request: _Request, error: OttlaError, now: float) -> None:
        self.buffer.settle(request.reserved, None)
        request.session.reset()
        for cursor, generation in zip(request.cursors, request.generations, strict=True):
            if cursor.generation == generation:
                cursor.is_busy = False
            if cursor.open:
                self._recovery.back_off(cursor, error, now)


def _is_small(items: Sequence[Item]) -> bool:
    """Whether to hand the items out before the next request, which takes as long to send as the items to decode.

    The waiting program sends the request when it comes back; if that takes long, the loop's own thread does.
    """
    return bool(items) and all(isinstance(item, Piece) and item.memory.size_bytes < _BULK_BYTES for item in items)
