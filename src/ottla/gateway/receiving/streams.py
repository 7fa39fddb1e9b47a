"""A thread that accepts connections, cuts what they send into messages and hands over those of all connections at once.

It answers nothing. A connection that stalls costs its place and the bytes of one message. TLS is part of it: its
handshake has a deadline. Where a message ends is for the `Cutter` of a connection; what they mean is for the
handler.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ottla.gateway.counts import Counts
from ottla.gateway.faults import log_fault
from ottla.gateway.receiving.arrivals import NO_SOURCE, Arrivals, Handler, readonly
from ottla.wire.kernels.framing import CUT, DESYNCHRONISED, SPAN_FIELDS

LINGER = 0.01
_log = logging.getLogger(__name__)
_CHUNK_BYTES = 256 << 10
_BATCH_BYTES = 4 << 20
_BATCH_MESSAGES = 50_000
_TURN_BYTES = 1 << 20
"""How much one connection may send before the next one has its turn."""
_LAST_BYTES = 64 << 20
"""How much of a connection is still read when the listener ends."""
_PAUSE_SECONDS = 1.0
"""How long nothing is accepted when the process has no descriptor left."""
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT


class Cut(NamedTuple):
    """The whole messages in a piece of a stream."""

    spans: npt.NDArray[np.int64]
    consumed: int
    """How many bytes belong to them, and to what lies between."""
    is_lost: bool
    """Whether no message begins there: the connection cannot go on."""


class Cutter(Protocol):
    """Tells the messages of one connection apart."""

    def __call__(self, data: npt.NDArray[np.uint8], /) -> Cut:
        """Cut what was not consumed by the call before, and what came since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """What the connections of a listener may take."""

    connections: int = 1000
    pending_bytes: int = 256 << 20
    """Messages of all connections that have not arrived whole."""
    handshake_seconds: float = 10.0
    idle_seconds: float | None = None
    """How long a connection may be silent; None for ever: quiet hosts are normal."""


@dataclass(slots=True, eq=False)
class _Connection:
    sock: socket.socket
    source: str
    cut: Cutter
    is_greeting: bool
    """Whether the TLS handshake goes on."""
    pending: bytearray = field(default_factory=bytearray)


class _Batch:
    """Messages on their way to the handler."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.count = 0
        self._spans: list[npt.NDArray[np.int64]] = []
        self._sources: dict[str, int] = {}
        self._source_of: list[tuple[int, int]] = []

    def add(self, data: memoryview, spans: npt.NDArray[np.int64], source: str) -> None:
        """Copy the messages of one connection."""
        moved = spans.copy()
        moved[:, :2] += len(self.data)
        self.data += data
        self.count += len(spans)
        self._spans.append(moved)
        self._source_of.append((self._sources.setdefault(source, len(self._sources)), len(spans)))

    def arrivals(self, received_ms: int) -> Arrivals:
        """Return all of it."""
        numbers, counts = zip(*self._source_of, strict=True)
        source_of = np.repeat(np.array(numbers, np.int64), counts)
        data = readonly(np.frombuffer(self.data, np.uint8))
        return Arrivals(data, readonly(np.concatenate(self._spans)), tuple(self._sources), source_of, received_ms)


class StreamReceiver:
    """Owns the listening socket, its connections and the thread."""

    def __init__(
        self,
        listener: socket.socket,
        handle: Handler,
        *,
        cutter: Callable[[], Cutter],
        counts: Counts,
        limits: StreamLimits | None = None,
        tls: ssl.SSLContext | None = None,
        linger: float = LINGER,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.socket = listener
        self._handle = handle
        self._cutter = cutter
        self._counts = counts
        self._limits = limits or StreamLimits()
        self._tls = tls
        self._linger = linger
        self._clock = clock
        self._connections: dict[int, _Connection] = {}
        self._deadlines: dict[int, float] = {}
        """When connections end, by descriptor: of those that greet or may not be idle."""
        self._pending_bytes = 0
        self._batch = _Batch()
        self._due: float | None = None
        """When the batch is handed over."""
        self._accepts_from = 0.0
        """When accepting goes on, 0 if it was not interrupted."""
        self._scratch = bytearray(_CHUNK_BYTES)
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._wakeup, _READ)
        self._is_accepting = True
        self._is_draining = self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="ottla-gateway-stream", daemon=True)

    @property
    def is_tls(self) -> bool:
        """Whether connections begin with a TLS handshake."""
        return self._tls is not None

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def start(self) -> None:
        """Start to accept and receive."""
        self._epoll.register(self.socket, _READ)
        self._thread.start()

    def stop_accepting(self) -> None:
        """Close the listening socket; connections go on."""
        self._is_accepting = False
        self._ring()
        if self._thread.ident is None:
            self.socket.close()

    def drain(self, timeout: float) -> bool:
        """Read what connections have sent, close them and end. Returns whether that was done in time."""
        self._is_draining = True
        self.stop_accepting()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def close(self) -> None:
        """End at once."""
        self._is_closing = True
        self.stop_accepting()
        if self._thread.ident is not None:
            self._thread.join()
        for connection in self._connections.values():
            connection.sock.close()
        self._connections.clear()
        self.socket.close()
        if self._wakeup >= 0:
            os.close(self._wakeup)
            self._epoll.close()
            self._wakeup = -1

    def _ring(self) -> None:
        if self._wakeup >= 0:
            os.eventfd_write(self._wakeup, 1)

    # The thread

    def _run(self) -> None:
        while not self._is_closing:
            is_draining = self._is_draining  # read first: what arrived before it was set is read
            if not self._is_accepting and self.socket.fileno() >= 0:
                self._close_listener()
            for descriptor, _ in self._epoll.poll(0 if is_draining else self._patience()):
                connection = self._connections.get(descriptor)
                if connection is not None:
                    self._try_to_advance(connection)
                elif descriptor != self._wakeup and self.socket.fileno() == descriptor:
                    self._accept()
                elif descriptor == self._wakeup:
                    os.eventfd_read(self._wakeup)
            now = time.monotonic()
            self._look_at_deadlines(now)
            if self._due is not None and (now >= self._due or is_draining):
                self._hand_over()
            if is_draining:
                self._end_all()
                return

    def _patience(self) -> float:
        """How long to wait for events."""
        deadlines = [self._due, *self._deadlines.values()]
        if self._accepts_from:
            deadlines.append(self._accepts_from)
        known = [deadline for deadline in deadlines if deadline is not None]
        return max(0.0, min(known) - time.monotonic()) if known else -1

    def _look_at_deadlines(self, now: float) -> None:
        if self._accepts_from and now >= self._accepts_from:
            self._accepts_from = 0.0
            if self._is_accepting:
                self._epoll.modify(self.socket, _READ)
        for descriptor in [descriptor for descriptor, deadline in self._deadlines.items() if now >= deadline]:
            connection = self._connections[descriptor]
            self._end(connection, "handshake_too_slow" if connection.is_greeting else "idle")

    def _close_listener(self) -> None:
        while self._accept():  # those who connected before are not refused
            pass
        self._epoll.unregister(self.socket)
        self.socket.close()

    def _accept(self) -> bool:
        """Accept a connection. Returns whether there may be more."""
        try:
            sock, address = self.socket.accept()
        except OSError as error:
            if error.errno in _FULL:
                self._counts.add("accept_errors")
                _log.warning("no connection can be accepted for %s s: %s", _PAUSE_SECONDS, error.strerror)
                self._epoll.modify(self.socket, 0)
                self._accepts_from = time.monotonic() + _PAUSE_SECONDS
            return False
        if len(self._connections) >= self._limits.connections:
            self._counts.add("connections_refused", reason="connections")
            sock.close()
            return True
        self._counts.add("connections")
        sock.setblocking(False)
        source = _plain(address[0]) if self.socket.family != socket.AF_UNIX else NO_SOURCE
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
        except OSError:  # it is gone already
            self._counts.add("connections_ended", reason="tls")
            sock.close()
            return True
        greets = self._tls is not None
        connection = _Connection(sock, source, self._cutter(), greets)
        self._connections[sock.fileno()] = connection
        self._allow(connection, self._limits.handshake_seconds if greets else self._limits.idle_seconds)
        self._epoll.register(sock, _READ)
        return True

    def _allow(self, connection: _Connection, seconds: float | None) -> None:
        """Let a connection be silent for this long."""
        if seconds is None:
            self._deadlines.pop(connection.sock.fileno(), None)
        else:
            self._deadlines[connection.sock.fileno()] = time.monotonic() + seconds

    def _try_to_advance(self, connection: _Connection, *, most_bytes: int = _TURN_BYTES) -> None:
        """Go on with a connection, or end it: whatever it was, the others go on."""
        try:
            self._advance(connection, most_bytes=most_bytes)
        except Exception as error:
            log_fault(_log, error, f"the connection from {connection.source!r} is closed after an error")
            self._end(connection, "error")

    def _advance(self, connection: _Connection, *, most_bytes: int) -> None:
        """Go on with a connection that has something."""
        if connection.is_greeting and not self._greet(connection):
            return
        received = 0
        while received < most_bytes:
            try:
                count = connection.sock.recv_into(self._scratch)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError):
                break
            except ssl.SSLWantWriteError:
                self._end(connection, "tls")  # it asks for answers and does not read them
                return
            except OSError:
                self._end(connection, "lost")
                return
            if not count:
                self._end(connection, "closed")
                return
            received += count
            if not self._take(connection, count):
                return
        if received and self._limits.idle_seconds is not None:
            self._allow(connection, self._limits.idle_seconds)

    def _greet(self, connection: _Connection) -> bool:
        """Go on with the TLS handshake. Returns whether it is done."""
        assert isinstance(connection.sock, ssl.SSLSocket)
        try:
            connection.sock.do_handshake()
        except ssl.SSLWantReadError:
            self._epoll.modify(connection.sock, _READ)
            return False
        except ssl.SSLWantWriteError:
            self._epoll.modify(connection.sock, _WRITE)
            return False
        except OSError as error:
            _log.info("TLS handshake with %s failed: %s", connection.source, error)
            self._end(connection, "tls")
            return False
        self._epoll.modify(connection.sock, _READ)
        connection.is_greeting = False
        self._allow(connection, self._limits.idle_seconds)
        return True

    def _take(self, connection: _Connection, count: int) -> bool:
        """Cut what came. Returns whether the connection goes on."""
        self._counts.add("received_bytes", count)
        came = memoryview(self._scratch)[:count]
        pending = connection.pending
        if pending:
            pending += came
            self._pending_bytes += count
        data = memoryview(pending) if pending else came
        cut = connection.cut(readonly(np.frombuffer(data, np.uint8)))
        if len(cut.spans):
            self._add(data[: cut.consumed], cut.spans, connection.source)
        rest = len(data) - cut.consumed
        if not pending:
            connection.pending = bytearray(data[cut.consumed :])
            self._pending_bytes += rest
        elif cut.consumed:
            data.release()
            self._pending_bytes -= cut.consumed
            connection.pending = pending[cut.consumed :]
        if cut.is_lost:
            self._end(connection, "desynchronised", DESYNCHRONISED)
            return False
        if self._pending_bytes > self._limits.pending_bytes:
            self._end(connection, "pending_bytes")
            return False
        return True

    def _add(self, data: memoryview, spans: npt.NDArray[np.int64], source: str) -> None:
        if self._due is None:
            self._due = time.monotonic() + self._linger
        self._batch.add(data, spans, source)
        if len(self._batch.data) >= _BATCH_BYTES or self._batch.count >= _BATCH_MESSAGES:
            self._hand_over()

    def _hand_over(self) -> None:
        batch, self._batch, self._due = self._batch, _Batch(), None
        self._counts.add("received", batch.count)
        try:
            self._handle(batch.arrivals(round(self._clock() * 1000)))
        except Exception as error:
            self._counts.add("handler_errors", batch.count)
            log_fault(_log, error, f"{batch.count} messages from {self.socket} could not be handled")

    def _end(self, connection: _Connection, reason: str, mark: int = CUT) -> None:
        """Close a connection. What is left of it is handed over, marked."""
        self._counts.add("connections_ended", reason=reason)
        self._connections.pop(connection.sock.fileno(), None)
        self._deadlines.pop(connection.sock.fileno(), None)
        try:
            self._epoll.unregister(connection.sock)
        except (OSError, ValueError):
            pass  # the other side was quicker
        connection.sock.close()
        rest = connection.pending
        self._pending_bytes -= len(rest)
        if rest:
            spans = np.empty((1, SPAN_FIELDS), np.int64)
            spans[0] = 0, len(rest), mark
            connection.pending = bytearray()
            self._add(memoryview(rest), spans, connection.source)

    def _end_all(self) -> None:
        """Read what connections have sent, and close them."""
        for connection in list(self._connections.values()):
            if not connection.is_greeting:
                self._try_to_advance(connection, most_bytes=_LAST_BYTES)
            if connection.sock.fileno() in self._connections:
                self._end(connection, "drained")
        if self._due is not None:
            self._hand_over()


def _plain(host: str) -> str:
    """Return an address without what says that it is an IPv4 address in the form of IPv6."""
    return host.removeprefix("::ffff:").partition("%")[0]
