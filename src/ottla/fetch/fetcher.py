"""Fetches ahead: asks the leaders of all courses, hears their answers, fills the shelf.

Courses come in, pieces go onto the shelf, within its memory and in the order of each partition. It is the actor of a
loop (`net/loop.py`) and waits for nothing: connecting, metadata and looking for offsets are errands beside it. What a
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
from ottla.fetch.course import Course, Failed, OutOfRange, Parcel, Parted, Piece, askable
from ottla.fetch.leaders import Leaders
from ottla.fetch.options import Manner
from ottla.fetch.session import Session
from ottla.fetch.shelf import Shelf
from ottla.fetch.troubles import News, Troubles
from ottla.model import Isolation, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.net.frames import Buffers
from ottla.net.links import Link
from ottla.net.loop import Answer, Loop
from ottla.net.metadata import Metadata
from ottla.net.watch import Watch
from ottla.wire import fetch
from ottla.wire.scan import Batches, scan

_LEAST_BYTES = 1 << 16
"""A request for less is not worth while, unless nothing else is on the shelf."""
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

    __slots__ = ("courses", "inquiries", "reserved", "session", "version")

    def __init__(self, courses: list[Course], session: Session, *, reserved: int, version: int) -> None:
        self.courses = courses
        self.inquiries = [course.inquiry for course in courses]
        self.session = session
        self.reserved = reserved
        self.version = version


class Fetcher:
    """`start` begins it, `stop` ends it; `lane` names its connections."""

    def __init__(
        self, cluster: Cluster, manner: Manner, *, lane: str, events: Events, buffers: Buffers | None = None
    ) -> None:
        self.lane = lane
        self._cluster = cluster
        self._manner = manner
        self._loop: Loop[_Request] = Loop(cluster, lane=lane, name=f"ottla-{lane}", most_requests=1, events=events)
        memory = manner.fetching.memory_bytes
        self.buffers = Buffers(memory // 2) if buffers is None else buffers
        self.shelf = Shelf(memory - min(_DECODING_BYTES, memory // 2), room=self._loop.bell.ring)
        self._courses: dict[TopicPartition, Course] = {}
        self._topics: frozenset[str] = frozenset()
        """Of the courses."""
        self._turns: deque[Course] = deque()
        """The courses in the order in which they are asked for: those that got records go to the end."""
        self._troubles = Troubles(cluster, manner, errands=self._loop.errands, events=events, chance=self._loop.chance)
        self._leaders = Leaders(self._new_watch())
        self._sessions: dict[int, Session] = {}
        """By broker."""
        self._held_since = math.inf
        """Since when the shelf is full, so that nobody is asked."""
        self._is_bulk = False
        """Whether the last piece that was taken was large: then fetching and decoding overlap, in two threads."""

    # Any thread

    def start(self) -> None:
        """Begins to fetch."""
        self._loop.start(self)

    def stop(self) -> None:
        """Ends it; nothing more comes."""
        self._loop.stop(self, Deadline.after(_STOP_SECONDS))
        self.shelf.clear()

    def add(self, courses: Iterable[Course]) -> None:
        """These are read from now on."""
        new = list(courses)
        self._loop.call(lambda: self._add(new))

    def follow(self, topics: Iterable[str]) -> None:
        """Partitions that these topics get later are read, too, from their beginning."""
        wanted = frozenset(topics)
        self._loop.call(lambda: self._leaders.follow(wanted, time.monotonic()))

    def remove(self, courses: Iterable[Course]) -> None:
        """These are read no more; nothing of them is handed out from this moment on."""
        gone = list(courses)
        for course in gone:
            course.open = False
        self._loop.call(lambda: self._remove(gone))

    def resume(self, course: Course) -> None:
        """It is read on."""
        course.paused = False
        self.ring()

    def ring(self) -> None:
        """A reader that waits looks at other things. Signal handlers may ring."""
        self.shelf.ring()
        self._loop.bell.ring()

    def wait(self, deadline: Deadline) -> None:
        """Until `take` has something, somebody rang, or the deadline. One thread at a time.

        The thread that waits does the work of the loop meanwhile: a record that comes wakes no other.
        """
        while not (self.shelf.has_news() or deadline.expired()):
            if self._is_bulk or self._loop.is_stopping:
                self.shelf.wait(deadline)
            else:
                self._loop.drive(self, self.shelf.has_news, deadline)

    def take(self) -> Piece | Failed | None:
        """The first item of the shelf; None when there is none, or somebody rang."""
        item = self.shelf.take()
        if isinstance(item, Piece):
            self._is_bulk = item.parcel.size_bytes >= _BULK_BYTES
            if self._is_bulk:
                self._loop.hand_over()
        return item

    def abandon(self) -> None:
        """The reader was interrupted, and has none of the pieces that it took."""
        self.shelf.abandon()
        self._loop.call(self.shelf.recount)

    def check(self) -> None:
        """Raises when the loop has ended by itself, or its client was closed."""
        self._cluster.effort("reading")
        if self._loop.has_stopped:
            raise OttlaError("the thread that fetches has ended; see the log for why")

    # The actor

    def begin(self) -> None:
        """As in `Actor`."""

    def turn(self, now: float) -> float:
        """As in `Actor`."""
        news: list[News] = []
        for answer in self._loop.answers():
            news += self._hear(answer, now)
            del answer  # it holds the memory of all its pieces
        news += self._troubles.found()
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
        is_handed_first = self._loop.is_mine and _is_small(news)
        if not is_handed_first:
            news += self._ask(now)
        if self._held_since == math.inf:
            news += self._troubles.give_up(self._courses.values(), now)
        # Only now: a reader that wakes up takes the interpreter away from the next request.
        for item in news:
            self.shelf.put(item)
        if is_handed_first:
            return now
        resumes = (course.resume_at for course in self._courses.values() if course.resume_at > now)
        return min((*resumes, self._loop.links.next_at(now), self._leaders.next_at(self._topics)))

    def recover(self) -> None:
        """As in `Actor`."""
        self.shelf.recover()
        self._troubles.forget()
        self._leaders = Leaders(self._new_watch(), self._leaders.followed)
        self._leaders.watch.refresh(time.monotonic())
        self._turns = deque(self._courses.values())
        self._topics = frozenset(at.topic for at in self._courses)
        self._held_since = math.inf
        for session in self._sessions.values():
            session.reset()
        for course in self._turns:
            course.restart()
            self._meet_leader(course)

    def end(self, error: OttlaError | None) -> None:
        """As in `Actor`."""
        if error is not None:
            for course in self._courses.values():
                self.shelf.put(Failed(course, error))
        for link in self._loop.links:
            if link.connection is not None:
                link.connection.use_buffers(Buffers())
                if link.requests:  # the answer is nobody's; else whoever reads next on this lane goes on with it
                    link.connection.close()
        self._loop.errands.join(Deadline.after(_ERRAND_SECONDS))

    def _new_watch(self) -> Watch:
        timeouts = self._cluster.timeouts
        refresh_seconds = min(_GROWTH_SECONDS, timeouts.metadata_age)
        return Watch(self._cluster.retry, self._loop.chance, longest=timeouts.request, refresh_seconds=refresh_seconds)

    # What the user wants

    def _add(self, courses: list[Course]) -> None:
        for course in courses:
            before = self._courses.get(course.at)
            if before is course:
                continue  # it was interrupted, and is done again
            if before is not None:
                self._remove([before])
            self._courses[course.at] = course
            self._turns.append(course)
            self._meet_leader(course)
        self._topics |= {course.at.topic for course in courses}

    def _remove(self, courses: list[Course]) -> None:
        self.shelf.discard(courses)
        for course in courses:
            course.open = False
            if self._courses.get(course.at) is course:
                del self._courses[course.at]
        self._turns = deque(course for course in self._turns if course.open)
        self._topics = frozenset(at.topic for at in self._courses)

    # Leaders

    def _meet_leader(self, course: Course) -> None:
        """The one that is known; if there is none, or another by now, that is looked up."""
        if self._leaders.learn(course, self._cluster.known).is_other:
            self._troubles.suspect(course)

    def _learn(self, metadata: Metadata, now: float) -> None:
        self._leaders.watch.learned(now)
        self._add(self._leaders.newcomers(metadata, self._courses))
        missing: dict[str, OttlaError] = {}
        for course in list(self._courses.values()):
            if course.at.topic not in metadata.topics:
                continue
            error, is_other = self._leaders.learn(course, metadata)
            if is_other:
                self._troubles.suspect(course)
            if error is not None:
                missing[course.at.topic] = error
        if missing:
            self._leaders.watch.look_again(missing, now)
        for topic, error in missing.items():
            self._stumble_without_leader({topic}, error, now)

    def _stumble_without_leader(self, topics: Iterable[str], error: OttlaError, now: float) -> None:
        for course in self._courses.values():
            if course.at.topic in topics and course.leader < 0:
                self._troubles.stumble(course, error, now)

    def _link_changed(self, link: Link, now: float) -> None:
        """A broker that is away may lead nothing by now."""
        if not link.is_away:
            return
        for course in self._courses.values():
            if course.leader == link.broker.id and not course.is_over:
                self._leaders.doubt(course)
                if link.error is not None and course.trouble_since > now:
                    self._troubles.stumble(course, link.error, now)

    # Asking

    def _ask(self, now: float) -> Iterator[News]:
        ready = askable(self._turns, now)
        links = self._loop.links
        for leader in dict.fromkeys([course.leader for course in ready]):
            courses = [course for course in ready if course.leader == leader]
            link = links.get(leader)
            if link is None:
                for course in courses:
                    self._leaders.doubt(course)
            elif not link.is_up:
                links.connect(link, now)
            elif link.has_room:
                yield from self._send(link, courses, now)

    def _send(self, link: Link, courses: list[Course], now: float) -> list[Failed]:
        """Asks a broker for its courses; those of them that cannot be read from it."""
        fetching = self._manner.fetching
        connection = link.connection
        if connection is None:
            return []
        reserved = self.shelf.reserve(fetching.request_bytes, least=_LEAST_BYTES)
        if not reserved:
            self._held_since = min(self._held_since, now)
            return []
        self._let_go(now)
        try:
            version = connection.version(fetch.API_KEY, highest=fetch.HIGHEST_VERSION)
        except OttlaError as error:
            self.shelf.settle(reserved, None)
            return [self._troubles.fail(course, error) for course in courses]
        if version > fetch.LOWEST_VERSION and not all(map(_TOPIC_ID, courses)):
            version = fetch.LOWEST_VERSION
        # Not less when there is little room: a session remembers it, and the whole answer is limited anyhow.
        each = max(reserved // len(courses), _LEAST_PER_PARTITION)
        connection.use_buffers(self.buffers)
        session = self._sessions.setdefault(link.broker.id, Session())
        question = session.question(courses, version=version)
        request = _Request(courses, session, reserved=reserved, version=version)
        body = fetch.fetch_request(
            [course.wanted(each) for course in question.courses],
            version=version,
            max_wait_ms=int(fetching.max_wait * 1000),
            min_bytes=self._min_bytes(courses, each),
            max_bytes=reserved,
            isolation=self._manner.isolation,
            session=question.session,
            forgotten=question.forgotten,
        )
        for course in courses:
            course.is_asked = True
        seconds = self._cluster.timeouts.request + fetching.max_wait
        self._loop.request(request, link, fetch.API_KEY, version, body, seconds=seconds)
        return []

    def _min_bytes(self, courses: Sequence[Course], each: int) -> int:
        """A broker that may not send as much as it shall wait for would wait for nothing."""
        wanted = self._manner.fetching.min_bytes
        return wanted if wanted <= 1 else min(wanted, sum(course.wanted(each).max_bytes for course in courses))

    def _let_go(self, now: float) -> None:
        """There is room again: the time without any was nobody's fault."""
        if self._held_since < math.inf:
            for course in self._courses.values():
                course.postpone(now - self._held_since)
            self._held_since = math.inf

    # Hearing

    def _hear(self, heard: Answer[_Request], now: float) -> list[News]:
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
        for course, inquiry in zip(request.courses, request.inquiries, strict=True):
            if course.inquiry == inquiry:
                course.is_asked = False
        if answer.error_code:
            self.shelf.settle(request.reserved, None)
            if request.session.was_lost(answer.error_code):
                return []
            request.session.reset()
            refusal = BrokerError(answer.error_code, f"Fetch from {heard.link.broker}")
            met = (self._troubles.meet(course, refusal, now) for course in request.courses)
            return [failed for failed in met if failed is not None]
        request.session.answered(answer.session_id)
        if self._manner.patience < math.inf:
            # What a session says nothing about has nothing new. Those that have get over it in `take`.
            for course, inquiry in zip(request.courses, request.inquiries, strict=True):
                if course.inquiry == inquiry and course.waiting_since > now:
                    course.waiting_since = now
        parcel = Parcel(len(heard.body))
        news: list[News] = []
        scanned: Iterable[Batches | None] = itertools.repeat(None)
        if len(heard.body) >= _SCANNED_BYTES:
            scanned = scan(heard.body, [fetched.span for fetched in answer.partitions])
        for fetched, batches in zip(answer.partitions, scanned, strict=False):
            number = request.session.number_of(fetched.topic, fetched.partition)
            if number is None:
                continue
            course = request.courses[number]
            is_awaited = course.inquiry == request.inquiries[number]
            if is_awaited and course.open and not course.paused and not course.is_over:
                found = self._judge(course, fetched, batches, parcel, now)
                if found is not None:
                    news.append(found)
        pieces = [found for found in news if isinstance(found, Piece) and found.parcel is parcel]
        parcel.pieces = len(pieces)
        self.shelf.settle(request.reserved, parcel)
        if pieces:
            self._rotate({piece.course for piece in pieces})
        return news

    def _rotate(self, served: set[Course]) -> None:
        if len(self._turns) > len(served):
            first = [course for course in self._turns if course not in served]
            self._turns = deque([*first, *(course for course in self._turns if course in served)])

    def _judge(
        self, course: Course, fetched: fetch.Fetched, scanned: Batches | None, parcel: Parcel, now: float
    ) -> News | None:
        committed_only = self._manner.isolation is Isolation.READ_COMMITTED
        try:
            found = course.take(fetched, parcel, now, committed_only=committed_only, scanned=scanned)
        except WireError as error:
            return self._troubles.fail(course, error)
        match found:
            case Piece():
                return found
            case OutOfRange():
                self._troubles.find_ends(course)
            case Parted(where):
                return self._troubles.parted(course, where)
            case BrokerError():
                return self._refused(course, fetched, found, now)
            case CorruptBatch():
                self._troubles.stumble(course, found, now)
            case None:
                pass
        return None

    def _refused(self, course: Course, fetched: fetch.Fetched, error: BrokerError, now: float) -> Failed | None:
        leader = fetched.leader
        # Only what is news: a broker that names the leader that was asked would be asked again at once, for ever.
        if (
            leader is not None
            and (leader.id, leader.epoch) != (course.leader, course.leader_epoch)
            and self._cluster.leader_moved(*course.at, leader=leader.id, epoch=leader.epoch)
        ):
            course.leader, course.leader_epoch = leader.id, leader.epoch
            return None
        if error.row.refresh or error.code in _UNKNOWN_TOPIC:
            self._leaders.doubt(course)
        return self._troubles.meet(course, error, now)

    def _lost(self, request: _Request, error: OttlaError, now: float) -> None:
        self.shelf.settle(request.reserved, None)
        request.session.reset()
        for course, inquiry in zip(request.courses, request.inquiries, strict=True):
            if course.inquiry == inquiry:
                course.is_asked = False
            if course.open:
                self._troubles.stumble(course, error, now)


def _is_small(news: Sequence[News]) -> bool:
    """Whether a program that waits for it should have it before more is asked for, which takes as long as to decode it.

    It asks when it comes back; if it takes its time, the loop's own thread does.
    """
    return bool(news) and all(isinstance(item, Piece) and item.parcel.size_bytes < _BULK_BYTES for item in news)
