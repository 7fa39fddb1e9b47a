"""Wakes a loop that waits for sockets, from any thread.

Ringing is cheap while the loop is awake: it only leaves a mark, which the loop sees before it goes to sleep.
"""

from __future__ import annotations

import socket


class Bell:
    """One loop listens, anybody rings."""

    def __init__(self) -> None:
        self._hear, self._ring = socket.socketpair()
        self._hear.setblocking(False)
        self._ring.setblocking(False)
        self._asleep = False
        self._rung = False

    def fileno(self) -> int:
        """To poll."""
        return self._hear.fileno()

    def ring(self) -> None:
        """The loop looks again."""
        self._rung = True  # first this: the loop looks at it after it has said that it sleeps
        if self._asleep:
            self._asleep = False
            try:
                self._ring.send(b"!")
            except OSError:
                pass  # full: it wakes anyway; or closed: nobody is there

    def listen(self) -> None:
        """The loop is awake and about to look at everything."""
        self._asleep = self._rung = False

    def may_sleep(self) -> bool:
        """Whether nobody has rung since `listen`; from now on ringing wakes the poll."""
        self._asleep = True
        return not self._rung

    def drain(self) -> None:
        """Takes what made the descriptor readable."""
        self._asleep = False
        try:
            while self._hear.recv(64):
                pass
        except OSError:
            pass

    def close(self) -> None:
        """Nobody listens any more."""
        self._hear.close()
        self._ring.close()
