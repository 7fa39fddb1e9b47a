"""Settings of the socket to write to and forget, as a value that is checked when it is made."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from ottla.config import check_seconds, check_whole
from ottla.errors import ConfigError
from ottla.gateway.handing import FULL_SECONDS
from ottla.gateway.receiving.datagrams import LINGER
from ottla.gateway.receiving.streams import StreamLimits

_SMALLEST, _LARGEST_DATAGRAM, _LARGEST = 28, 8 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class DatagramSettings:
    """Where messages in dory's format are taken. At least one of the three places, or a socket that was passed on."""

    path: Path | None = None
    """A unix datagram socket."""
    stream_path: Path | None = None
    """A unix stream socket."""
    tcp: tuple[str, int] | None = None
    """A TCP port of this machine alone: the format has neither names nor passwords."""
    datagram_descriptors: tuple[int, ...] = ()
    """Unix datagram sockets that systemd opened."""
    stream_descriptors: tuple[int, ...] = ()
    """Stream sockets that systemd opened, unix or TCP."""
    owns_files: bool = False
    """Whether the files of those sockets are removed at the end: a gateway passed them on, not systemd."""
    mode: int = 0o222
    """The rights of the unix sockets: all users of the machine may write."""
    datagram_bytes: int = 64 << 10
    message_bytes: int = 16 << 20
    """The largest message on a stream. A larger one ends its connection."""
    record_bytes: int = 1_000_000
    """The largest key and value that the producer takes."""
    linger: float = LINGER
    """Seconds that a message waits for others."""
    report_seconds: int = 600
    reports: int = 144
    """How many finished reports of discards are kept."""
    samples: bool = True
    """Whether the status pages show the beginnings of messages that were not understood, as dory's do."""
    held_bytes: int = 64 << 20
    """Messages with a partition key that wait for the partitions of their topic."""
    held_seconds: float = 60.0
    full_seconds: float = FULL_SECONDS
    """How long senders wait while the producer has no room. Then messages are discarded and counted."""
    streams: StreamLimits = field(default_factory=StreamLimits)

    @property
    def places(self) -> tuple[str, ...]:
        """Where it listens, as text."""
        paths = [f"unix:{path}" for path in (self.path, self.stream_path) if path is not None]
        return (*paths, *(() if self.tcp is None else ("tcp:{}:{}".format(*self.tcp),)))

    def __post_init__(self) -> None:
        if self.tcp is not None and not _is_loopback(self.tcp[0]):
            raise ConfigError(
                f"the socket would listen on {self.tcp[0]}, which other machines can reach: its format has no"
                " authentication; use 127.0.0.1 or ::1"
            )
        check_whole("datagram_bytes", self.datagram_bytes, lowest=_SMALLEST, highest=_LARGEST_DATAGRAM)
        check_whole("message_bytes", self.message_bytes, lowest=_SMALLEST, highest=_LARGEST)
        check_whole("record_bytes", self.record_bytes, lowest=1, highest=_LARGEST)
        check_whole("report_seconds", self.report_seconds, lowest=1, highest=86_400)
        check_whole("reports", self.reports, lowest=1, highest=100_000)
        check_whole("held_bytes", self.held_bytes, lowest=0, highest=1 << 40)
        check_whole("mode", self.mode, lowest=0, highest=0o777)
        check_seconds("DatagramSettings", "linger", self.linger, lowest=0.0)
        check_seconds("DatagramSettings", "held_seconds", self.held_seconds, lowest=0.0)
        check_seconds("DatagramSettings", "full_seconds", self.full_seconds, lowest=0.0)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
