"""Settings of the syslog listener, as values that are checked when they are made."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from ottla.config import check_kind, check_seconds, check_whole
from ottla.errors import ConfigError
from ottla.gateway.handing import FULL_SECONDS
from ottla.gateway.receiving.cutting import Framing
from ottla.gateway.receiving.datagrams import LINGER
from ottla.gateway.receiving.sockets import RECEIVE_BUFFER_BYTES
from ottla.gateway.receiving.streams import StreamLimits
from ottla.gateway.syslog.clock import LOCAL, zone_named
from ottla.gateway.syslog.rules import Rule, Topics
from ottla.gateway.syslog.shapes import HEADERS, Key, Shape
from ottla.gateway.tls import ServerTls

_LEAST_BYTES = 480  # RFC 5424: every receiver must take these
_MOST_BYTES = 1 << 20
_GROWTH = {Shape.RAW: 4, Shape.JSON: 15}
"""How many times larger a record may be: key and headers repeat parts of it, JSON writes a control character as six."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyslogSettings:
    """Where syslog messages are taken, and what becomes of them."""

    topic: str
    """For messages that no rule fits."""
    rules: tuple[Rule, ...] = ()
    udp: tuple[tuple[str, int], ...] = ()
    tcp: tuple[tuple[str, int], ...] = ()
    tls: tuple[tuple[str, int], ...] = ()
    server_tls: ServerTls | None = None
    path: Path | None = None
    """A unix datagram socket, as programs of this machine write to."""
    stream_path: Path | None = None
    udp_descriptors: tuple[int, ...] = ()
    """Sockets that systemd opened; the following ones likewise."""
    tcp_descriptors: tuple[int, ...] = ()
    tls_descriptors: tuple[int, ...] = ()
    datagram_descriptors: tuple[int, ...] = ()
    """Unix datagram sockets."""
    stream_descriptors: tuple[int, ...] = ()
    """Unix stream sockets."""
    owns_files: bool = False
    """Whether the files of those sockets are removed at the end: a gateway passed them on, not systemd."""
    anyone_may_write: bool = False
    """Whether machines beyond this one may send without a client certificate."""
    mode: int = 0o666
    shape: Shape = Shape.RAW
    key: Key = Key.HOST
    headers: tuple[str, ...] = HEADERS
    framing: Framing = Framing.DETECT
    frame_bytes: int = 64 << 10
    """A longer message on a connection is truncated and marked."""
    datagram_bytes: int = 64 << 10
    record_bytes: int = 1_000_000
    """The largest record that the producer takes."""
    timezone: str = LOCAL
    """The zone of times without one."""
    linger: float = LINGER
    full_seconds: float = FULL_SECONDS
    """How long receiving waits while the producer has no room. Then messages are lost and counted."""
    reuse_port: bool = False
    receive_buffer_bytes: int = RECEIVE_BUFFER_BYTES
    streams: StreamLimits = field(default_factory=StreamLimits)
    host: str = field(default_factory=socket.gethostname)
    """Stands for messages without a host that came through a unix socket."""

    @property
    def places(self) -> tuple[str, ...]:
        """Where it listens, as text."""
        paths = [f"unix:{path}" for path in (self.path, self.stream_path) if path is not None]
        named = (("udp", self.udp), ("tcp", self.tcp), ("tls", self.tls))
        return (*paths, *(f"{kind}:{host}:{port}" for kind, found in named for host, port in found))

    def __post_init__(self) -> None:
        Topics(self.rules, default=self.topic)
        zone_named(self.timezone)
        check_kind("shape", self.shape, Shape)
        check_kind("key", self.key, Key)
        check_kind("framing", self.framing, Framing)
        check_whole("mode", self.mode, lowest=0, highest=0o777)
        check_whole("frame_bytes", self.frame_bytes, lowest=_LEAST_BYTES, highest=_MOST_BYTES)
        check_whole("datagram_bytes", self.datagram_bytes, lowest=_LEAST_BYTES, highest=_MOST_BYTES)
        check_whole("record_bytes", self.record_bytes, lowest=1, highest=1 << 30)
        largest = _GROWTH[self.shape] * max(self.frame_bytes, self.datagram_bytes)
        if largest > self.record_bytes:
            raise ConfigError(
                f"a message of {max(self.frame_bytes, self.datagram_bytes):,} bytes can become a record of"
                f" {largest:,}, the producer takes {self.record_bytes:,}: lower frame_bytes and datagram_bytes"
            )
        check_whole("receive_buffer_bytes", self.receive_buffer_bytes, lowest=1 << 12, highest=1 << 31)
        check_seconds("SyslogSettings", "linger", self.linger, lowest=0.0)
        check_seconds("SyslogSettings", "full_seconds", self.full_seconds, lowest=0.0)
        for name in self.headers:
            if name not in HEADERS:
                raise ConfigError(f"{name!r} is no header of a syslog record; accepted are {', '.join(HEADERS)}")
        if (self.tls or self.tls_descriptors) and self.server_tls is None:
            raise ConfigError("syslog over TLS needs a certificate and its key")
