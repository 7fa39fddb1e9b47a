"""Free TCP ports of 127.0.0.1 for processes that must find the same port free again when they are restarted.

Ports are drawn below the range from which the system gives outgoing connections theirs (32768 and up on Linux,
49152 on macOS): a port of that range may be taken by any client while its broker is down.
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
    """Somebody else took a port between the moment it was chosen and the moment a process bound it."""


def free_ports(count: int, chance: random.Random) -> list[int]:
    """Distinct ports that nobody listens on now; somebody may still be quicker, so starting must retry."""
    with ExitStack() as held:
        return [_hold_one(held, chance) for _ in range(count)]


def _hold_one(held: ExitStack, chance: random.Random) -> int:
    for _ in range(_TRIES_PER_PORT):
        port = chance.choice(_RANGE)
        if hold := _bound(port):
            held.enter_context(hold)
            return port
    raise LocalClusterError(
        f"no free port found on {HOST} in {_TRIES_PER_PORT} tries between {_RANGE[0]} and {_RANGE[-1]}"
    )


def is_free(port: int) -> bool:
    """Whether a server could bind this port now."""
    hold = _bound(port)
    if hold is not None:
        hold.close()
    return hold is not None


def is_open(port: int) -> bool:
    """Whether somebody accepts connections on this port."""
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _bound(port: int) -> socket.socket | None:
    hold = socket.socket()
    try:
        # As Java's and Redis's server sockets do: old connections in TIME_WAIT do not keep a port taken.
        hold.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        hold.bind((HOST, port))
        hold.listen(1)
    except OSError:
        hold.close()
        return None
    return hold
