"""Wakeups, where two threads come between each other."""

from __future__ import annotations

import socket

import pytest

from ottla.net.wakeup import Wakeup


def test_one_that_is_closed_while_its_sockets_are_made_has_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: who read from a reader that was closed just then got an error of the system."""
    wakeup = Wakeup()

    class Closing(socket.socket):
        def setblocking(self, flag: bool) -> None:
            wakeup.close()  # what the other thread does
            super().setblocking(flag)

    made = [Closing(fileno=made.detach()) for made in socket.socketpair()]
    monkeypatch.setattr("socket.socketpair", lambda: tuple(made))
    assert wakeup.fileno() == -1
    assert [each.fileno() for each in made] == [-1, -1]
