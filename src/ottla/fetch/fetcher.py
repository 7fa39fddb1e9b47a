"""Fetches ahead: asks the leaders of all cursors, hears their answers, fills the buffer.

Cursors come in, pieces go into the buffer, within its memory and in the order of each partition. It is the actor of a
loop (`net/loop.py`) and waits for nothing: connecting, metadata and looking up offsets are background tasks. What a
piece contains is for others to know.
"""

from __future__ import annotations

import itertools
import math
import operator
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from ottla.errors import BrokerError, CorruptBatch, ErrorCode, OttlaError, WireError
from ottla.events import Events
from ottla.fetch.buffer import FetchBuffer
from ottla.fetch.cursor import Cursor, Diverged, Failed, OutOfRange, Piece, ResponseMemory, fetchable
from ottla.fetch.leaders import Leaders
from ottla.fetch.options import FetchPolicy
from ottla.fetch.recovery import Item, Recovery
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

_LEAST_BYTES = 1 << 16
"""A request for less is not worth while, unless nothing else is on the buffer."""
_LEAST_PER_PARTITION = 1 << 20
"""A broker has nothing of a partition whose next batch is larger, unless it is the first of the request."""
_DECODING_BYTES = 24 << 20
"""Of the memory, what the columns of the piece that is being handed out take, and those that the program still has."""
_GROWTH_SECONDS = 30.0
"""How often new partitions are looked for."""
_BULK_BYTES = 1 << 16
"""Of an answer, from which on decoding is worth another thread."""
_SCANNED_BYTES = 1 << 14
"""Of an answer, from which on its batches are looked for by a kernel."""
_STOP_SECONDS = 5.0
_ERRAND_SECONDS = 0.5
"""What is under way when it ends is waited for so long; connecting to a dead machine takes longer."""
_TOPIC_ID = operator.attrgetter("topic_id")
_UNKNOWN_TOPIC = frozenset(
    {ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id}
)


class _Request:
    """One Fetch under way."""

    __slots__ = ("cursors", "inquiries", "reserved", "session", "version")

    def __init__(self, cursors: list[Cursor], session: Session, *, reserved: int, version: int) -> None:
        self.cursors = cursors
        self.generations = [cursor.generation for cursor in cursors]
        self.session = session
        self.reserved = reserved
        self.version = version


class Fetcher:
    """`start` begins it, `stop` ends it; `channel` names its connections."""

    def __init__(
        self, cluster: Cluster, policy: FetchPolicy, *, channel: str, events: Events, buffers: Buffers | None = None
    ) -> None:
        self.channel = channel
        self._cluster = cluster
        self._policy = policy
        self._loop: Loop[_Request] = Loop(cluster, channel=channel, name=f"ottla-{lane}", most_requests=1, events=events)
        memory = policy.fetching.memory_bytes
        self.buffers = Buffers(memory // 2) if buffers is None else buffers
        self.buffer = FetchBuffer(memory - min(_DECODING_BYTES, memory // 2), room=self._loop.wakeup.ring)
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._topics: frozenset[str] = frozenset()
        """Of the cursors."""
        self._turns: deque[Cursor] = deque()
        """The cursors in the order in which they are asked for: those that got records go to the end."""
        self._recovery = Recovery(
            cluster, policy, background=self._loop.background, events=events, chance=self._loop.chance
        )
        self._leaders = Leaders(self._new_watch())
        self._sessions: dict[int, Session] = {}
        """By broker."""
        self._held_since = math.inf
        """Since when the buffer is full, so that nobody is asked."""
        self._is_bulk = False
        """Whether the last piece that was taken was large: then fetching and decoding overlap, in two threads."""

    # Any thread

    def start(self) -> None:
        """Begins to fetch."""
        self._loop.start(self)

    def stop(self) -> None:
        """Ends it; nothing more comes."""
        self._loop.stop(self, Deadline.after(_STOP_SECONDS))
        self.buffer.clear()

    def add(self, cursors: Iterable[Cursor]) -> None:
        """These are read from now on."""
        new = list(cursors)
        self._loop.call(lambda: self._add(new))

    def follow(self, topics: Iterable[str]) -> None:
        """Partitions that these topics get later are read, too, from their beginning."""
        wanted = frozenset(topics)
        self._loop.call(lambda: self._leaders.follow(wanted, time.monotonic()))

    def remove(self, cursors: Iterable[Cursor]) -> None:
        """These are read no more; nothing of them is handed out from this moment on."""
        gone = list(cursors)
        for cursor in gone:
            cursor.open = False
        self._loop.call(lambda: self._remove(gone))

    def resume(self, cursor: Cursor) -> None:
        """It is read on."""
        cursor.paused = False
        self.ring()

    def ring(self) -> None:
        """A reader that waits looks at other things. Signal handlers may ring."""
        self.buffer.ring()
        self._loop.wakeup.ring()

    def wait(self, deadline: Deadline) -> None:
        """Until `take` has something, somebody rang, or the deadline. One thread at a time.

        The thread that waits does the work of the loop meanwhile: a record that comes wakes no other.
        """
        while not (self.buffer.is_ready() or deadline.expired()):
            if self._is_bulk or self._loop.is_stopping:
                self.buffer.wait(deadline)
            else:
                self._loop.drive(self, self.buffer.is_ready, deadline)

    def take(self) -> Piece | Failed | None:
        """The first item of the buffer; None when there is none, or somebody rang."""
        item = self.buffer.take()
        if isinstance(item, Piece):
            self._is_bulk = item.memory.size_bytes >= _BULK_BYTES
            if self._is_bulk:
                self._loop.hand_over()
        return item

    def abandon(self) -> None:
        """The reader was interrupted, and has none of the pieces that it took."""
        self.buffer.abandon()
        self._loop.call(self.buffer.recount)

    def check(self) -> None:
        """Raises when the loop has ended by itself, or its client was closed."""
        self._cluster.check_usable()
        if self._loop.has_stopped:
            raise OttlaError("the thread that fetches has ended; see the log for why")

    # The actor

    def begin(self) -> None:
        """As in `Actor`."""

    def turn(self, now: float) -> float:
        """As in `Actor`."""
        items: list[Item] = []
        for answer in self._loop.answers():
            items += self._hear(answer, now)
            del answer  # it holds the memory of all its pieces
        items += self._recovery.found()
        for looked in self._loop.lookups.done():
            if looked.metadata is not None:
                self._learn(looked.metadata, now)
            elif looked.error is not None:
                self._leaders.watch.failed(looked.lookup, looked.error, now)
                self._stumble_without_leader(looked.lookup.topics, looked.error, now)
        for link in self._loop.links.changed():
            self._link_changed(link, now)
        if (lookup := self._leaders.due(now, self._topics)) is not None:
            self._loop.lookups.run(lookup)
        is_handed_first = self._loop.is_mine and _is_small(items)
        if not is_handed_first:
            items += self._ask(now)
        if self._held_since == math.inf:
            items += self._recovery.give_up(self._cursors.values(), now)
        # Only now: a reader that wakes up takes the interpreter away from the next request.
        for item in items:
            self.buffer.put(item)
        if is_handed_first:
            return now
        resumes = (cursor.resume_at for cursor in self._cursors.values() if cursor.resume_at > now)
        return min((*resumes, self._loop.links.next_at(now), self._leaders.next_at(self._topics)))

    def recover(self) -> None:
        """As in `Actor`."""
        self.buffer.recover()
        self._recovery.forget()
        self._leaders = Leaders(self._new_watch(), self._leaders.followed)
        self._leaders.watch.refresh(time.monotonic())
        self._turns = deque(self._cursors.values())
        self._topics = frozenset(at.topic for at in self._cursors)
        self._held_since = math.inf
        for session in self._sessions.values():
            session.reset()
        for cursor in self._turns:
            cursor.restart()
            self._meet_leader(cursor)

    def end(self, error: OttlaError | None) -> None:
        """As in `Actor`."""
        if error is not None:
            for cursor in self._cursors.values():
                self.buffer.put(Failed(cursor, error))
        for link in self._loop.links:
            if link.connection is not None:
                link.connection.use_buffers(Buffers())
                if link.requests:  # the answer is nobody's; else whoever reads next on this lane goes on with it
                    link.connection.close()
        self._loop.background.join(Deadline.after(_ERRAND_SECONDS))

    def _new_watch(self) -> MetadataRefresh:
        timeouts = self._cluster.timeouts
        refresh_seconds = min(_GROWTH_SECONDS, timeouts.metadata_age)
        return MetadataRefresh(
            self._cluster.retry, self._loop.chance, longest=timeouts.request, refresh_seconds=refresh_seconds
        )

    # What the user wants

    def _add(self, cursors: list[Cursor]) -> None:
        for cursor in cursors:
            before = self._cursors.get(cursor.tp)
            if before is cursor:
                continue  # it was interrupted, and is done again
            if before is not None:
                self._remove([before])
            self._cursors[cursor.tp] = cursor
            self._turns.append(cursor)
            self._meet_leader(cursor)
        self._topics |= {cursor.tp.topic for cursor in cursors}

    def _remove(self, cursors: list[Cursor]) -> None:
        self.buffer.discard(cursors)
        for cursor in cursors:
            cursor.open = False
            if self._cursors.get(cursor.tp) is cursor:
                del self._cursors[cursor.tp]
        self._turns = deque(cursor for cursor in self._turns if cursor.open)
        self._topics = frozenset(at.topic for at in self._cursors)

    # Leaders

    def _meet_leader(self, cursor: Cursor) -> None:
        """The one that is known; if there is none, or another by now, that is looked up."""
        if self._leaders.learn(cursor, self._cluster.known).is_other:
            self._recovery.suspect(cursor)

    def _learn(self, metadata: Metadata, now: float) -> None:
        self._leaders.watch.learned(now)
        self._add(self._leaders.newcomers(metadata, self._cursors))
        missing: dict[str, OttlaError] = {}
        for cursor in list(self._cursors.values()):
            if cursor.tp.topic not in metadata.topics:
                continue
            error, is_other = self._leaders.learn(cursor, metadata)
            if is_other:
                self._recovery.suspect(cursor)
            if error is not None:
                missing[cursor.tp.topic] = error
        if missing:
            self._leaders.watch.look_again(missing, now)
        for topic, error in missing.items():
            self._stumble_without_leader({topic}, error, now)

    def _stumble_without_leader(self, topics: Iterable[str], error: OttlaError, now: float) -> None:
        for cursor in self._cursors.values():
            if cursor.tp.topic in topics and cursor.leader < 0:
                self._recovery.stumble(cursor, error, now)

    def _link_changed(self, link: Link, now: float) -> None:
        """A broker that is away may lead nothing by now."""
        if not link.is_away:
            return
        for cursor in self._cursors.values():
            if cursor.leader == link.broker.id and not cursor.is_over:
                self._leaders.doubt(cursor)
                if link.error is not None and cursor.failing_since > now:
                    self._recovery.stumble(cursor, link.error, now)

    # Asking

    def _ask(self, now: float) -> Iterator[Item]:
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
        """Asks a broker for its cursors; those of them that cannot be read from it."""
        fetching = self._policy.fetching
        connection = link.connection
        if connection is None:
            return []
        reserved = self.buffer.reserve(fetching.request_bytes, least=_LEAST_BYTES)
        if not reserved:
            self._held_since = min(self._held_since, now)
            return []
        self._let_go(now)
        try:
            version = connection.version(fetch.API_KEY, highest=fetch.HIGHEST_VERSION)
        except OttlaError as error:
            self.buffer.settle(reserved, None)
            return [self._recovery.fail(cursor, error) for cursor in cursors]
        if version > fetch.LOWEST_VERSION and not all(map(_TOPIC_ID, cursors)):
            version = fetch.LOWEST_VERSION
        # Not less when there is little room: a session remembers it, and the whole answer is limited anyhow.
        each = max(reserved // len(cursors), _LEAST_PER_PARTITION)
        connection.use_buffers(self.buffers)
        session = self._sessions.setdefault(link.broker.id, Session())
        question = session.question(cursors, version=version)
        request = _Request(cursors, session, reserved=reserved, version=version)
        body = fetch.fetch_request(
            [cursor.wanted(each) for cursor in question.cursors],
            version=version,
            max_wait_ms=int(fetching.max_wait * 1000),
            min_bytes=self._min_bytes(cursors, each),
            max_bytes=reserved,
            isolation=self._policy.isolation,
            session=question.session,
            forgotten=question.forgotten,
        )
        for cursor in cursors:
            cursor.is_busy = True
        seconds = self._cluster.timeouts.request + fetching.max_wait
        self._loop.request(request, link, fetch.API_KEY, version, body, seconds=seconds)
        return []

    def _min_bytes(self, cursors: Sequence[Cursor], each: int) -> int:
        """A broker that may not send as much as it shall wait for would wait for nothing."""
        wanted = self._policy.fetching.min_bytes
        return wanted if wanted <= 1 else min(wanted, sum(cursor.wanted(each).max_bytes for cursor in cursors))

    def _let_go(self, now: float) -> None:
        """There is room again: the time without any was nobody's fault."""
        if self._held_since < math.inf:
            for cursor in self._cursors.values():
                cursor.postpone(now - self._held_since)
            self._held_since = math.inf

    # Hearing

    def _hear(self, heard: Answer[_Request], now: float) -> list[Item]:
        request = heard.request
        if heard.error is not None:
            self._lost(request, heard.error, now)
            return []
        try:
            answer = fetch.fetch_response(heard.body, version=request.version)
        except OttlaError as error:
            self._loop.distrust(heard.link, error)
            self._lost(request, error, now)
            return []
        for cursor, generation in zip(request.cursors, request.generations, strict=True):
            if cursor.generation == generation:
                cursor.is_busy = False
        if answer.error_code:
            self.buffer.settle(request.reserved, None)
            if request.session.was_lost(answer.error_code):
                return []
            request.session.reset()
            refusal = BrokerError(answer.error_code, f"Fetch from {heard.link.broker}")
            met = (self._recovery.meet(cursor, refusal, now) for cursor in request.cursors)
            return [failed for failed in met if failed is not None]
        request.session.answered(answer.session_id)
        if self._policy.patience < math.inf:
            # What a session says nothing about has nothing new. Those that have get over it in `take`.
            for cursor, generation in zip(request.cursors, request.generations, strict=True):
                if cursor.generation == generation and cursor.waiting_since > now:
                    cursor.waiting_since = now
        memory = ResponseMemory(len(heard.body))
        items: list[Item] = []
        scanned: Iterable[Batches | None] = itertools.repeat(None)
        if len(heard.body) >= _SCANNED_BYTES:
            scanned = scan(heard.body, [fetched.span for fetched in answer.partitions])
        for fetched, batches in zip(answer.partitions, scanned, strict=False):
            number = request.session.number_of(fetched.topic, fetched.partition)
            if number is None:
                continue
            cursor = request.cursors[number]
            is_awaited = cursor.generation == request.generations[number]
            if is_awaited and cursor.open and not cursor.paused and not cursor.is_over:
                found = self._judge(cursor, fetched, batches, memory, now)
                if found is not None:
                    items.append(found)
        pieces = [found for found in items if isinstance(found, Piece) and found.memory is memory]
        memory.pieces = len(pieces)
        self.buffer.settle(request.reserved, memory)
        if pieces:
            self._rotate({piece.cursor for piece in pieces})
        return items

    def _rotate(self, served: set[Cursor]) -> None:
        if len(self._turns) > len(served):
            first = [cursor for cursor in self._turns if cursor not in served]
            self._turns = deque([*first, *(cursor for cursor in self._turns if cursor in served)])

    def _judge(
        self, cursor: Cursor, fetched: fetch.Fetched, scanned: Batches | None, memory: ResponseMemory, now: float
    ) -> Item | None:
        committed_only = self._policy.isolation is Isolation.READ_COMMITTED
        try:
            found = cursor.take(fetched, memory, now, committed_only=committed_only, scanned=scanned)
        except WireError as error:
            return self._recovery.fail(cursor, error)
        match found:
            case Piece():
                return found
            case OutOfRange():
                self._recovery.find_ends(cursor)
            case Diverged(where):
                return self._recovery.parted(cursor, where)
            case BrokerError():
                return self._refused(cursor, fetched, found, now)
            case CorruptBatch():
                self._recovery.stumble(cursor, found, now)
            case None:
                pass
        return None

    def _refused(self, cursor: Cursor, fetched: fetch.Fetched, error: BrokerError, now: float) -> Failed | None:
        leader = fetched.leader
        # Only what is news: a broker that names the leader that was asked would be asked again at once, for ever.
        if (
            leader is not None
            and (leader.id, leader.epoch) != (cursor.leader, cursor.leader_epoch)
            and self._cluster.leader_moved(*cursor.tp, leader=leader.id, epoch=leader.epoch)
        ):
            cursor.leader, cursor.leader_epoch = leader.id, leader.epoch
            return None
        if error.row.refresh or error.code in _UNKNOWN_TOPIC:
            self._leaders.doubt(cursor)
        return self._recovery.meet(cursor, error, now)

    def _lost(self, request: _Request, error: OttlaError, now: float) -> None:
        self.buffer.settle(request.reserved, None)
        request.session.reset()
        for cursor, generation in zip(request.cursors, request.generations, strict=True):
            if cursor.generation == generation:
                cursor.is_busy = False
            if cursor.open:
                self._recovery.stumble(cursor, error, now)


def _is_small(items: Sequence[Item]) -> bool:
    """Whether a program that waits for it should have it before more is asked for, which takes as long as to decode it.

    It asks when it comes back; if it takes its time, the loop's own thread does.
    """
    return bool(items) and all(isinstance(item, Piece) and item.memory.size_bytes < _BULK_BYTES for item in items)
