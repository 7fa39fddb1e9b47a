"""The one thread that fetches ahead: asks the leaders of all courses, hears their answers, fills the shelf.

Courses come in, pieces go onto the shelf, within its memory and in the order of each partition. It waits for sockets,
timers and its user at once and blocks on nothing else: connecting, metadata and looking for offsets are errands
beside it. What a piece contains is for others to know.
"""

from __future__ import annotations

import logging
import math
import random
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from ottla.errors import (
    BrokerError,
    ConnectionLost,
    CorruptBatch,
    ErrorCode,
    OttlaError,
    WireError,
)
from ottla.events import Events
from ottla.fetch.course import Course, Failed, OutOfRange, Parcel, Parted, Piece
from ottla.fetch.leaders import Leaders
from ottla.fetch.options import Manner
from ottla.fetch.shelf import Shelf
from ottla.fetch.troubles import Troubles
from ottla.model import Isolation, TopicPartition
from ottla.net import Cluster
from ottla.net.bell import Bell
from ottla.net.connection import Pending
from ottla.net.deadline import Deadline
from ottla.net.errands import Errands
from ottla.net.frames import Buffers
from ottla.net.links import Link, Links
from ottla.wire import fetch

_log = logging.getLogger(__name__)
_LEAST_BYTES = 1 << 16
"""A request for less is not worth while, unless nothing else is on the shelf."""
_LEAST_PER_PARTITION = 1 << 16
_DECODING_BYTES = 24 << 20
"""Of the memory, what the columns of the piece that is being handed out take, and those that the program still has."""
_LONGEST_NAP = 1.0
_STOP_SECONDS = 5.0
_ERRAND_SECONDS = 0.5
"""What is under way when it ends is waited for so long; connecting to a dead machine takes longer."""
_UNKNOWN_TOPIC = frozenset(
    {ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.inconsistent_topic_id}
)


class _Request:
    """One Fetch under way."""

    __slots__ = ("courses", "inquiries", "link", "pending", "reserved", "version")

    def __init__(self, link: Link, courses: list[Course], *, reserved: int, version: int) -> None:
        self.link = link
        self.courses = courses
        self.inquiries = [course.inquiry for course in courses]
        self.reserved = reserved
        self.version = version
        self.pending: Pending | None = None


class Fetcher:
    """The loop. `start` begins it, `stop` ends it; `lane` names its connections."""

    def __init__(self, cluster: Cluster, manner: Manner, *, lane: str, events: Events) -> None:
        self.lane = lane
        self._cluster = cluster
        self._manner = manner
        self._events = events
        self._chance = random.Random()
        self._bell = Bell()
        memory = manner.fetching.memory_bytes
        self._buffers = Buffers(memory // 2)
        self.shelf = Shelf(memory - min(_DECODING_BYTES, memory // 2), room=self._bell.ring)
        self._errands = Errands(wake=self._bell.ring, name=lane)
        self._courses: dict[TopicPartition, Course] = {}
        self._turns: deque[Course] = deque()
        """The courses in the order in which they are asked for: whoever got records goes to the end."""
        self._heard: deque[Piece | Failed] = deque()
        """What goes onto the shelf at the end of this turn."""
        self._troubles = Troubles(
            cluster,
            manner,
            errands=self._errands,
            events=events,
            chance=self._chance,
            tell=self._heard.append,
        )
        self._leaders = Leaders(
            cluster,
            self._courses,
            troubles=self._troubles,
            errands=self._errands,
            chance=self._chance,
            add=self._add,
        )
        self._links = Links(
            cluster,
            lane=lane,
            most_requests=1,
            errands=self._errands,
            events=events,
            retry=cluster.retry,
            chance=self._chance,
            changed=self._leaders.link_changed,
        )
        self._commands: deque[Callable[[], None]] = deque()
        self._answered: deque[_Request] = deque()
        self._held_since = math.inf
        """Since when the shelf is full, so that nobody is asked."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"ottla-{lane}", daemon=True)
        self._started = False

    # Any thread

    def start(self) -> None:
        """Begins to fetch."""
        self._started = True
        self._thread.start()

    def stop(self) -> None:
        """Ends it; nothing more comes."""
        self._stopping = True
        self._bell.ring()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(_STOP_SECONDS)
        else:
            self._bell.close()
        self.shelf.clear()

    def add(self, courses: Iterable[Course]) -> None:
        """These are read from now on."""
        self._do(lambda new=list(courses): self._add(new))  # type: ignore[misc]

    def follow(self, topics: Iterable[str]) -> None:
        """Partitions that these topics get later are read, too, from their beginning."""
        wanted = frozenset(topics)
        self._do(lambda: self._leaders.follow(wanted))

    def remove(self, courses: Iterable[Course]) -> None:
        """These are read no more; nothing of them is handed out from this moment on."""
        gone = list(courses)
        for course in gone:
            course.open = False
        self._do(lambda: self._remove(gone))

    def resume(self, course: Course) -> None:
        """It is read on."""
        course.paused = False
        self._bell.ring()
        self.shelf.ring()

    def check(self) -> None:
        """Raises when the loop has ended by itself, or its client was closed."""
        self._cluster.effort("reading")
        if self._started and not self._thread.is_alive():
            raise OttlaError("the thread that fetches has ended; see the log for why")

    def _do(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._bell.ring()

    # The loop

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except Exception as error:
            _log.exception("the fetching thread stopped")
            wrapped = OttlaError(f"fetching stopped: {type(error).__name__}: {error}")
            wrapped.__cause__ = error
            for course in self._courses.values():
                self.shelf.put(Failed(course, wrapped))
        finally:
            for link in self._links:
                if link.connection is not None:
                    link.connection.use_buffers(Buffers())
                    if link.requests:  # the answer is nobody's; else whoever reads next on this lane goes on with it
                        link.connection.close()
            self._errands.join(Deadline.after(_ERRAND_SECONDS))
            self._bell.close()

    def _turn(self) -> None:
        self._bell.listen()
        while self._commands:
            self._commands.popleft()()
        self._errands.collect()
        while self._answered:
            self._hear(self._answered.popleft())
        now = time.monotonic()
        self._leaders.look(now)
        self._ask(now)
        if self._held_since == math.inf:
            self._troubles.give_up(self._courses.values(), now)
        # Only now: a reader that wakes up takes the interpreter away from the next request.
        while self._heard:
            self.shelf.put(self._heard.popleft())
        if not self._answered:
            self._wait(now)

    def _wait(self, now: float) -> None:
        poller = select.poll()
        poller.register(self._bell.fileno(), select.POLLIN)
        lines: dict[int, Link] = {}
        for link in self._links:
            connection = link.connection
            if connection is not None and (number := connection.fileno()) >= 0:
                poller.register(number, select.POLLIN | (select.POLLOUT if connection.unsent_bytes else 0))
                lines[number] = link
        until = min(self._wake_at(now), now + _LONGEST_NAP)
        # A part of an answer alone is no reason for a whole turn: a large one comes in many.
        while self._bell.may_sleep():
            ready = poller.poll(math.ceil(max(0.0, until - time.monotonic()) * 1000))
            for number, _ in ready:
                if number in lines:
                    self._pump(lines[number])
            partial = ready and all(self._goes_on(lines.get(number), events) for number, events in ready)
            if not partial or time.monotonic() >= until:
                break
        self._bell.drain()
        for link in self._links:
            if link.requests:
                self._pump(link)  # requests that nobody answers run out of time here

    def _goes_on(self, link: Link | None, events: int) -> bool:
        """Whether all that happened is that a part of an answer has come, and nobody waits for the loop."""
        connection = None if link is None else link.connection
        return connection is not None and not connection.closed and events == select.POLLIN and not self._answered

    def _pump(self, link: Link) -> None:
        connection = link.connection
        if connection is None:
            return
        connection.pump()
        if connection.closed and not link.requests and link.connection is connection:
            self._links.idled(link)

    def _wake_at(self, now: float) -> float:
        resumes = (course.resume_at for course in self._courses.values() if course.resume_at > now)
        links = (link.resume_at for link in self._links if link.resume_at > now)
        return min((*resumes, *links, self._leaders.next_look), default=math.inf)

    # What the user wants

    def _add(self, courses: list[Course]) -> None:
        for course in courses:
            before = self._courses.get(course.at)
            if before is not None:
                self._remove([before])
            self._courses[course.at] = course
            self._turns.append(course)
            self._leaders.learn(course, self._cluster.known)

    def _remove(self, courses: list[Course]) -> None:
        for course in courses:
            self.shelf.discard(course)
            course.open = False
            if self._courses.get(course.at) is course:
                del self._courses[course.at]
        self._turns = deque(course for course in self._turns if course.open)

    # Asking

    def _ask(self, now: float) -> None:
        ready: dict[int, list[Course]] = {}
        for course in self._turns:
            if course.may_ask(now):
                ready.setdefault(course.leader, []).append(course)
        for leader, courses in ready.items():
            link = self._links.get(leader)
            if link is None:
                for course in courses:
                    self._leaders.doubt(course)
            elif not link.is_up:
                self._links.connect(link, now)
            elif link.has_room:
                self._send(link, courses, now)

    def _send(self, link: Link, courses: list[Course], now: float) -> None:
        fetching = self._manner.fetching
        connection = link.connection
        if connection is None:
            return
        reserved = self.shelf.reserve(fetching.request_bytes, least=_LEAST_BYTES)
        if not reserved:
            self._held_since = min(self._held_since, now)
            return
        self._let_go(now)
        try:
            version = connection.version(fetch.API_KEY, highest=fetch.HIGHEST_VERSION)
        except OttlaError as error:
            self.shelf.settle(reserved, None)
            for course in courses:
                self._troubles.fail(course, error)
            return
        if version > fetch.LOWEST_VERSION and any(course.topic_id is None for course in courses):
            version = fetch.LOWEST_VERSION
        each = max(reserved // len(courses), min(_LEAST_PER_PARTITION, reserved))
        connection.use_buffers(self._buffers)
        request = _Request(link, courses, reserved=reserved, version=version)
        wanted = [course.wanted(each) for course in courses]
        body = fetch.fetch_request(
            wanted,
            version=version,
            max_wait_ms=int(fetching.max_wait * 1000),
            # A broker that may not send as much as it shall wait for would wait for nothing.
            min_bytes=min(fetching.min_bytes, sum(one.max_bytes for one in wanted)),
            max_bytes=reserved,
            isolation=self._manner.isolation,
        )
        for course in courses:
            course.is_asked = True
        link.requests += 1

        def answered(pending: Pending) -> None:
            request.pending = pending
            self._answered.append(request)

        limit = Deadline.after(self._cluster.timeouts.request + fetching.max_wait)
        try:
            connection.start(fetch.API_KEY, version, body, deadline=limit, answered=answered)
        except OttlaError as error:
            self._lost(request, error)

    def _let_go(self, now: float) -> None:
        """There is room again: the time without any was nobody's fault."""
        if self._held_since < math.inf:
            for course in self._courses.values():
                course.postpone(now - self._held_since)
            self._held_since = math.inf

    # Hearing

    def _hear(self, request: _Request) -> None:
        assert request.pending is not None
        pending, request.pending = request.pending, None  # a circle, and it holds the answer
        if pending.error is not None:  # not raised: its traceback would hold the connection, with half an answer
            self._lost(request, pending.error)
            return
        try:
            body = pending.result()
            answer = fetch.fetch_response(body, version=request.version)
        except OttlaError as lost:
            self._lost(request, lost)
            return
        request.link.requests -= 1
        now = time.monotonic()
        asked = {
            (course.topic_id if request.version >= 13 else course.at.topic, course.at.partition): (course, inquiry)
            for course, inquiry in zip(request.courses, request.inquiries, strict=True)
        }
        parcel = Parcel(len(body))
        pieces: list[Piece] = []
        for course, inquiry in asked.values():
            if course.inquiry == inquiry:
                course.is_asked = False
        if answer.error_code:
            error = BrokerError(answer.error_code, f"Fetch from {request.link.broker}")
            self.shelf.settle(request.reserved, None)
            for course, _ in asked.values():
                self._troubles.meet(course, error, now)
            return
        for fetched in answer.partitions:
            course, inquiry = asked.get((fetched.topic, fetched.partition), _NOBODY)
            if course.open and course.inquiry == inquiry and not course.paused and not course.is_over:
                piece = self._judge(course, fetched, parcel, now)
                if piece is not None:
                    pieces.append(piece)
        parcel.pieces = len(pieces)
        self.shelf.settle(request.reserved, parcel)
        if pieces:
            self._heard.extend(pieces)
            self._rotate({piece.course for piece in pieces})

    def _rotate(self, served: set[Course]) -> None:
        if len(self._turns) > len(served):
            first = [course for course in self._turns if course not in served]
            self._turns = deque([*first, *(course for course in self._turns if course in served)])

    def _judge(self, course: Course, fetched: fetch.Fetched, parcel: Parcel, now: float) -> Piece | None:
        committed_only = self._manner.isolation is Isolation.READ_COMMITTED
        try:
            found = course.take(fetched, parcel, now, committed_only=committed_only)
        except WireError as error:
            self._troubles.fail(course, error)
            return None
        match found:
            case Piece():
                return found
            case OutOfRange():
                self._troubles.find_ends(course)
            case Parted(where):
                self._troubles.parted(course, where)
            case BrokerError():
                self._refused(course, fetched, found, now)
            case CorruptBatch():
                self._troubles.stumble(course, found, now)
            case None:
                pass
        return None

    def _refused(self, course: Course, fetched: fetch.Fetched, error: BrokerError, now: float) -> None:
        leader = fetched.leader
        # Only what is news: a broker that names the leader that was asked would be asked again at once, for ever.
        if (
            leader is not None
            and (leader.id, leader.epoch) != (course.leader, course.leader_epoch)
            and self._cluster.leader_moved(*course.at, leader=leader.id, epoch=leader.epoch)
        ):
            course.leader, course.leader_epoch = leader.id, leader.epoch
            return
        if error.row.refresh or error.code in _UNKNOWN_TOPIC:
            self._leaders.doubt(course)
        self._troubles.meet(course, error, now)

    def _lost(self, request: _Request, error: OttlaError) -> None:
        link, now = request.link, time.monotonic()
        link.requests -= 1
        self.shelf.settle(request.reserved, None)
        for course, inquiry in zip(request.courses, request.inquiries, strict=True):
            if course.inquiry == inquiry:
                course.is_asked = False
            if course.open:
                self._troubles.stumble(course, error, now)
        if not (isinstance(error, ConnectionLost) and link.connection is None):
            self._links.lost(link, error)


_NOBODY = (Course(TopicPartition("", -1), 0), -1)
"""Whose answer it is that nobody asked for."""
