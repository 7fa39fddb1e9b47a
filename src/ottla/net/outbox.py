"""The bytes that are still to go out on a line: whole frames, in the order of their requests.

Frames come in as views, the views that go next come out, and the counts of bytes that the socket took come back;
nothing is copied. Nothing here locks or touches a socket.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ottla.net.pending import Pending, Reply
from ottla.net.transport import MOST_BUFFERS


@dataclass(slots=True, eq=False)
class _Frame:
    """One request and what is left of its bytes."""

    pending: Pending
    views: list[memoryview]

    def took(self, count: int) -> int:
        """The socket took `count` bytes from here on; how many of them belong to the frames behind this one."""
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
    """Frames of which some bytes were not yet taken by the socket."""

    def __init__(self) -> None:
        self.unsent_bytes = 0
        self._frames: deque[_Frame] = deque()

    def add(self, pending: Pending, views: Sequence[memoryview]) -> None:
        """The frame goes out after everything that was added before. Its memory must not change until then."""
        self._frames.append(_Frame(pending, list(views)))
        self.unsent_bytes += sum(map(len, views))

    def next(self) -> list[memoryview]:
        """What to hand to the socket now, of as many frames as one call takes; empty when all is out."""
        views: list[memoryview] = []
        for frame in tuple(self._frames):  # a signal handler may come in between, and end the line
            views += frame.views[: MOST_BUFFERS - len(views)]
            if len(views) == MOST_BUFFERS:
                break
        return views

    def took(self, count: int) -> list[Pending]:
        """The socket took the first `count` bytes: the requests that are now completely out."""
        everything = count == self.unsent_bytes
        self.unsent_bytes -= count
        if everything:  # nearly always: no need to walk through the views
            done = [frame.pending for frame in tuple(self._frames)]
            self._frames.clear()
            return done
        done = []
        while count and self._frames:
            frame = self._frames[0]
            count = frame.took(count)
            if not frame.views:
                done.append(self._frames.popleft().pending)
        return done

    def unanswered(self) -> Iterator[Pending]:
        """The requests in here that get no answer, so that nobody else waits for them."""
        # Of a copy: a signal handler may send something meanwhile.
        return (frame.pending for frame in tuple(self._frames) if frame.pending.reply is Reply.NONE)

    def drain(self) -> list[Pending]:
        """Empties it and returns what `unanswered` had."""
        waiting = list(self.unanswered())
        self._frames.clear()
        self.unsent_bytes = 0
        return waiting
