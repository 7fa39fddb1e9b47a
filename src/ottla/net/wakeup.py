"""Wakes a loop that polls sockets, from any thread.

Ringing is cheap while the loop is awake: it only sets a flag, which the loop checks before it goes to sleep.
"""

from __future__ import annotations

import socket

_MANY = 1 << 12


class Wakeup:
    """One loop listens, any thread rings. The sockets are opened at the first call of `fileno`."""

    def __init__(self) -> None:
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._asleep = False
        self._rung = False
        self._is_closed = False

    def fileno(self) -> int:
        """Return the descriptor to poll, -1 if closed. Call it before `may_sleep`."""
        if self._sockets is None:
            sockets = socket.socketpair()
            for sock in sockets:
                sock.setblocking(False)
            self._sockets = sockets  # last: another thread may close what it finds here
        if self._is_closed:  # another thread may have closed it just now
            self.close()
        return self._sockets[0].fileno()

    def ring(self) -> None:
        """Wake the loop."""
        self._rung = True  # first: the loop checks it after it has set `_asleep`
        # Only the loop clears `_asleep`. If this thread did, a signal handler that rings and waits could interrupt it
        # before it sends, and the loop would sleep on.
        if self._asleep and self._sockets is not None:
            try:
                self._sockets[1].send(b"!")
            except OSError:
                pass  # full, so the loop wakes anyway; or closed, so there is no loop

    def listen(self) -> None:
        """For the loop: start a turn. What is rung from now on is seen before the next sleep."""
        self._asleep = self._rung = False

    def may_sleep(self) -> bool:
        """For the loop: from now on ringing wakes the poll. Returns False if it was rung since `listen`."""
        self._asleep = True
        return not self._rung

    def awake(self, *, is_readable: bool) -> None:
        """For the loop: the poll is over. Empties the socket if the descriptor was readable."""
        self._asleep = False
        if is_readable and self._sockets is not None:
            try:
                self._sockets[0].recv(_MANY)
            except OSError:
                pass

    def close(self) -> None:
        """Close the sockets: the loop has ended."""
        self._is_closed = True
        for sock in self._sockets or ():
            sock.close()


class Wakeups:
    """Wakes whichever of two threads drives a loop: each listens to a wakeup of its own, `ring` rings both."""

    def __init__(self, first: Wakeup, second: Wakeup) -> None:
        self._both = first, second

    def ring(self) -> None:
        """Wake the loop."""
        for wakeup in self._both:
            wakeup.ring()

    def close(self) -> None:
        """Close both: the loop has ended."""
        for wakeup in self._both:
            wakeup.close()
