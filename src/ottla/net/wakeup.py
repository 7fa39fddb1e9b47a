"""Wakes a loop that waits for sockets, from any thread.

Ringing is cheap while the loop is awake: it only leaves a mark, which the loop sees before it goes to sleep.
"""

from __future__ import annotations

import socket

_MANY = 1 << 12


class Wakeup:
    """One loop listens, anybody rings. It opens its sockets when the loop first asks for one to poll."""

    def __init__(self) -> None:
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._asleep = False
        self._rung = False
        self._is_closed = False

    def fileno(self) -> int:
        """To poll, before `may_sleep`; -1 when it is closed."""
        if self._sockets is None:
            self._sockets = socket.socketpair()
            for one in self._sockets:
                one.setblocking(False)
        if self._is_closed:  # also if another thread did it just now
            self.close()
        return self._sockets[0].fileno()

    def ring(self) -> None:
        """The loop looks again."""
        self._rung = True  # first this: the loop looks at it after it has said that it sleeps
        # Only the loop says that it is awake. A thread that said so first could be interrupted before it sends, by a
        # signal handler that rings and waits, and the loop would sleep on.
        if self._asleep and self._sockets is not None:
            try:
                self._sockets[1].send(b"!")
            except OSError:
                pass  # full: it wakes anyway; or closed: nobody is there

    def listen(self) -> None:
        """The loop is awake and about to look at everything."""
        self._asleep = self._rung = False

    def may_sleep(self) -> bool:
        """Whether nobody has rung since `listen`; from now on ringing wakes the poll."""
        self._asleep = True
        return not self._rung

    def awake(self, *, is_readable: bool) -> None:
        """The poll is over; takes what has made the descriptor readable, if it was."""
        self._asleep = False
        if is_readable and self._sockets is not None:
            try:
                self._sockets[0].recv(_MANY)
            except OSError:
                pass

    def close(self) -> None:
        """Nobody listens any more."""
        self._is_closed = True
        for one in self._sockets or ():
            one.close()


class Wakeups:
    """Wakes whichever of two threads drives a loop: each listens to a wakeup of its own, callers ring both."""

    def __init__(self, first: Wakeup, second: Wakeup) -> None:
        self._both = first, second

    def ring(self) -> None:
        """The loop looks again."""
        for wakeup in self._both:
            wakeup.ring()

    def close(self) -> None:
        """Nobody listens any more."""
        for wakeup in self._both:
            wakeup.close()
