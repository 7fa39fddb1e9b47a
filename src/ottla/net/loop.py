"""The loop under everything that talks to many brokers at once: producers, readers, and what will stand on them.

An actor decides, the loop waits: for sockets, timers and callers at once, on one thread that blocks on nothing else.
Requests come in with what the actor wants to know them by and come back as `Answer` values, each exactly once, whatever
becomes of the connection. What takes long (connecting, metadata) is an errand beside the loop. It decides nothing about
requests and knows nothing of their content.
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
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ottla.config import LONGEST
from ottla.errors import ConnectionLost, OttlaError
from ottla.events import Events
from ottla.net.bell import Bell
from ottla.net.cluster import Cluster
from ottla.net.connection import Buffer, Connection
from ottla.net.deadline import Deadline
from ottla.net.errands import Errands
from ottla.net.links import Link, Links
from ottla.net.lookups import Lookups
from ottla.net.pending import Pending, Reply
from ottla.net.waiting import Flag

_log = logging.getLogger(__name__)
R = TypeVar("R")
T = TypeVar("T")
_LONGEST_NAP = 1.0
_OVERDUE_SECONDS = 0.1
"""How often requests that nobody answers are looked at."""
_JOIN_SECONDS = 5.0


class Actor(Protocol):
    """What a loop is run for. All calls come from the loop's thread, one after the other."""

    def begin(self) -> None:
        """The loop has started."""

    def turn(self, now: float) -> float:
        """Does whatever can be done now; when it wants to be called again at the latest."""

    def end(self, error: OttlaError | None) -> None:
        """The loop has ended, because it was stopped or on an error of the actor's."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[R]):
    """What became of a request: the body of the answer, or an error. The body is empty where none was due."""

    request: R
    link: Link
    body: memoryview
    error: OttlaError | None


class Loop(Generic[R]):
    """One loop. `start` begins it, `stop` ends it; `lane` names its connections."""

    def __init__(self, cluster: Cluster, *, lane: str, name: str, most_requests: int, events: Events) -> None:
        self.chance = random.Random()
        self.bell = Bell()
        self.errands = Errands(wake=self.bell.ring, name=name)
        self.links = Links(
            cluster,
            lane=lane,
            most_requests=most_requests,
            errands=self.errands,
            events=events,
            chance=self.chance,
        )
        self.lookups = Lookups(cluster, errands=self.errands, events=events)
        self._name = name
        self._commands: deque[Callable[[], None]] = deque()
        self._done: deque[tuple[R, Link, Connection | None, Pending | OttlaError]] = deque()
        self._checked_at = 0.0
        self._stopping = False
        self._entry = [True]
        """Whoever takes it out runs the loop."""
        self._thread: threading.Thread | None = None
        self._over = Flag()

    # Any thread

    def start(self, actor: Actor) -> None:
        """Begins. To start it again does no harm, so that it may be interrupted anywhere."""
        if self._entry:
            threading.Thread(target=self._run, args=(actor,), name=self._name, daemon=True).start()

    def stop(self, actor: Actor, deadline: Deadline) -> None:
        """Ends it, and returns when it has ended or at the deadline. One that was not started cannot be any more."""
        self._stopping = True
        self.bell.ring()
        if self._may_enter():
            actor.end(None)
            self._over.set()
            self.bell.close()
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
        """Whether it runs, or is about to, in another thread than this."""
        return not self._over.is_set() and threading.current_thread() is not self._thread

    def call(self, command: Callable[[], None]) -> None:
        """Has `command` called on the loop's thread, before its next turn."""
        self._commands.append(command)
        self.bell.ring()

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
                raise OttlaError(f"{self._name} has stopped; see the log")
            if limit.expired():
                raise TimeoutError(f"{self._name} did not answer")
        return results[0]

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
        connection = link.connection
        link.requests += 1
        if connection is None:  # lost by the request before this one, to the same broker
            self._done.append((request, link, None, ConnectionLost(link.broker.address, "the connection has ended")))
            return

        def answered(pending: Pending) -> None:
            self._done.append((request, link, connection, pending))

        try:
            connection.start(api_key, version, body, deadline=Deadline.after(seconds), reply=reply, answered=answered)
        except OttlaError as error:
            self._done.append((request, link, connection, error))

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
        """Sends it from any thread, while the loop sleeps. The actor counts it (`link.requests`) when it wakes up."""

        def answered(pending: Pending) -> None:
            self._done.append((request, link, connection, pending))

        connection.start(api_key, version, body, deadline=Deadline.after(seconds), answered=answered)

    def failed_beside(self, request: R, link: Link, connection: Connection, error: OttlaError) -> None:
        """A request that `request_beside` could not send; any thread."""
        self._done.append((request, link, connection, error))
        self.bell.ring()

    def answers(self) -> Iterator[Answer[R]]:
        """What became of requests since the last time."""
        while self._done:
            request, link, connection, result = self._done.popleft()
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

    # The loop's thread

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
                actor.begin()
                while not self._stopping:
                    self._turn(actor)
            except BaseException as bug:
                _log.exception("%s stopped on an error that should not be", self._name)
                error = OttlaError(f"{self._name} stopped: {type(bug).__name__}: {bug}")
                error.__cause__ = bug
            self._stopping = True
            actor.end(error)
        finally:
            self._over.set()
            self.bell.close()

    def _turn(self, actor: Actor) -> None:
        self.bell.listen()
        self.errands.collect()
        while self._commands:
            self._commands.popleft()()
        until = actor.turn(time.monotonic())
        if not self._done:
            self._wait(until)

    def _wait(self, until: float) -> None:
        poller = select.poll()
        poller.register(self.bell.fileno(), select.POLLIN)
        links: dict[int, Link] = {}
        for link in self.links:
            connection = link.connection
            if connection is not None and (fd := connection.fileno()) >= 0:
                links[fd] = link
                poller.register(fd, _events(connection))
        until = min(until, time.monotonic() + _LONGEST_NAP)
        # A part of a request or an answer alone is no reason for a whole turn: a large one comes in many.
        while self.bell.may_sleep():
            ready = poller.poll(math.ceil(max(0.0, until - time.monotonic()) * 1000))
            for fd, _ in ready:
                if fd in links:
                    self._pump(links[fd])
            is_partial = bool(ready) and all(
                self._is_partial(poller, links.get(fd), happened) for fd, happened in ready
            )
            if not is_partial or time.monotonic() >= until:
                break
        self.bell.drain()
        now = time.monotonic()
        if now >= self._checked_at + _OVERDUE_SECONDS:
            self._checked_at = now
            for link in list(self.links):
                if link.requests:
                    self._pump(link)  # requests that nobody answers run out of time here

    def _is_partial(self, poller: select.poll, link: Link | None, happened: int) -> bool:
        """Whether all that happened is that some bytes have moved, and nobody waits for the loop."""
        connection = None if link is None else link.connection
        if connection is None or connection.closed or self._done or happened & ~(select.POLLIN | select.POLLOUT):
            return False
        if happened & select.POLLOUT:
            poller.modify(connection.fileno(), _events(connection))
        return True

    def _pump(self, link: Link) -> None:
        connection = link.connection
        if connection is None:
            return
        connection.pump()
        if connection.closed and not link.requests and link.connection is connection:
            self.links.idled(link)


def _events(connection: Connection) -> int:
    return select.POLLIN | (select.POLLOUT if connection.unsent_bytes else 0)
