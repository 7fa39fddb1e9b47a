"""A transport that threads share: frames go out whole and in order, responses come back to their requests.

Requests and their bytes come in; each is completed with its response, or with the error that ended the connection.
There is no extra thread: a thread with bytes to send takes the role of the sender, one that waits for a response that
of the reader, and each does the work of the others until its own is done. After anything doubtful (a deadline passed,
bytes that make no sense) the whole connection is lost, so that a late response can never match another request.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence

from ottla.errors import RequestTimedOut, UsedAfterFork, WireError
from ottla.net.deadline import Deadline
from ottla.net.frames import Frames
from ottla.net.pending import Pending
from ottla.net.traffic import Traffic
from ottla.net.transport import Transport

_POLL_SECONDS = 0.05
"""How long a sender waits for room while another thread reads: that thread may stop reading before the end."""


class Pipeline:
    """One transport with its requests in flight."""

    def __init__(self, transport: Transport, *, frames: Frames) -> None:
        self.address = transport.address
        self.traffic = Traffic(transport)
        self._transport = transport
        self._frames = frames
        self._offered = 0
        """The size of the space of the last receive call."""
        self._pid = os.getpid()

    @property
    def is_encrypted(self) -> bool:
        """Whether it uses TLS."""
        return self._transport.is_encrypted

    def fileno(self) -> int:
        """Return the descriptor of the socket, -1 once it is closed."""
        return self._transport.fileno()

    def start(self, pending: Pending, frame: Sequence[memoryview]) -> None:
        """Send what the socket takes now and leave the rest to `pump`.

        Raises `ConnectionLost` if the connection was lost before.
        """
        self._check_process()
        try:
            self.traffic.queue(pending, frame)
            self._send_some()
        except Exception:
            raise
        except BaseException:
            self.traffic.end_if_kept()
            raise

    def send_at_once(self, pending: Pending, frame: Sequence[memoryview]) -> None:
        """Send a small frame in one step, without taking the role of the sender.

        For a caller that knows that there is no sender, and that may be interrupted anywhere and block, or never come
        back. At worst the connection is lost.
        """
        self._check_process()
        self.traffic.expect(pending)
        if not self._transport.enter():
            return  # the connection has just ended: `pending` has failed, or will
        try:
            count = self._transport.send(frame)
            if count < sum(map(len, frame)):
                self.traffic.lose("the socket took only part of a small request")
        except OSError as exc:
            self.traffic.lose(f"sending failed: {_reason(exc)}", cause=exc)
        finally:
            self._transport.leave()
        pending.sent = time.monotonic()

    def send(self, pending: Pending, frame: Sequence[memoryview]) -> None:
        """Block until the frame is sent or `pending` has failed.

        Raises `ConnectionLost` if the connection was lost before, and `RequestTimedOut`, without closing the
        connection, if the requests ahead of it were not sent in time.
        """
        self._check_process()
        try:
            while not self.traffic.queue_if_idle(pending, frame):
                if pending.deadline.expired():
                    reason = f"other requests were still being sent {pending.deadline.seconds:.1f} s on"
                    raise RequestTimedOut(self.address, reason)
                self._push(pending)
            while pending.sent is None and not pending.done:
                if pending.deadline.expired():
                    self._time_out(pending)
                else:
                    self._push(pending)
            self._send_some()  # what others have queued while this thread was the sender
        except Exception:
            raise
        except BaseException:
            self.traffic.end_if_kept()
            raise

    def wait_for(self, pending: Pending) -> None:
        """Block until `pending` is done. If its deadline passes, the connection is lost."""
        self._check_process()
        traffic = self.traffic
        try:
            while not pending.done:
                if pending.deadline.expired():
                    self._time_out(pending)
                elif pending.sent is None:
                    self._push(pending)
                elif traffic.take(traffic.reader):
                    try:
                        self._read_until(pending)
                    finally:
                        traffic.leave(traffic.reader)
                else:
                    traffic.wait_beside(traffic.reader, pending.deadline, unless=lambda: pending.done)
        except Exception:
            raise
        except BaseException:
            self.traffic.end_if_kept()
            raise

    def pump(self, deadline: Deadline | None) -> int:
        """Send and receive what is possible now, and return how many requests completed.

        With a deadline, block until the first one completes.
        """
        self._check_process()
        traffic = self.traffic
        before = traffic.completed
        waiting = True
        try:
            while waiting:
                self._send_some()
                if not traffic.take(traffic.reader):
                    break
                try:
                    self._read_all()
                    waiting = traffic.completed == before and self._wait_in(deadline)
                finally:
                    traffic.leave(traffic.reader)
            late = traffic.late()
            if late is not None:
                self._time_out(late)
            return traffic.completed - before
        except Exception:
            raise
        except BaseException:
            self.traffic.end_if_kept()
            raise

    def close(self) -> None:
        """End the connection from this side."""
        if os.getpid() != self._pid:
            self._transport.abandon()
        else:
            self.traffic.lose("closed by this side")

    def discard(self) -> None:
        """End the connection after its thread was interrupted while sending or reading, perhaps without giving its role
        back. No other thread may be using it."""
        self.close()
        self._transport.abandon()

    # Sending

    def _send_some(self) -> None:
        """Send what is queued until the socket is full, unless another thread is the sender."""
        traffic = self.traffic
        full = False
        while traffic.unsent_bytes and not full and traffic.take(traffic.sender):
            try:
                full = not self._send_queued()
            finally:
                traffic.leave(traffic.sender)

    def _push(self, pending: Pending) -> None:
        """Take one step towards an empty send queue, blocking at most until the deadline of `pending`."""
        traffic = self.traffic
        if not traffic.take(traffic.sender):
            traffic.wait_beside(
                traffic.sender, pending.deadline, unless=lambda: pending.sent is not None or pending.done
            )
            return
        try:
            if not self._send_queued():
                self._wait_for_room(pending.deadline)
        finally:
            traffic.leave(traffic.sender)

    def _send_queued(self) -> bool:
        """For the sender: send until the queue is empty (True) or the socket is full (False)."""
        try:
            views = self.traffic.next_views()
            while views:
                count = self._transport.send(views)
                if count == 0:
                    return False
                views = self.traffic.took(count)
        except OSError as exc:
            self._read_rest()
            self.traffic.lose(f"sending failed: {_reason(exc)}", cause=exc)
        except BaseException:
            self.traffic.lose("interrupted in the middle of sending")  # Ctrl-C: half a frame may be sent
            raise
        return True

    def _wait_for_room(self, deadline: Deadline) -> None:
        """Wait until the socket takes more. Also read: a broker that waits for us to read takes nothing."""
        traffic = self.traffic
        if not traffic.take(traffic.reader):
            self._transport.wait(select.POLLOUT, min(deadline.remaining(), _POLL_SECONDS))
            return
        try:
            events = self._transport.wait(select.POLLIN | select.POLLOUT, deadline.remaining())
            if events & ~select.POLLOUT:
                self._read_all()
        finally:
            traffic.leave(traffic.reader)

    # Receiving

    def _read_until(self, pending: Pending) -> None:
        while not pending.done and self.traffic.lost is None and not pending.deadline.expired():
            if not self._read_once() and self.traffic.lost is None:
                self._transport.wait(select.POLLIN, pending.deadline.remaining())

    def _wait_in(self, deadline: Deadline | None) -> bool:
        """Wait for the socket. Returns False if there is no deadline, or it or that of a request has passed."""
        traffic = self.traffic
        if deadline is None or traffic.lost is not None:
            return False
        limit = Deadline(min(deadline.at, traffic.soonest()))
        if limit.expired():
            return False
        sending = traffic.unsent_bytes and not traffic.sender.taken
        self._transport.wait(select.POLLIN | (select.POLLOUT if sending else 0), limit.remaining())
        return True

    def _read_rest(self) -> None:
        """Read what the other side sent before it closed: responses, or a TLS alert that explains why."""
        traffic = self.traffic
        if traffic.take(traffic.reader):
            try:
                self._read_all()
            finally:
                traffic.leave(traffic.reader)

    def _read_all(self) -> None:
        # With TLS, read until nothing is left: bytes that OpenSSL has already decrypted do not make a socket readable.
        # A plain socket that did not fill the space is empty, and another call would only release the interpreter lock
        # to other threads. In the middle of a frame, call again: its rest is about to arrive.
        while (count := self._read_once()) and (
            count == self._offered or self._frames.inside_frame or self.is_encrypted
        ):
            pass

    def _read_once(self) -> int:
        """Receive once and return the number of bytes. Any error ends the connection."""
        try:
            space = self._frames.space()
            self._offered = len(space)
            count = self._transport.receive(space)
            if count == 0:
                self.traffic.lose(self._end_reason())
            for frame in self._frames.received(count) if count else ():
                self.traffic.complete(frame)
            return count or 0
        except OSError as exc:
            self.traffic.lose(f"receiving failed: {_reason(exc)}", cause=exc)
        except WireError as exc:
            self.traffic.lose(str(exc), cause=exc)
        except BaseException:
            self.traffic.lose("interrupted in the middle of receiving")  # Ctrl-C: bytes may be missing
            raise
        return 0

    # Ending

    def _time_out(self, late: Pending) -> None:
        stage = "answered" if late.sent is not None else "taken by the broker"
        self.traffic.lose(f"{late.name} was not {stage} within {late.deadline.seconds:.1f} s", late=late)

    def _end_reason(self) -> str:
        if self._frames.inside_frame:
            return "closed by the broker in the middle of a response"
        return "closed by the broker" + self.traffic.close_hint

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"the connection to {self.address} was opened in process {self._pid} before fork();"
                f" create a new client in the child process"
            )


def _reason(exc: OSError) -> str:
    return (exc.strerror or str(exc)).lower()
