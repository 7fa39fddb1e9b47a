"""The send queue of a connection: whole frames, in the order of their requests.

Frames come in as views; the views to send next go out, and the number of bytes that the socket took comes back.
Nothing is copied. It never locks or touches a socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ottla.net.pending import Pending, Reply
from ottla.net.transport import MOST_BUFFERS


@dataclass(slots=True, eq=False)
class _Frame:
    """One request and its unsent bytes."""

    pending: Pending
    views: list[memoryview]

    def took(self, count: int) -> int:
        """Drop the first `count` bytes. Returns how many of them belong to the frames behind this one."""
        whole = 0
        while whole < len(self.views) and count >= len(self.views[whole]):
            count -= len(self.views[whole])
            whole += 1
        del self.views[:whole]
        if not self.views:
            return count
        self.views[0] = self.views[0][count:]
        return 0


class Outbox:
    """The frames that the socket has not taken completely."""

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self._frames: deque[_Frame] = deque()

    def add(self, pending: Pending, views: Sequence[memoryview]) -> None:
        """Append a frame. Its memory must not change until it is sent."""
        self._frames.append(_Frame(pending, list(views)))
        self.unsent_bytes += sum(map(len, views))

    def next(self) -> list[memoryview]:
        """Return the views for the next call of the socket, of several frames if possible; empty if none is left."""
        views: list[memoryview] = []
        for frame in tuple(self._frames):  # a copy: a signal handler may end the connection meanwhile
            views += frame.views[: MOST_BUFFERS - len(views)]
            if len(views) == MOST_BUFFERS:
                break
        return views

    def took(self, count: int) -> list[Pending]:
        """Drop the first `count` bytes, which the socket took. Returns the requests that are now sent completely."""
        everything = count == self.unsent_bytes
        self.unsent_bytes -= count
        if everything:  # the usual case: no need to walk through the views
            sent = [frame.pending for frame in tuple(self._frames)]
            self._frames.clear()
            return sent
        sent = []
        while count and self._frames:
            frame = self._frames[0]
            count = frame.took(count)
            if not frame.views:
                sent.append(self._frames.popleft().pending)
        return sent

    def unanswered(self) -> Iterator[Pending]:
        """Yield the queued requests that get no response: they are in no other queue."""
        # Over a copy: a signal handler may send something meanwhile.
        return (frame.pending for frame in tuple(self._frames) if frame.pending.reply is Reply.NONE)

    def drain(self) -> list[Pending]:
        """Empty the queue and return the requests that `unanswered` would yield."""
        waiting = list(self.unanswered())
        self._frames.clear()
        self.unsent_bytes = 0
        return waiting
