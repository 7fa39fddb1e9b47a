"""The syslog listener as a whole: its sockets and threads, what becomes of messages, its counters.

Settings and an `Intake` come in. It is a `Listener`: what runs the gateway starts, drains and ends it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import numpy as np

from ottla.errors import ConfigError, OttlaError
from ottla.gateway.counts import Count, Counts
from ottla.gateway.handing import Handing
from ottla.gateway.intake import Intake
from ottla.gateway.receiving import sockets
from ottla.gateway.receiving.arrivals import Arrivals, of_messages
from ottla.gateway.receiving.cutting import SyslogCutting
from ottla.gateway.receiving.datagrams import DatagramReceiver
from ottla.gateway.receiving.receivers import Receivers
from ottla.gateway.receiving.streams import StreamReceiver
from ottla.gateway.syslog.clock import clock_at, zone_named
from ottla.gateway.syslog.parsing import ERROR_NAMES, parse
from ottla.gateway.syslog.rules import Topics
from ottla.gateway.syslog.settings import SyslogSettings
from ottla.gateway.syslog.shapes import Shaping
from ottla.wire.kernels import syslog as k

_WHAT = "the syslog listener"
_CLOCK_MS = 60_000
"""How long the zone's offset is taken for granted."""


class SyslogListener:
    """Takes syslog messages and hands them to the producer."""

    def __init__(self, settings: SyslogSettings, intake: Intake, *, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._handing = Handing(intake, full_seconds=settings.full_seconds)
        self._clock = clock
        self._counts = Counts("received", "received_bytes", "messages", "empty", "dropped_by_system", "lost")
        self._receivers = Receivers(_WHAT, owns_files=settings.owns_files)
        self._addresses: tuple[str, ...] = ()
        self._is_closed = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it listens."""
        return self._addresses

    def start(self) -> None:
        """Open all sockets and receive. Raises `OttlaError`, with nothing left open."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise
        self._addresses = self._receivers.addresses
        # Loads the kernels: the first message does not wait for them.
        parse(of_messages([b""], received_ms=0), clock_at(0, None))
        self._receivers.start()

    def hand_over(self) -> dict[str, list[socket.socket]]:
        """Return copies of its sockets by name for the process that comes next, which then owns their files."""
        self._receivers.leave_files()
        found: dict[str, list[socket.socket]] = {}
        for receiver in self._receivers:
            name = "syslog-tls" if isinstance(receiver, StreamReceiver) and receiver.is_tls else "syslog"
            found.setdefault(name, []).append(receiver.socket.dup())
        return found

    def stop_accepting(self) -> None:
        """Remove the socket files and take no more connections."""
        self._receivers.stop_accepting()

    def drain(self, timeout: float) -> bool:
        """Read what has arrived and hand it over. Returns whether that was done in time."""
        return self._receivers.drain(time.monotonic() + timeout)

    def close(self) -> None:
        """End at once."""
        if self._is_closed:
            return
        self._is_closed = True
        self._receivers.stop_accepting()
        self._handing.close()
        self._receivers.close()

    def counters(self) -> tuple[Count, ...]:
        """Return what was counted so far."""
        return tuple(sorted((*self._counts.snapshot(), Count("connections_open", (), self._receivers.connections))))

    def _open(self) -> None:
        settings = self._settings
        reuse = settings.reuse_port
        for host, port in settings.udp:
            self._add_datagrams(
                sockets.udp_socket(host, port, reuse_port=reuse, receive_bytes=settings.receive_buffer_bytes)
            )
        for host, port in settings.tcp:
            self._add_stream(sockets.stream_listener(host, port, reuse_port=reuse))
        for host, port in settings.tls:
            self._add_stream(sockets.stream_listener(host, port, reuse_port=reuse), is_tls=True)
        if settings.path is not None:
            self._add_datagrams(self._receivers.unix_socket(settings.path, socket.SOCK_DGRAM, mode=settings.mode))
        if settings.stream_path is not None:
            self._add_stream(self._receivers.unix_socket(settings.stream_path, socket.SOCK_STREAM, mode=settings.mode))
        self._open_passed()
        if not self._receivers:
            raise ConfigError(f"{_WHAT} has no place to listen: name a port or a path")

    def _open_passed(self) -> None:
        """Take the sockets that systemd opened."""
        settings = self._settings
        for descriptor in settings.udp_descriptors:
            sock = self._receivers.adopt(descriptor, socket.SOCK_DGRAM)
            sockets.prepare_udp(sock, receive_bytes=settings.receive_buffer_bytes)
            self._add_datagrams(sock)
        for descriptor in settings.datagram_descriptors:
            sock = self._receivers.adopt(descriptor, socket.SOCK_DGRAM)
            self._add_datagrams(sock)
        for descriptor in (*settings.tcp_descriptors, *settings.tls_descriptors, *settings.stream_descriptors):
            sock = self._receivers.adopt(descriptor, socket.SOCK_STREAM)
            self._add_stream(sock, is_tls=descriptor in settings.tls_descriptors)

    def _add_datagrams(self, sock: socket.socket) -> None:
        receiver = DatagramReceiver(
            sock,
            SyslogHandling(self._settings, self._handing, self._counts),
            counts=self._counts,
            most_bytes=self._settings.datagram_bytes,
            linger=self._settings.linger,
            clock=self._clock,
        )
        self._receivers.add(receiver)

    def _add_stream(self, sock: socket.socket, *, is_tls: bool = False) -> None:
        settings = self._settings
        tls = settings.server_tls.context() if is_tls and settings.server_tls is not None else None
        receiver = StreamReceiver(
            sock,
            SyslogHandling(settings, self._handing, self._counts),
            cutter=SyslogCutting(settings.framing, most_bytes=settings.frame_bytes),
            counts=self._counts,
            limits=settings.streams,
            tls=tls,
            linger=settings.linger,
            clock=self._clock,
        )
        self._receivers.add(receiver)


class SyslogHandling:
    """Makes records of messages that arrived together, and hands them over by topic. One for each receiver's thread."""

    def __init__(self, settings: SyslogSettings, handing: Handing, counts: Counts) -> None:
        self._topics = Topics(settings.rules, default=settings.topic)
        self._shaping = Shaping(settings.shape, settings.key, headers=settings.headers, host=settings.host)
        self._zone = zone_named(settings.timezone)
        self._handing = handing
        self._counts = counts
        self._clock = clock_at(0, self._zone)

    def __call__(self, arrivals: Arrivals) -> None:
        """Hand over all messages."""
        parsed = parse(arrivals, self._clock_of(arrivals.received_ms))
        if len(parsed.table) < len(arrivals):
            self._counts.add("empty", len(arrivals) - len(parsed.table))
        if not len(parsed.table):
            return
        errors = parsed.table[:, k.ERROR]
        if errors.any():
            for code, count in enumerate(np.bincount(errors).tolist()):
                if code and count:
                    self._counts.add("marked", count, error=ERROR_NAMES[code])
        chosen = self._topics.choose(parsed)
        for number in np.unique(chosen).tolist():
            topic = self._topics.names[number]
            rows = np.flatnonzero(chosen == number)
            records, times = self._shaping.batch(parsed, rows)
            self._counts.add("messages", len(rows), topic=topic)
            self._handing(topic, records, times, lost=self._lost)

    def _clock_of(self, now_ms: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
        if abs(now_ms - int(self._clock[k.NOW])) > _CLOCK_MS:
            self._clock = clock_at(now_ms, self._zone)
        return self._clock

    def _lost(self, topic: str, records: int, first_time: float, last_time: float, why: OttlaError) -> None:
        """Count records that were taken and then lost, as `intake.Loss`."""
        self._counts.add("lost", records, topic=topic, reason=type(why).__name__)
