"""Free TCP ports of 127.0.0.1 for processes that need the same port again after a restart.

Ports are drawn below the system's ephemeral range (32768 and up on Linux, 49152 on macOS): any client could take a port
of that range while its broker is down.
"""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

from ottla.errors import LocalClusterError

HOST = "127.0.0.1"
_RANGE = range(20_000, 32_000)
_TRIES_PER_PORT = 200


class PortTaken(LocalClusterError):
    """Another process took a port between the moment it was chosen and the moment a process bound it."""


def free_ports(count: int, rng: random.Random) -> list[int]:
    """Return distinct ports that are free now. Another process may still take one, so starting must retry.

    Raises `LocalClusterError` if there are not enough.
    """
    with ExitStack() as listeners:
        return [_draw_port(listeners, rng) for _ in range(count)]


def _draw_port(listeners: ExitStack, rng: random.Random) -> int:
    for _ in range(_TRIES_PER_PORT):
        port = rng.choice(_RANGE)
        if listener := _listen(port):
            listeners.enter_context(listener)
            return port
    raise LocalClusterError(
        f"no free port on {HOST} between {_RANGE[0]} and {_RANGE[-1]} found in {_TRIES_PER_PORT} tries"
    )


def is_free(port: int) -> bool:
    """Return whether a server could bind this port now."""
    listener = _listen(port)
    if listener is not None:
        listener.close()
    return listener is not None


def is_open(port: int) -> bool:
    """Return whether a process accepts connections on this port."""
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _listen(port: int) -> socket.socket | None:
    listener = socket.socket()
    try:
        # Like the server sockets of Java and Redis: old connections in TIME_WAIT do not block the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, port))
        listener.listen(1)
    except OSError:
        listener.close()
        return None
    return listener
