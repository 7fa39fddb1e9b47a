"""What is on its way on one line: frames to be sent, requests whose answer is due, and how the line ended.

Requests come in and are completed with their answers, or all together with the error that ended the line. Threads may
share it: it also says who sends and who reads, one thread at a time for each. It sends and receives nothing itself.
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
    """One of the two jobs on a line that a thread takes and leaves again."""

    __slots__ = ("holder", "taken")

    def __init__(self) -> None:
        self.taken = False
        self.holder = 0
        """The thread that has it, or had it last."""


class Traffic:
    """The shared state of one line."""

    def __init__(self, transport: Transport) -> None:
        self.address = transport.address
        self.completed = 0
        self.lost: str | None = None
        self.suspicion = ""
        """Added to the reason when the broker closes the line before it answered anything."""
        self.sender = Role()
        self.reader = Role()
        self._transport = transport
        self._in_flight = InFlight()
        self._outbox = Outbox()
        # Guards everything here; never held while sending, polling, waiting or calling back. A signal handler may come
        # in the middle of a call of its thread.
        self._lock = threading.RLock()
        self._midway = False
        """A request is being queued."""
        self._waiters = Waiters()

    @property
    def in_flight(self) -> int:
        """Requests whose answer is due."""
        return len(self._in_flight)

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the socket has not taken yet."""
        return self._outbox.unsent_bytes

    def take(self, role: Role) -> bool:
        """Whether this thread has the role from now on, until `leave`; not if another has it or the line is lost."""
        with self._lock:
            if role.taken or self.lost is not None:
                return False
            role.holder = threading.get_ident()
            role.taken = self._transport.enter()
            return role.taken

    def leave(self, role: Role) -> None:
        """Gives the role back."""
        with self._lock:
            role.taken = False
            self._notify()
        self._transport.leave()

    def end_if_kept(self) -> None:
        """For a thread that was interrupted, and may not have given back what it took: others would wait in vain."""
        thread = threading.get_ident()
        if any(role.taken and role.holder == thread for role in (self.sender, self.reader)):
            self.lose(_INTERRUPTED)

    def wait_beside(self, role: Role, deadline: Deadline, *, unless: Callable[[], bool]) -> None:
        """Waits for a change while another thread has the role; not if `unless` is true already.

        Where this thread itself has it, a signal handler came in the middle of a request, or Ctrl-C before a role could
        be given back: to wait would be in vain, and the line ends. Whoever asks tries again on another one.
        """
        if role.taken and role.holder == threading.get_ident():
            self.lose(_INTERRUPTED)
            return
        self._waiters.wait(deadline.remaining(), unless=lambda: not role.taken or unless())

    def queue(self, pending: Pending, frame: Sequence[memoryview]) -> None:
        """The frame goes out after all that is queued already."""
        with self._lock:
            self._queue(pending, frame)

    def expect(self, pending: Pending) -> None:
        """An answer to it is due from now on; whoever says so sends the frame himself.

        Without the lock: a signal handler may come in the middle of it, and wait for a thread that needs the lock.
        """
        self._in_flight.add(pending)
        # Looked at afterwards: `lose` says so first. Who takes the request out tells of it.
        if self.lost is not None and self._in_flight.withdraw(pending):
            raise ConnectionLost(self.address, self.lost)

    def queue_if_idle(self, pending: Pending, frame: Sequence[memoryview]) -> bool:
        """Queues it, unless other frames are still to go out; whether it did."""
        with self._lock:
            idle = not self._outbox.unsent_bytes
            if idle:
                self._queue(pending, frame)
            return idle

    def next_views(self) -> list[memoryview]:
        """For the sender: what to send now; empty when nothing is left."""
        with self._lock:
            return self._outbox.next()

    def took(self, count: int) -> list[memoryview]:
        """For the sender: the socket took `count` bytes; what to send next."""
        posted: list[Pending] = []
        with self._lock:
            if self.lost is not None:
                return []
            out = self._outbox.took(count)
            if self._is_lost():
                return []
            now = time.monotonic() if out else 0.0
            for pending in out:
                pending.sent = now
                if pending.reply is Reply.NONE:
                    pending.finish(_NOTHING, None)
                    posted.append(pending)
            self.completed += len(posted)
            if out:
                self._notify()
            views = self._outbox.next()
        for pending in posted:
            _call_back(pending)
        return views

    def complete(self, frame: memoryview) -> None:
        """For the reader: an answer has arrived."""
        with self._lock:
            if self.lost is not None:
                return
            pending = self._in_flight.meet(frame)
            if self._is_lost():
                return
            self.completed += 1
            self.suspicion = ""
            self._notify()
        _call_back(pending)

    def late(self) -> Pending | None:
        """A request whose deadline has passed."""
        now = time.monotonic()
        with self._lock:
            return next((pending for pending in self._waiting() if pending.deadline.at <= now), None)

    def soonest(self) -> float:
        """When the first deadline passes, by the monotonic clock; infinity when nothing waits."""
        with self._lock:
            return min((pending.deadline.at for pending in self._waiting()), default=float("inf"))

    def lose(self, reason: str, *, cause: Exception | None = None, late: Pending | None = None) -> None:
        """Ends the line, once: `late` has timed out, everybody else has lost the connection."""
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
        """By now: a signal handler that uses the line in the middle of a request of its thread ends it."""
        return self.lost is not None

    def _notify(self) -> None:
        if self._waiters:
            self._waiters.notify_all()

    def _queue(self, pending: Pending, frame: Sequence[memoryview]) -> None:
        if self._midway:  # what is in flight and what is to be sent are not the same: see `wait_beside`
            self.lose(_INTERRUPTED)
        if self.lost is not None:
            raise ConnectionLost(self.address, self.lost)
        self._midway = True
        if pending.reply is Reply.DUE:
            self._in_flight.add(pending)
        self._outbox.add(pending, frame)
        self._midway = False
        if self._is_lost() and not pending.done:  # a signal handler has ended the line before this one was listed
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
