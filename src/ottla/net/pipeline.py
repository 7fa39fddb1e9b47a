"""A transport shared by threads: frames go out whole and in turn, answers come back to whoever asked.

Pendings and their bytes come in; each is completed with its answer, or with the error that ended the line.
No thread belongs to a line: whoever has bytes to send becomes its sender and whoever waits for an answer its reader,
if nobody is yet, and does the work of others on the way to its own. A line that is in doubt (a deadline passed, bytes
that make no sense) is lost as a whole, so that a late answer can never meet another question.
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
"""How long a sender waits for room while another thread reads: that thread may leave the rest unread."""


class Pipeline:
    """One transport with its traffic."""

    def __init__(self, transport: Transport, *, frames: Frames) -> None:
        self.address = transport.address
        self.traffic = Traffic(transport)
        self._transport = transport
        self._frames = frames
        self._offered = 0
        """How many bytes the last call could have received."""
        self._pid = os.getpid()

    @property
    def is_encrypted(self) -> bool:
        """Whether it uses TLS."""
        return self._transport.is_encrypted

    def fileno(self) -> int:
        """The descriptor of the socket, -1 once it is closed."""
        return self._transport.fileno()

    def start(self, pending: Pending, frame: Sequence[memoryview]) -> None:
        """Sends what the socket takes now and leaves the rest to `pump`. Raises only if the line was lost before."""
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
        """Sends a small frame in one step, without becoming the sender: for a caller who knows that there is none, and
        who may be interrupted at any place and wait, or never come back. What comes of that is a lost line.
        """
        self._check_process()
        self.traffic.expect(pending)
        if not self._transport.enter():
            return  # it has just ended: `pending` has failed, or will
        try:
            count = self._transport.send(frame)
            if count < sum(map(len, frame)):
                self.traffic.lose("the socket took only a part of a small request")
        except OSError as exc:
            self.traffic.lose(f"sending failed: {_reason(exc)}", cause=exc)
        finally:
            self._transport.leave()
        pending.sent = time.monotonic()

    def send(self, pending: Pending, frame: Sequence[memoryview]) -> None:
        """Returns when the frame is out or `pending` has failed.

        Raises, and harms nobody, when the line was lost before or what others have queued is not out in time.
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
            self._send_some()  # what was queued while this thread was the sender
        except Exception:
            raise
        except BaseException:
            self.traffic.end_if_kept()
            raise

    def wait_for(self, pending: Pending) -> None:
        """Returns when `pending` is done; when its deadline passes, the line is lost."""
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
        """Sends and completes what can be, and waits for the first, until the deadline; how many are done now."""
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
        """Ends the line from this side."""
        if os.getpid() != self._pid:
            self._transport.abandon()
        else:
            self.traffic.lose("closed by this side")

    def discard(self) -> None:
        """Ends the line of a thread that was interrupted while it sent or read, and may have left its role behind. No
        other thread may be using it."""
        self.close()
        self._transport.abandon()

    # Sending

    def _send_some(self) -> None:
        """Sends what is queued until the socket is full, unless another thread is at it."""
        traffic = self.traffic
        full = False
        while traffic.unsent_bytes and not full and traffic.take(traffic.sender):
            try:
                full = not self._send_queued()
            finally:
                traffic.leave(traffic.sender)

    def _push(self, pending: Pending) -> None:
        """One step towards an empty queue for a thread that waits, at most until the deadline of `pending`."""
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
        """For the sender: whether everything is out, else the socket is full. Failing ends the line."""
        try:
            views = self.traffic.next_views()
            while views:
                count = self._transport.send(views)
                if count == 0:
                    return False
                views = self.traffic.took(count)
        except OSError as exc:
            self._read_last_words()
            self.traffic.lose(f"sending failed: {_reason(exc)}", cause=exc)
        except BaseException:
            self.traffic.lose("interrupted in the middle of sending")  # Ctrl-C: half a frame is out
            raise
        return True

    def _wait_for_room(self, deadline: Deadline) -> None:
        """A broker that waits for us to read takes nothing more: so read, too, unless another thread does."""
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
        """Whether to go on: not without a deadline, and not beyond it or that of any request."""
        traffic = self.traffic
        if deadline is None or traffic.lost is not None:
            return False
        limit = Deadline(min(deadline.at, traffic.soonest()))
        if limit.expired():
            return False
        sending = traffic.unsent_bytes and not traffic.sender.taken
        self._transport.wait(select.POLLIN | (select.POLLOUT if sending else 0), limit.remaining())
        return True

    def _read_last_words(self) -> None:
        """What the other side said before it closed: answers, or a TLS alert that explains it."""
        traffic = self.traffic
        if traffic.take(traffic.reader):
            try:
                self._read_all()
            finally:
                traffic.leave(traffic.reader)

    def _read_all(self) -> None:
        # Until nothing is left: what OpenSSL has decrypted already does not make a socket readable. A plain one that
        # did not fill the space has nothing more: asking would only give the interpreter to other threads. But the
        # rest of an answer is on its way.
        while (count := self._read_once()) and (
            count == self._offered or self._frames.inside_frame or self.is_encrypted
        ):
            pass

    def _read_once(self) -> int:
        """Receives what one call gives; how many bytes that were. Whatever is wrong ends the line."""
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
            return "closed by the broker in the middle of an answer"
        return "closed by the broker" + self.traffic.suspicion

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"the connection to {self.address} was opened in process {self._pid} before fork();"
                f" make a client of its own in the child"
            )


def _reason(exc: OSError) -> str:
    return (exc.strerror or str(exc)).lower()
