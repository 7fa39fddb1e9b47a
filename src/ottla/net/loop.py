"""The event loop of producers and readers, which talk to many brokers at once.

An actor decides; the loop waits for sockets, timers and commands of other threads, and blocks on nothing else. The
actor hands in requests, each with a value to recognize it by. They come back as `Answer` values, each exactly once,
whatever happens to the connection. Slow work (connecting, metadata) runs in background tasks. The loop decides nothing
about requests and knows nothing of their content.

It is driven by a thread of its own, or by a program that waits for its results (`drive`), so that no other thread has
to be woken in between. Turns are taken under one lock; sockets are polled and pumped outside of it. While a program
drives (it holds `_seat`), the thread is parked (`parking.py`).

Ctrl-C, or the exception of any signal handler, can end a turn on the program's thread between two instructions. Nothing
is cleaned up then. Instead each turn sets a mark when it starts and clears it at its end; a turn that finds the mark
starts with `recover`. Locks are acquired only by `with`: CPython handles no signal between the lock and the block.
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
"""How often unanswered requests are checked for their deadlines."""
_JOIN_SECONDS = 5.0
_LONGEST_PARKING = 0.1
"""How often a parked thread checks whether the loop was stopped."""


class Actor(Protocol):
    """The logic that a loop runs. The calls never overlap, and come from the thread that currently drives the loop."""

    def begin(self) -> None:
        """Called once, when the loop starts."""

    def turn(self, now: float) -> float:
        """Do everything that can be done now. Returns when to be called again at the latest."""

    def recover(self) -> None:
        """Discard what an interrupted turn left half done. Every request, background task and lookup in progress is
        void, connections are closed, and a command that was running is called again."""

    def end(self, error: OttlaError | None) -> None:
        """Called once, when the loop ends: it was stopped, or the actor raised an error."""


class Answer(NamedTuple, Generic[R]):
    """The outcome of a request: the body of the response (empty if none was due), or an error."""

    request: R
    link: Link
    body: memoryview
    error: OttlaError | None


class Loop(Generic[R]):
    """One loop, from `start` to `stop`. `channel` names its connections."""

    def __init__(self, cluster: Cluster, *, channel: str, name: str, most_requests: int, events: Events) -> None:
        self.chance = random.Random()
        self._inner, self._outer = Wakeup(), Wakeup()
        """The wakeup of the loop's own thread, and that of a program that drives."""
        self.wakeup = Wakeups(self._inner, self._outer)
        self.background = BackgroundTasks(wake=self.wakeup.ring, name=name)
        self.links = Links(
            cluster,
            channel=channel,
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
        """Raised by each recovery: answers to requests of an earlier generation are void."""
        self._checked_at = 0.0
        self._has_begun = False
        self._stopping = False
        self._turning = threading.Lock()
        self._seat = threading.RLock()
        """Held by a program that drives, even while it polls. Only the parked thread ever waits for it."""
        self._hands = threading.Lock()
        """Held by that program while it does more than poll: a signal handler must not start another turn then."""
        self._visitor = 0
        """The thread that drives, or drove last."""
        self._visits = 0
        self._is_visit_whole = True
        """The mark: False while a program does more than poll, and afterwards if that was interrupted."""
        self._is_whole = True
        """False if an interrupted turn was found: the next turn starts with `recover`."""
        self._is_handed_over = False
        self._is_parked = False
        self._rouse = threading.Lock()
        self._rouse.acquire()
        self._entry = [True]
        """A token: the thread that removes it runs the loop. `list.pop` is atomic."""
        self._thread: threading.Thread | None = None
        self._over = Flag()

    # Any thread

    def start(self, actor: Actor) -> None:
        """Start the loop's thread. Idempotent, so that it may be interrupted anywhere and repeated."""
        if self._entry:
            threading.Thread(target=self._run, args=(actor,), name=self.name, daemon=True).start()

    def stop(self, actor: Actor, deadline: Deadline) -> None:
        """End the loop, and block until it has ended or the deadline passes. It cannot be started afterwards."""
        self.stop_soon()
        if self._may_enter():
            actor.end(None)
            self._over.set()
            self.wakeup.close()
        elif self.is_elsewhere and self._over.wait(deadline.remaining()) and self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def stop_soon(self) -> None:
        """Have the loop's thread end the loop, without waiting for it. Finalizers may call it."""
        self._stopping = True
        self.wakeup.ring()
        self._wake_parked()

    @property
    def is_stopping(self) -> bool:
        """Whether it ends after this turn."""
        return self._stopping

    @property
    def has_stopped(self) -> bool:
        """Whether the loop has ended."""
        return self._over.is_set()

    @property
    def is_elsewhere(self) -> bool:
        """Whether the loop runs, or is about to, on another thread than this one."""
        return not (self._over.is_set() or threading.current_thread() is self._thread or self.is_mine)

    @property
    def is_mine(self) -> bool:
        """Whether this thread is in the middle of a turn that `drive` started."""
        return self._hands.locked() and self._visitor == threading.get_ident()

    def call(self, command: Callable[[], None]) -> None:
        """Have the loop's thread call `command` before its next turn."""
        self._commands.append(command)
        self.wakeup.ring()

    def result_of(self, command: Callable[[], T], deadline: Deadline | None = None) -> T:
        """Return the result of `command`, called on the loop's thread, or on this one if the loop has ended.

        Raises `OttlaError` if the loop ends meanwhile, and `TimeoutError` at the deadline.
        """
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
                raise TimeoutError(f"{self.name} did not answer in time")
        return results[0]

    # A program that waits

    def drive(self, actor: Actor, is_done: Callable[[], bool], deadline: Deadline) -> None:
        """Run the loop on this thread until `is_done`, the deadline, or the end of the loop.

        Only one thread may drive at a time. Raises `OttlaError` in a signal handler that interrupts a turn of its own
        thread: it would wait for the very turn that it interrupts.
        """
        with self._seat:
            if self._hands.locked():
                raise OttlaError(
                    f"a signal handler interrupted {self.name} and waits for it;"
                    " set a flag in the handler and check it in the program"
                )
            self._visitor = threading.get_ident()
            self._visits += 1
            self._is_handed_over = False
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
        """Let the loop's own thread take over at once: the program is busy with something else for a while."""
        self._is_handed_over = True
        self._wake_parked()

    def _pump_visiting(self, links: Sequence[Link]) -> None:
        with self._hands:
            self._is_visit_whole = False
            self._pump(links)
            self._is_visit_whole = True

    # For the actor

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
        """Send a request without blocking. A later call of `answers` yields its outcome."""
        connection, generation = link.connection, self._generation
        link.requests += 1
        if connection is None:  # the request before this one, to the same broker, lost it
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
        """Send a small request from any thread while the loop sleeps and no other thread does so: see `start_at_once`.

        The actor counts it (`link.requests`) when it wakes up.
        """

        def answered(pending: Pending) -> None:
            self._done.append((self._generation, request, link, connection, pending))

        connection.start_at_once(api_key, version, body, deadline=Deadline.after(seconds), answered=answered)

    def failed_beside(self, request: R, link: Link, connection: Connection, error: OttlaError) -> None:
        """Report a request that `request_beside` could not send. For any thread."""
        self._done.append((self._generation, request, link, connection, error))
        self.wakeup.ring()

    def answers(self) -> Iterator[Answer[R]]:
        """Yield the outcomes of requests since the last call."""
        while self._done:
            generation, request, link, connection, result = self._done.popleft()
            if generation != self._generation:
                continue
            link.requests -= 1
            error = result.error if isinstance(result, Pending) else result
            if error is None:
                assert isinstance(result, Pending)
                body = result.result()
                del result  # request, Pending and callback form a cycle, which must not keep the response alive
                yield Answer(request, link, body, None)
                continue
            if connection is not None and link.connection is connection:
                self.links.lost(link, error)
            yield Answer(request, link, memoryview(b""), error)

    def distrust(self, link: Link, error: OttlaError) -> None:
        """Close a connection after a response that makes no sense."""
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
                        self._outer.ring()  # the program must see what this thread did since it came
                        self._park()
                        continue
                    self._inner.listen()
                    with self._turning:
                        until = self._turn(actor)
                    self._wait(until, self._inner, self._pump)
            except BaseException as bug:
                _log.exception("%s crashed; this is a bug", self.name)
                error = OttlaError(f"{self.name} crashed: {type(bug).__name__}: {bug}")
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
        self._is_whole = self._is_whole and self._is_visit_whole  # no program drives, so a mark means an interrupt
        self._seat.release()
        return False

    def _park(self) -> None:
        """Block until the program has been away for a while, or the loop is to end."""
        parking = Parking()
        self._is_parked = True
        while not self._stopping:
            step = parking.look(is_visited=self._is_visited(), visits=self._visits, is_handed_over=self._is_handed_over)
            if step is Next.DRIVE:
                break
            if step is Next.NAP:
                self._rouse.acquire(timeout=GRACE_SECONDS)
            elif self._seat.acquire(timeout=_LONGEST_PARKING):
                self._seat.release()
        self._is_parked = False

    def _wake_parked(self) -> None:
        if self._is_parked:
            try:
                self._rouse.release()
            except RuntimeError:
                pass  # it is already free

    # The thread that drives

    def _turn(self, actor: Actor) -> float:
        """Take one turn, with the lock held. Returns when the next one is due at the latest."""
        if not self._has_begun:
            actor.begin()
            self._has_begun = True
        if not self._is_whole:
            self._recover(actor)
            self._is_whole = self._is_visit_whole = True
        self.background.collect()
        while self._commands:
            self._commands[0]()
            self._commands.popleft()  # only now: an interrupted command is called again
        for link in self.links:
            if link.connection is not None and link.connection.closed and not self._is_used(link):
                self.links.idled(link)
        until = actor.turn(time.monotonic())
        return 0.0 if self._done else until

    def _is_used(self, link: Link) -> bool:
        """Whether a request was in flight on it. One that was sent outside of the loop may not be counted yet."""
        return link.requests > 0 or any(link is other for _, _, other, _, _ in self._done)

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
        # A part of a request or response is no reason for a whole turn: a large one comes in many parts.
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
            # Requests without a response time out here.
            pump([link for link in list(self.links) if link.requests])

    def _is_partial(self, poller: select.poll, fd: int, link: Link | None, happened: int) -> bool:
        """Whether the only news is that some bytes have moved."""
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
