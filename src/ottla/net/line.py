"""A transport shared by threads: frames go out whole and in turn, answers come back to whoever asked.

Pendings and their bytes come in; each is completed with its answer, or with the error that ended the line.
No thread belongs to a line: whoever waits for an answer becomes its reader, if nobody is yet, and completes
the answers of others on the way to its own. A line that is in doubt (a deadline passed, bytes that make no
sense) is lost as a whole, so that a late answer can never meet another question.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
from collections.abc import Iterator, Sequence

from ottla.errors import ConnectionLost, NetworkError, RequestTimedOut, UsedAfterFork, WireError
from ottla.net.deadline import Deadline
from ottla.net.frames import Frames
from ottla.net.pending import InFlight, Pending
from ottla.net.transport import Transport

_log = logging.getLogger(__name__)
_POLL_SECONDS = 0.05
"""How long a sender waits for room while another thread reads: that thread may leave the rest unread."""


class Line:
    """One transport with its requests in flight."""

    def __init__(self, transport: Transport, *, frames: Frames) -> None:
        self.address = transport.address
        self.completed = 0
        self.lost: str | None = None
        self.suspicion = ""
        """Added to the reason when the broker closes the line before it answered anything."""
        self._transport = transport
        self._frames = frames
        self._in_flight = InFlight()
        self._send_lock = threading.Lock()
        # Guards what follows, `lost` and `_in_flight`; never held while polling or calling back.
        self._state = threading.Condition()
        self._reading = False
        self._pid = os.getpid()

    @property
    def in_flight(self) -> int:
        """Requests whose answer is due."""
        return len(self._in_flight)

    def fileno(self) -> int:
        """The descriptor of the socket, -1 once it is closed."""
        return self._transport.fileno()

    @contextlib.contextmanager
    def turn(self, deadline: Deadline) -> Iterator[None]:
        """The right to send one frame. Raises, and harms nobody, when it does not come before the deadline."""
        self._check_process()
        if not self._send_lock.acquire(timeout=deadline.remaining()):
            raise RequestTimedOut(self.address, f"other requests were still being sent {deadline.seconds:.1f} s on")
        try:
            if self.lost is not None:
                raise ConnectionLost(self.address, self.lost)
            yield
        finally:
            self._send_lock.release()

    def send(self, pending: Pending, frame: Sequence[memoryview]) -> None:
        """Sends within a `turn`. Failing is told through `pending` only."""
        with self._state:
            lost = self.lost
            if lost is None:
                self._in_flight.add(pending)
        if lost is None:
            self.post(pending, frame)
        else:
            pending.finish(None, ConnectionLost(self.address, lost))
            _call_back(pending)

    def post(self, pending: Pending, frame: Sequence[memoryview]) -> None:
        """Sends within a `turn` a frame that gets no answer; `pending` is done only if that failed."""
        if not self._transport.enter():
            return
        try:
            self._send_all(list(frame), pending)
        except OSError as exc:
            self._read_last_words()
            self.lose(f"sending failed: {_reason(exc)}", cause=exc)
        except BaseException:
            self.lose("interrupted in the middle of sending")  # Ctrl-C: half a frame is out
            raise
        finally:
            self._transport.leave()

    def wait_for(self, pending: Pending) -> None:
        """Returns when `pending` is done; when its deadline passes, the line is lost."""
        self._check_process()
        while not pending.done:
            if pending.deadline.expired():
                self._time_out(pending)
            elif self._become_reader():
                try:
                    self._read_until(pending)
                finally:
                    self._stop_reading()
            else:
                with self._state:
                    if self._reading and not pending.done:
                        self._state.wait(pending.deadline.remaining())

    def pump(self, deadline: Deadline | None) -> int:
        """Completes what has arrived and waits for the first, until the deadline; how many are done now."""
        self._check_process()
        before = self.completed
        if self._become_reader():
            try:
                self._read_all()
                while self.completed == before and self._wait_in(deadline):
                    self._read_all()
            finally:
                self._stop_reading()
        with self._state:
            late = self._in_flight.expired()
        if late is not None:
            self._time_out(late)
        return self.completed - before

    def lose(self, reason: str, *, cause: Exception | None = None, late: Pending | None = None) -> None:
        """Ends the line, once: `late` has timed out, everybody else has lost the connection."""
        with self._state:
            if self.lost is not None or (late is not None and late.done):
                return
            self.lost = reason
            failed = self._in_flight.drain()
            for pending in failed:
                kind = RequestTimedOut if pending is late else ConnectionLost
                pending.finish(None, _caused(kind(self.address, reason), cause))
            if late is not None and not late.done:
                late.finish(None, RequestTimedOut(self.address, reason))
            self.completed += len(failed)
            self._state.notify_all()
        _log.debug("connection to %s ended with %d requests in flight: %s", self.address, len(failed), reason)
        self._transport.end()
        for pending in failed:
            _call_back(pending)

    def close(self) -> None:
        """Ends the line from this side."""
        if os.getpid() != self._pid:
            self._transport.abandon()
        else:
            self.lose("closed by this side")

    # Sending

    def _send_all(self, views: list[memoryview], pending: Pending) -> None:
        first = 0
        while first < len(views) and self.lost is None:
            count = self._transport.send(views[first:] if first else views)
            if count == 0:
                self._wait_for_room(pending)
            while first < len(views) and count >= len(views[first]):
                count -= len(views[first])
                first += 1
            if count:
                views[first] = views[first][count:]

    def _wait_for_room(self, pending: Pending) -> None:
        """A broker that waits for us to read takes nothing more: so read, too, unless another thread does."""
        if pending.deadline.expired():
            self._time_out(pending)
        elif not self._become_reader():
            self._transport.wait(select.POLLOUT, min(pending.deadline.remaining(), _POLL_SECONDS))
        else:
            try:
                events = self._transport.wait(select.POLLIN | select.POLLOUT, pending.deadline.remaining())
                if events & ~select.POLLOUT:
                    self._read_all()
            finally:
                self._stop_reading()

    # Receiving

    def _become_reader(self) -> bool:
        with self._state:
            if self._reading or self.lost is not None:
                return False
            self._reading = self._transport.enter()
            return self._reading

    def _stop_reading(self) -> None:
        with self._state:
            self._reading = False
            self._state.notify_all()
        self._transport.leave()

    def _read_until(self, pending: Pending) -> None:
        while not pending.done and self.lost is None and not pending.deadline.expired():
            if not self._read_once() and self.lost is None:
                self._transport.wait(select.POLLIN, pending.deadline.remaining())

    def _wait_in(self, deadline: Deadline | None) -> bool:
        """Whether to go on reading: not without a deadline, and not beyond it or that of any request."""
        if deadline is None or self.lost is not None:
            return False
        with self._state:
            limit = Deadline(min(deadline.at, self._in_flight.soonest()))
        if limit.expired():
            return False
        self._transport.wait(select.POLLIN, limit.remaining())
        return True

    def _read_last_words(self) -> None:
        """What the other side said before it closed: answers, or a TLS alert that explains it."""
        if self._become_reader():
            try:
                self._read_all()
            finally:
                self._stop_reading()

    def _read_all(self) -> None:
        # Until it would block: what OpenSSL has decrypted already does not make a socket readable.
        while self._read_once():
            pass

    def _read_once(self) -> int:
        """Receives what one call gives; how many bytes that were. Whatever is wrong ends the line."""
        try:
            count = self._transport.receive(self._frames.space())
            if count == 0:
                self.lose(self._end_reason())
            for frame in self._frames.received(count) if count else ():
                self._complete(frame)
            return count or 0
        except OSError as exc:
            self.lose(f"receiving failed: {_reason(exc)}", cause=exc)
        except WireError as exc:
            self.lose(str(exc), cause=exc)
        except BaseException:
            self.lose("interrupted in the middle of receiving")  # Ctrl-C: bytes may be missing
            raise
        return 0

    def _complete(self, frame: memoryview) -> None:
        with self._state:
            if self.lost is not None:
                return
            pending = self._in_flight.meet(frame)
            self.completed += 1
            self.suspicion = ""
            self._state.notify_all()
        _call_back(pending)

    # Ending

    def _time_out(self, late: Pending) -> None:
        self.lose(f"{late.name} was not answered within {late.deadline.seconds:.1f} s", late=late)

    def _end_reason(self) -> str:
        if self._frames.inside_frame:
            return "closed by the broker in the middle of an answer"
        return "closed by the broker" + self.suspicion

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"the connection to {self.address} was opened in process {self._pid} before fork();"
                f" make a client of its own in the child"
            )


def _caused(error: NetworkError, cause: Exception | None) -> NetworkError:
    error.__cause__ = cause
    return error


def _call_back(pending: Pending) -> None:
    if pending.answered is not None:
        pending.answered(pending)


def _reason(exc: OSError) -> str:
    return (exc.strerror or str(exc)).lower()
