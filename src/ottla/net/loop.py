"""The loop under everything that talks to many brokers at once: producers, readers, and what will stand on them.

An actor decides, the loop waits: for sockets, timers and callers at once, and blocks on nothing else. Requests come in
with what the actor wants to know them by and come back as `Answer` values, each exactly once, whatever becomes of the
connection. What takes long (connecting, metadata) is an errand beside the loop. It decides nothing about requests and
knows nothing of their content.

It is driven by a thread of its own, or by a program that waits for what the loop brings (`drive`), so that no other
thread has to be woken in between. Turns are taken under one lock; sockets are polled and pumped outside of it. While a
program is there (it holds `_seat`), the thread is parked (`parking.py`).

Ctrl-C, or the exception of any signal handler, can end a turn of the program's thread between two instructions. Nothing
is cleaned up then: the mark that the turn has set when it began is found by the next turn, which begins with `recover`.
Locks are taken by `with` alone: CPython handles no signal between the lock and the block.
"""

from __future__ import annotations

import logging
import math
import random
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from ottla.config import LONGEST
from ottla.errors import ConnectionLost, OttlaError
from ottla.events import Events
from ottla.net.background import BackgroundTasks
from ottla.net.cluster import Cluster
from ottla.net.connection import Buffer, Connection
from ottla.net.deadline import Deadline
from ottla.net.links import Link, Links
from ottla.net.lookups import Lookups
from ottla.net.parking import GRACE_SECONDS, Next, Parking
from ottla.net.pending import Pending, Reply
from ottla.net.waiting import Flag
from ottla.net.wakeup import Wakeup, Wakeups

_log = logging.getLogger(__name__)
R = TypeVar("R")
T = TypeVar("T")
_LONGEST_NAP = 1.0
_OVERDUE_SECONDS = 0.1
"""How often requests that nobody answers are looked at."""
_JOIN_SECONDS = 5.0
_LONGEST_PARKING = 0.1
"""How often a parked thread looks whether the loop has been stopped."""


class Actor(Protocol):
    """What a loop is run for. All calls come one after the other, from whichever thread drives the loop."""

    def begin(self) -> None:
        """The loop has started."""

    def turn(self, now: float) -> float:
        """Does whatever can be done now; when it wants to be called again at the latest."""

    def recover(self) -> None:
        """A turn was interrupted, anywhere: forget what it left half done. Every request, errand and lookup that was
        under way is void, connections are closed, and a command that was being carried out comes again."""

    def end(self, error: OttlaError | None) -> None:
        """The loop has ended, because it was stopped or on an error of the actor's."""


class Answer(NamedTuple, Generic[R]):
    """What became of a request: the body of the answer, or an error. The body is empty where none was due."""

    request: R
    link: Link
    body: memoryview
    error: OttlaError | None


class Loop(Generic[R]):
    """One loop. `start` begins it, `stop` ends it; `lane` names its connections."""

    def __init__(self, cluster: Cluster, *, lane: str, name: str, most_requests: int, events: Events) -> None:
        self.chance = random.Random()
        self._inner, self._outer = Wakeup(), Wakeup()
        """For the loop's own thread, and for a program that drives."""
        self.wakeup = Wakeups(self._inner, self._outer)
        self.background = BackgroundTasks(wake=self.wakeup.ring, name=name)
        self.links = Links(
            cluster,
            lane=lane,
            most_requests=most_requests,
            background=self.background,
            events=events,
            chance=self.chance,
        )
        self.lookups = Lookups(cluster, background=self.background, events=events)
        self.name = name
        self._commands: deque[Callable[[], None]] = deque()
        self._done: deque[tuple[int, R, Link, Connection | None, Pending | OttlaError]] = deque()
        self._generation = 0
        """Answers to requests of an earlier one are void."""
        self._checked_at = 0.0
        self._has_begun = False
        self._stopping = False
        self._turning = threading.Lock()
        self._seat = threading.RLock()
        """Held by a program that drives, also while it polls; nobody but the parked thread waits for it."""
        self._hands = threading.Lock()
        """Held by that program while it does more than poll: a signal handler must not begin another turn then."""
        self._visitor = 0
        self._visits = 0
        self._is_visit_whole = True
        """False while a program drives, but for its polling; and afterwards, if that was interrupted."""
        self._is_whole = True
        """False when something was found interrupted: the next turn begins with `recover`."""
        self._is_called = False
        self._is_parked = False
        self._rouse = threading.Lock()
        self._rouse.acquire()
        self._entry = [True]
        """Whoever takes it out runs the loop."""
        self._thread: threading.Thread | None = None
        self._over = Flag()

    # Any thread

    def start(self, actor: Actor) -> None:
        """Begins. To start it again does no harm, so that it may be interrupted anywhere."""
        if self._entry:
            threading.Thread(target=self._run, args=(actor,), name=self.name, daemon=True).start()

    def stop(self, actor: Actor, deadline: Deadline) -> None:
        """Ends it, and returns when it has ended or at the deadline. One that was not started cannot be any more."""
        self._stopping = True
        self.wakeup.ring()
        self._wake_parked()
        if self._may_enter():
            actor.end(None)
            self._over.set()
            self.wakeup.close()
        elif self.is_elsewhere and self._over.wait(deadline.remaining()) and self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    @property
    def is_stopping(self) -> bool:
        """Whether it ends after this turn."""
        return self._stopping

    @property
    def has_stopped(self) -> bool:
        """Whether it was there and is not any more."""
        return self._over.is_set()

    @property
    def is_elsewhere(self) -> bool:
        """Whether it runs, or is about to, and this thread is not the one that is at it."""
        return not (self._over.is_set() or threading.current_thread() is self._thread or self.is_mine)

    @property
    def is_mine(self) -> bool:
        """Whether this thread is in the middle of a turn, by `drive`."""
        return self._hands.locked() and self._visitor == threading.get_ident()

    def call(self, command: Callable[[], None]) -> None:
        """Has `command` called on the loop's thread, before its next turn."""
        self._commands.append(command)
        self.wakeup.ring()

    def result_of(self, command: Callable[[], T], deadline: Deadline | None = None) -> T:
        """What `command` returns, called on the loop's thread, or here when there is no loop any more."""
        if not self.is_elsewhere:
            return command()
        results: list[T] = []
        done = Flag()

        def work() -> None:
            results.append(command())
            done.set()

        limit = deadline or Deadline.after(LONGEST)
        self.call(work)
        while not done.wait(min(1.0, limit.remaining())):
            if self.has_stopped:
                raise OttlaError(f"{self.name} has stopped; see the log")
            if limit.expired():
                raise TimeoutError(f"{self.name} did not answer")
        return results[0]

    # A program that waits

    def drive(self, actor: Actor, is_done: Callable[[], bool], deadline: Deadline) -> None:
        """Does the work of the loop on this thread until `is_done`, the deadline, or the end of the loop.

        One thread at a time. A signal handler that comes in the middle of a turn of its own thread gets an error: it
        would wait for what it keeps from happening.
        """
        with self._seat:
            if self._hands.locked():
                raise OttlaError(
                    f"{self.name} was interrupted by a signal handler that waits for it;"
                    " set a flag in the handler, and let the program look at it"
                )
            self._visitor = threading.get_ident()
            self._visits += 1
            self._is_called = False
            self._inner.ring()  # the loop's own thread leaves its poll
            while True:
                self._outer.listen()
                with self._hands, self._turning:
                    if self._stopping:
                        return
                    self._is_whole = self._is_whole and self._is_visit_whole
                    self._is_visit_whole = False
                    until = self._turn(actor)
                    self._is_visit_whole = True
                if is_done() or deadline.expired():
                    return
                self._wait(min(until, deadline.at), self._outer, self._pump_visiting)

    def hand_over(self) -> None:
        """The program is busy with something else for a while: the loop's own thread need not wait to see whether it
        comes back."""
        self._is_called = True
        self._wake_parked()

    def _pump_visiting(self, links: Sequence[Link]) -> None:
        with self._hands:
            self._is_visit_whole = False
            self._pump(links)
            self._is_visit_whole = True

    # The actor

    def request(
        self,
        request: R,
        link: Link,
        api_key: int,
        version: int,
        body: Sequence[Buffer],
        *,
        seconds: float,
        reply: Reply = Reply.DUE,
    ) -> None:
        """Sends it without waiting. Its answer comes with a later call of `answers`."""
        connection, generation = link.connection, self._generation
        link.requests += 1
        if connection is None:  # lost by the request before this one, to the same broker
            error: OttlaError = ConnectionLost(link.broker.address, "the connection has ended")
            self._done.append((generation, request, link, None, error))
            return

        def answered(pending: Pending) -> None:
            self._done.append((generation, request, link, connection, pending))

        try:
            connection.start(api_key, version, body, deadline=Deadline.after(seconds), reply=reply, answered=answered)
        except OttlaError as lost:
            self._done.append((generation, request, link, connection, lost))

    def request_beside(
        self,
        request: R,
        link: Link,
        connection: Connection,
        api_key: int,
        version: int,
        body: Sequence[Buffer],
        *,
        seconds: float,
    ) -> None:
        """Sends a small one from any thread, while the loop sleeps and nobody else does that: see `start_at_once`. The
        actor counts it (`link.requests`) when it wakes up."""

        def answered(pending: Pending) -> None:
            self._done.append((self._generation, request, link, connection, pending))

        connection.start_at_once(api_key, version, body, deadline=Deadline.after(seconds), answered=answered)

    def failed_beside(self, request: R, link: Link, connection: Connection, error: OttlaError) -> None:
        """A request that `request_beside` could not send; any thread."""
        self._done.append((self._generation, request, link, connection, error))
        self.wakeup.ring()

    def answers(self) -> Iterator[Answer[R]]:
        """What became of requests since the last time."""
        while self._done:
            generation, request, link, connection, result = self._done.popleft()
            if generation != self._generation:
                continue
            link.requests -= 1
            error = result.error if isinstance(result, Pending) else result
            if error is None:
                assert isinstance(result, Pending)
                body = result.result()
                del result  # request, Pending and callback form a circle: none of it may hold the answer
                yield Answer(request, link, body, None)
                continue
            if connection is not None and link.connection is connection:
                self.links.lost(link, error)
            yield Answer(request, link, memoryview(b""), error)

    def distrust(self, link: Link, error: OttlaError) -> None:
        """An answer made no sense: nothing else is believed of this connection."""
        if link.connection is not None:
            link.connection.close()
            self.links.lost(link, error)

    # The loop's own thread

    def _may_enter(self) -> bool:
        try:
            return self._entry.pop()
        except IndexError:
            return False

    def _run(self, actor: Actor) -> None:
        if not self._may_enter():
            return
        self._thread = threading.current_thread()
        try:
            error: OttlaError | None = None
            try:
                while not self._stopping:
                    if self._is_visited():
                        self._outer.ring()  # what this thread has brought since the program came
                        self._park()
                        continue
                    self._inner.listen()
                    with self._turning:
                        until = self._turn(actor)
                    self._wait(until, self._inner, self._pump)
            except BaseException as bug:
                _log.exception("%s stopped on an error that should not be", self.name)
                error = OttlaError(f"{self.name} stopped: {type(bug).__name__}: {bug}")
                error.__cause__ = bug
            self._stopping = True
            self._outer.ring()
            with self._turning:
                actor.end(error)
        finally:
            self._over.set()
            self.wakeup.close()

    def _is_visited(self) -> bool:
        if not self._seat.acquire(blocking=False):
            return True
        self._is_whole = self._is_whole and self._is_visit_whole  # nobody is there: if it is not, that stays
        self._seat.release()
        return False

    def _park(self) -> None:
        """Returns when the program is away for a while, or the loop is to end."""
        parking = Parking()
        self._is_parked = True
        while not self._stopping:
            now = parking.look(is_visited=self._is_visited(), visits=self._visits, is_called=self._is_called)
            if now is Next.DRIVE:
                break
            if now is Next.NAP:
                self._rouse.acquire(timeout=GRACE_SECONDS)
            elif self._seat.acquire(timeout=_LONGEST_PARKING):
                self._seat.release()
        self._is_parked = False

    def _wake_parked(self) -> None:
        if self._is_parked:
            try:
                self._rouse.release()
            except RuntimeError:
                pass  # it is free already

    # Whoever drives

    def _turn(self, actor: Actor) -> float:
        """With the lock; when to come again at the latest."""
        if not self._has_begun:
            actor.begin()
            self._has_begun = True
        if not self._is_whole:
            self._recover(actor)
            self._is_whole = self._is_visit_whole = True
        self.background.collect()
        while self._commands:
            self._commands[0]()
            self._commands.popleft()  # only now: what is interrupted is done again
        for link in self.links:
            if link.connection is not None and link.connection.closed and not self._is_used(link):
                self.links.idled(link)
        until = actor.turn(time.monotonic())
        return 0.0 if self._done else until

    def _is_used(self, link: Link) -> bool:
        """Whether a request was under way on it; one that was sent beside the loop may not be counted yet."""
        return link.requests > 0 or any(link is asked for _, _, asked, _, _ in self._done)

    def _recover(self, actor: Actor) -> None:
        self._generation += 1
        self.background.forget()
        self.lookups.forget()
        for link in self.links:
            link.requests = 0
            if link.connection is not None:
                link.connection.discard()
                self.links.idled(link)
        actor.recover()

    def _wait(self, until: float, wakeup: Wakeup, pump: Callable[[Sequence[Link]], None]) -> None:
        poller = select.poll()
        if (own := wakeup.fileno()) < 0:
            return
        poller.register(own, select.POLLIN)
        links: dict[int, Link] = {}
        for link in list(self.links):
            connection = link.connection
            if connection is not None and (fd := connection.fileno()) >= 0:
                links[fd] = link
                poller.register(fd, _events(connection))
        until = min(until, time.monotonic() + _LONGEST_NAP)
        # A part of a request or an answer alone is no reason for a whole turn: a large one comes in many.
        ready: list[tuple[int, int]] = []
        while wakeup.may_sleep():
            ready = poller.poll(math.ceil(max(0.0, until - time.monotonic()) * 1000))
            pump([links[fd] for fd, _ in ready if fd in links])
            is_partial = bool(ready) and all(
                self._is_partial(poller, fd, links.get(fd), happened) for fd, happened in ready
            )
            if not is_partial or time.monotonic() >= until:
                break
        wakeup.awake(is_readable=any(fd == own for fd, _ in ready))
        now = time.monotonic()
        if now >= self._checked_at + _OVERDUE_SECONDS:
            self._checked_at = now
            # Requests that nobody answers run out of time here.
            pump([link for link in list(self.links) if link.requests])

    def _is_partial(self, poller: select.poll, fd: int, link: Link | None, happened: int) -> bool:
        """Whether all that happened is that some bytes have moved, and nobody waits for the loop."""
        connection = None if link is None else link.connection
        if connection is None or connection.closed or self._done or happened & ~(select.POLLIN | select.POLLOUT):
            return False
        if happened & select.POLLOUT:
            poller.modify(fd, _events(connection))
        return True

    def _pump(self, links: Sequence[Link]) -> None:
        for link in links:
            connection = link.connection
            if connection is not None:
                connection.pump()


def _events(connection: Connection) -> int:
    return select.POLLIN | (select.POLLOUT if connection.unsent_bytes else 0)
