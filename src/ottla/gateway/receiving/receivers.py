"""The receivers of one listener, and the socket files it owns: they start, drain and close together.

A listener opens its sockets and makes the receivers; what a message means is not known here.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from ottla.gateway.activation import adopt
from ottla.gateway.receiving import sockets
from ottla.gateway.receiving.datagrams import DatagramReceiver
from ottla.gateway.receiving.streams import StreamReceiver

Receiver: TypeAlias = DatagramReceiver | StreamReceiver


class Receivers:
    """All receivers of a listener. `what` names the listener in errors; `owns_files` is about passed unix sockets."""

    def __init__(self, what: str, *, owns_files: bool) -> None:
        self._what = what
        self._owns_files = owns_files
        self._receivers: list[Receiver] = []
        self._files: list[sockets.SocketFile] = []

    def __iter__(self) -> Iterator[Receiver]:
        return iter(self._receivers)

    def __bool__(self) -> bool:
        return bool(self._receivers)

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where they listen, as text."""
        return tuple(sockets.shown(receiver.socket) for receiver in self._receivers)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return sum(receiver.connections for receiver in self._receivers if isinstance(receiver, StreamReceiver))

    def add(self, receiver: Receiver) -> None:
        """Take a receiver that has not started."""
        self._receivers.append(receiver)

    def unix_socket(self, path: Path, kind: int, *, mode: int) -> socket.socket:
        """Open a unix socket whose file goes when no more is accepted. Raises as `sockets.unix_socket`."""
        sock = sockets.unix_socket(path, kind, mode=mode)
        self._files.append(sockets.file_of(path))
        return sock

    def adopt(self, descriptor: int, kind: int) -> socket.socket:
        """Take a socket that was passed on; it does not block. Raises `ConfigError` if it is of another kind."""
        sock = adopt(descriptor, kind=kind, what=self._what)
        sock.setblocking(False)
        if self._owns_files and sock.family == socket.AF_UNIX:
            self._files.append(sockets.file_of(Path(os.fsdecode(sock.getsockname()))))
        return sock

    def start(self) -> None:
        """Receive."""
        for receiver in self._receivers:
            receiver.start()

    def leave_files(self) -> None:
        """Own no socket files any more: they belong to the process that comes next."""
        self._files.clear()

    def stop_accepting(self) -> None:
        """Remove the socket files and take no more connections. Senders to an own socket fail once it is empty."""
        own = {str(file.path) for file in self._files}
        for file in self._files:
            sockets.remove(file)
        self._files.clear()
        for receiver in self._receivers:
            if isinstance(receiver, StreamReceiver):
                receiver.stop_accepting()
            elif receiver.path in own:
                receiver.refuse_senders()

    def drain(self, until: float) -> bool:
        """Read what has arrived and hand it over. Returns whether that was done by then, in monotonic time."""
        self.stop_accepting()
        for receiver in self._receivers:  # all begin to end before any is waited for
            receiver.drain(0)
        are_done = [receiver.drain(max(0.0, until - time.monotonic())) for receiver in self._receivers]
        return all(are_done)

    def close(self) -> None:
        """End at once. May be called twice."""
        self.stop_accepting()
        for receiver in self._receivers:
            receiver.close()
