"""The socket to write to and forget as a whole: its sockets and threads, its counters, its status.

Settings and an `Intake` come in. It is a `Listener`: what runs the gateway starts, drains and ends it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from copy import deepcopy

from ottla._version import VERSION
from ottla.errors import ConfigError, OttlaError
from ottla.gateway.counts import Count, Counts
from ottla.gateway.datagram.delivering import Delivering
from ottla.gateway.datagram.discards import Discards
from ottla.gateway.datagram.handling import Handling
from ottla.gateway.datagram.losses import Losses
from ottla.gateway.datagram.pages import Queue, Snapshot
from ottla.gateway.datagram.reading import read_all
from ottla.gateway.datagram.settings import DatagramSettings
from ottla.gateway.handing import Handing
from ottla.gateway.intake import Intake
from ottla.gateway.receiving import sockets
from ottla.gateway.receiving.arrivals import of_messages
from ottla.gateway.receiving.cutting import SizedCutting
from ottla.gateway.receiving.datagrams import DatagramReceiver
from ottla.gateway.receiving.receivers import Receivers
from ottla.gateway.receiving.streams import StreamReceiver
from ottla.produce.route import Partitions

_LEAST_BYTES = 8
_WHAT = "the socket in dory's format"


class DatagramListener:
    """Takes messages in dory's format and hands them to the producer."""

    def __init__(self, settings: DatagramSettings, intake: Intake, *, clock: Callable[[], float] = time.time) -> None:
        self._settings = settings
        self._clock = clock
        self._since = clock()
        self._counts = Counts("received", "received_bytes", "messages", "discarded")
        discards = Discards(
            self._since, period=settings.report_seconds, keep=settings.reports, samples=settings.samples
        )
        self._losses = Losses(discards, self._counts, clock=clock)
        self._intake = intake
        self._handing = Handing(intake, full_seconds=settings.full_seconds)
        self._delivering = Delivering(
            self._handing,
            self._losses,
            known=self._known_partitions,
            look_up=self._look_up,
            held_bytes=settings.held_bytes,
            held_seconds=settings.held_seconds,
        )
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
        read_all(of_messages([b""], received_ms=0))
        self._delivering.start()
        self._receivers.start()

    def hand_over(self) -> dict[str, list[socket.socket]]:
        """Return copies of its sockets by name for the process that comes next, which then owns their files."""
        self._receivers.leave_files()
        return {"socket": [receiver.socket.dup() for receiver in self._receivers]}

    def stop_accepting(self) -> None:
        """Remove the socket files and take no more connections."""
        self._receivers.stop_accepting()

    def drain(self, timeout: float) -> bool:
        """Read what has arrived and hand it over. Returns whether that was done in time."""
        until = time.monotonic() + timeout
        is_done = self._receivers.drain(until)
        return self._delivering.drain(max(0.0, until - time.monotonic())) and is_done

    def close(self) -> None:
        """End at once. What waits for partitions is discarded and counted."""
        if self._is_closed:
            return
        self._is_closed = True
        self._receivers.stop_accepting()
        self._handing.close()
        self._receivers.close()
        self._delivering.close()

    def counters(self) -> tuple[Count, ...]:
        """Return what was counted so far."""
        now = (Count("connections_open", (), self._receivers.connections), Count("held", (), self._delivering.held))
        return tuple(sorted((*self._counts.snapshot(), *now)))

    def snapshot(self) -> Snapshot:
        """Return what the status pages show."""
        with self._losses.discards() as (discards, now):
            # Copies: a page is made while threads go on counting.
            unfinished, finished, earlier = deepcopy(
                (discards.running(now), discards.last_finished(now), discards.finished(now))
            )
        queues = tuple(Queue(topic, 0, 0, count) for topic, count in self._losses.under_way().items())
        return Snapshot(
            pid=os.getpid(),
            version=VERSION,
            since=self._since,
            now=now,
            counters=self.counters(),
            interval=self._settings.report_seconds,
            unfinished=unfinished,
            finished=finished,
            earlier=earlier,
            queues=queues,
            new=self._delivering.held,
        )

    def _look_up(self, topic: str, seconds: float) -> Partitions:
        """Return the partitions of a topic. Raises `OttlaError` if they are not known in time."""
        return self._intake.producer.partitions(topic, timeout=seconds)

    def _known_partitions(self, topic: str) -> Partitions | None:
        """Return the partitions of a topic, None if they are not known now, for whatever reason."""
        try:
            return self._look_up(topic, 0.0)
        except OttlaError:
            return None

    def _open(self) -> None:
        settings = self._settings
        if settings.path is not None:
            self._add_datagrams(self._receivers.unix_socket(settings.path, socket.SOCK_DGRAM, mode=settings.mode))
        for descriptor in settings.datagram_descriptors:
            sock = self._receivers.adopt(descriptor, socket.SOCK_DGRAM)
            self._add_datagrams(sock)
        if settings.stream_path is not None:
            self._add_stream(self._receivers.unix_socket(settings.stream_path, socket.SOCK_STREAM, mode=settings.mode))
        if settings.tcp is not None:
            self._add_stream(sockets.stream_listener(*settings.tcp))
        for descriptor in settings.stream_descriptors:
            sock = self._receivers.adopt(descriptor, socket.SOCK_STREAM)
            self._add_stream(sock)
        if not self._receivers:
            raise ConfigError(f"{_WHAT} has no place to listen: name a path, a stream path or a TCP port")

    def _add_datagrams(self, sock: socket.socket) -> None:
        settings = self._settings
        receiver = DatagramReceiver(
            sock,
            self._handling(is_tcp=False),
            counts=self._counts,
            most_bytes=settings.datagram_bytes,
            linger=settings.linger,
            clock=self._clock,
        )
        self._receivers.add(receiver)

    def _add_stream(self, sock: socket.socket) -> None:
        settings = self._settings
        receiver = StreamReceiver(
            sock,
            self._handling(is_tcp=sock.family != socket.AF_UNIX),
            cutter=SizedCutting(least_bytes=_LEAST_BYTES, most_bytes=settings.message_bytes),
            counts=self._counts,
            limits=settings.streams,
            linger=settings.linger,
            clock=self._clock,
        )
        self._receivers.add(receiver)

    def _handling(self, *, is_tcp: bool) -> Handling:
        return Handling(self._delivering, self._losses, record_bytes=self._settings.record_bytes, is_tcp=is_tcp)
