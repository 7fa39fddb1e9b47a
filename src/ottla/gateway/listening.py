"""What the process that runs the gateway knows of a listener: how to start it, how to end it, and what it has counted.

The order is `start`, `stop_accepting`, `drain`, `close`. A listener hands what it received to the `Intake` and owns its
threads and sockets; the producer is not its own.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Protocol

from ottla.gateway.counts import Count


class Listener(Protocol):
    """Something that receives and hands over to the producer."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens, as text: `unix:/run/ottla.sock`, `udp:127.0.0.1:5514`. Known once it has started."""

    def start(self) -> None:
        """Open the sockets, all or none, and receive. Raises `OttlaError` with the address and the reason."""

    def hand_over(self) -> Mapping[str, Sequence[socket.socket]]:
        """Return copies of its sockets, by the names that `activation` knows, for the process that comes next.

        Called before `stop_accepting`, if at all. Files of sockets stay for that process.
        """

    def stop_accepting(self) -> None:
        """Take no more connections, and let no new sender find the socket. What has arrived is still read."""

    def drain(self, timeout: float) -> bool:
        """Read what has arrived, hand it over and end the threads. Returns whether that was done in time."""

    def close(self) -> None:
        """End at once: threads and sockets are gone when it returns. May be called at any time, and twice."""

    def counters(self) -> tuple[Count, ...]:
        """Return what was counted so far."""
