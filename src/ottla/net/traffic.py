"""The shared state of one connection: frames to send, requests in flight, and why the connection ended.

Requests come in and are completed with their responses, or all together with the error that ended the connection.
Threads share it: it also records which thread sends and which one reads, one at a time for each role. It never sends or
receives itself.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from ottla.errors import ConnectionLost, NetworkError, RequestTimedOut
from ottla.net.deadline import Deadline
from ottla.net.outbox import Outbox
from ottla.net.pending import InFlight, Pending, Reply
from ottla.net.transport import Transport
from ottla.net.waiting import Waiters

_log = logging.getLogger(__name__)
_NOTHING = memoryview(b"")
_INTERRUPTED = "interrupted in the middle of a request"


class Role:
    """One of the two roles on a connection, sender or reader, which a thread takes and gives back."""

    __slots__ = ("holder", "taken")

    def __init__(self) -> None:
        self.taken = False
        self.holder = 0
        """The thread that has the role, or had it last."""


class Traffic:
    """The shared state of one connection."""

    def __init__(self, transport: Transport) -> None:
        self.address = transport.address
        self.completed = 0
        self.lost: str | None = None
        self.close_hint = ""
        """Added to the reason if the broker closes the connection before its first response."""
        self.sender = Role()
        self.reader = Role()
        self._transport = transport
        self._in_flight = InFlight()
        self._outbox = Outbox()
        # Guards everything here. Never held while sending, polling, waiting or calling back. Reentrant, because a
        # signal handler may interrupt a call of its own thread.
        self._lock = threading.RLock()
        self._is_queuing = False
        """A request is being put into the queues; a signal handler may see it half done."""
        self._waiters = Waiters()

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._in_flight)

    @property
    def unsent_bytes(self) -> int:
        """The bytes that the socket has not taken yet."""
        return self._outbox.unsent_bytes

    def take(self, role: Role) -> bool:
        """Take the role until `leave`. Returns False if another thread has it, or the connection is lost."""
        with self._lock:
            if role.taken or self.lost is not None:
                return False
            role.holder = threading.get_ident()
            role.taken = self._transport.enter()
            return role.taken

    def leave(self, role: Role) -> None:
        """Give the role back."""
        with self._lock:
            role.taken = False
            self._notify()
        self._transport.leave()

    def end_if_kept(self) -> None:
        """End the connection if this thread, which was interrupted, still has a role: others would wait in vain."""
        thread = threading.get_ident()
        if any(role.taken and role.holder == thread for role in (self.sender, self.reader)):
            self.lose(_INTERRUPTED)

    def wait_beside(self, role: Role, deadline: Deadline, *, unless: Callable[[], bool]) -> None:
        """Wait for a change while another thread has the role, unless `unless` is already true.

        If this thread itself has the role, it is in a signal handler that interrupted a request, or Ctrl-C came before
        the role was given back. Waiting would be in vain, so the connection ends, and both requests are retried on
        another one.
        """
        if role.taken and role.holder == threading.get_ident():
            self.lose(_INTERRUPTED)
            return
        self._waiters.wait(deadline.remaining(), unless=lambda: not role.taken or unless())

    def queue(self, pending: Pending, frame: Sequence[memoryview]) -> None:
        """Queue a frame. Raises `ConnectionLost` if the connection has ended."""
        with self._lock:
            self._queue(pending, frame)

    def expect(self, pending: Pending) -> None:
        """Expect the response to a request whose frame the caller sends itself.

        Without the lock: a signal handler may interrupt it and wait for a thread that needs the lock. Raises
        `ConnectionLost` if the connection has ended.
        """
        self._in_flight.add(pending)
        # Checked afterwards: `lose` sets `lost` before it drains. The side that removes the request reports it.
        if self.lost is not None and self._in_flight.withdraw(pending):
            raise ConnectionLost(self.address, self.lost)

    def queue_if_idle(self, pending: Pending, frame: Sequence[memoryview]) -> bool:
        """Queue a frame if no other is waiting to be sent. Returns whether it did."""
        with self._lock:
            is_idle = not self._outbox.unsent_bytes
            if is_idle:
                self._queue(pending, frame)
            return is_idle

    def next_views(self) -> list[memoryview]:
        """For the sender: return what to send now, empty if nothing is left."""
        with self._lock:
            return self._outbox.next()

    def took(self, count: int) -> list[memoryview]:
        """For the sender: record that the socket took `count` bytes, and return what to send next."""
        finished: list[Pending] = []
        with self._lock:
            if self.lost is not None:
                return []
            sent = self._outbox.took(count)
            if self._is_lost():
                return []
            now = time.monotonic() if sent else 0.0
            for pending in sent:
                pending.sent = now
                if pending.reply is Reply.NONE:
                    pending.finish(_NOTHING, None)
                    finished.append(pending)
            self.completed += len(finished)
            if sent:
                self._notify()
            views = self._outbox.next()
        for pending in finished:
            _call_back(pending)
        return views

    def complete(self, frame: memoryview) -> None:
        """For the reader: complete the request that a response frame answers. Raises `WireError` if it answers none."""
        with self._lock:
            if self.lost is not None:
                return
            pending = self._in_flight.match(frame)
            if self._is_lost():
                return
            self.completed += 1
            self.close_hint = ""
            self._notify()
        _call_back(pending)

    def late(self) -> Pending | None:
        """Return a request whose deadline has passed, or None."""
        now = time.monotonic()
        with self._lock:
            return next((pending for pending in self._waiting() if pending.deadline.at <= now), None)

    def soonest(self) -> float:
        """Return when the first deadline passes, by the monotonic clock; infinity if no request waits."""
        with self._lock:
            return min((pending.deadline.at for pending in self._waiting()), default=float("inf"))

    def lose(self, reason: str, *, cause: Exception | None = None, late: Pending | None = None) -> None:
        """End the connection, once. `late` fails with `RequestTimedOut`, all other requests with `ConnectionLost`."""
        with self._lock:
            if self.lost is not None or (late is not None and late.done):
                return
            self.lost = reason
            failed = [*self._in_flight.drain(), *self._outbox.drain()]
            for pending in failed:
                kind = RequestTimedOut if pending is late else ConnectionLost
                pending.finish(None, _caused(kind(self.address, reason), cause))
            self.completed += len(failed)
            self._notify()
        _log.debug("connection to %s ended with %d requests in flight: %s", self.address, len(failed), reason)
        self._transport.end()
        for pending in failed:
            _call_back(pending)

    def _is_lost(self) -> bool:
        """Check again: a signal handler that uses the connection in the middle of a request of its thread ends it."""
        return self.lost is not None

    def _notify(self) -> None:
        if self._waiters:
            self._waiters.notify_all()

    def _queue(self, pending: Pending, frame: Sequence[memoryview]) -> None:
        if self._is_queuing:  # in a signal handler: the two queues do not agree. See `wait_beside`
            self.lose(_INTERRUPTED)
        if self.lost is not None:
            raise ConnectionLost(self.address, self.lost)
        self._is_queuing = True
        if pending.reply is Reply.DUE:
            self._in_flight.add(pending)
        self._outbox.add(pending, frame)
        self._is_queuing = False
        if self._is_lost() and not pending.done:  # a signal handler ended the connection before it was queued
            self._in_flight.withdraw(pending)
            self._outbox.drain()
            raise ConnectionLost(self.address, _INTERRUPTED)

    def _waiting(self) -> Iterator[Pending]:
        return itertools.chain(self._in_flight, self._outbox.unanswered())


def _caused(error: NetworkError, cause: Exception | None) -> NetworkError:
    error.__cause__ = cause
    return error


def _call_back(pending: Pending) -> None:
    if pending.answered is not None:
        pending.answered(pending)
