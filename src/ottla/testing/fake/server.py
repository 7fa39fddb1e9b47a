"""The sockets of one fake broker: a port, a thread that accepts, and a thread for each connection.

A function from a frame to a `Reply` comes in. The requests of one connection are handled one after the other, as by a
real broker. Closing joins every thread and keeps the port, so that the broker can come back at the same address.
"""

from __future__ import annotations

import logging
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

from ottla.config import Address
from ottla.errors import DeadlineExceeded
from ottla.testing.fake.dispatch import Reply, Then

_log = logging.getLogger(__name__)

HOST = "127.0.0.1"
LARGEST_FRAME = 104_857_600  # socket.request.max.bytes of a real broker
JOIN_TIMEOUT = 10.0
"""Seconds to wait for the end of a thread, or for a port."""
_SIZE = struct.Struct(">i")


class BrokerServer:
    """One broker on the network: `reserve` binds a port, `open` answers on it, `close` refuses connections again."""

    def __init__(self, broker: int, reply: Callable[[bytes], Reply]) -> None:
        self.broker = broker
        self._reply = reply
        self._listener: socket.socket | None = None
        self._address: Address | None = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._accepting: threading.Thread | None = None
        self._connections: dict[socket.socket, threading.Thread] = {}

    def reserve(self) -> Address:
        """Bind a free port, or the previous one, without listening: connections are refused."""
        port = self._address.port if self._address else 0
        self._listener = _bound(port)
        self._address = Address(HOST, self._listener.getsockname()[1])
        return self._address

    def open(self) -> None:
        """Accept connections on the reserved port; does nothing if it is already open."""
        if self._accepting is not None:
            return
        assert self._listener is not None
        self._listener.listen(64)
        self._wake = socket.socketpair()
        self._accepting = threading.Thread(
            target=self._accept,
            args=(self._listener, self._wake[0]),
            name=f"fake-kafka-{self.broker}",
            daemon=True,
        )
        self._accepting.start()

    def close(self) -> None:
        """Close every connection, join every thread, and keep the port."""
        if self._accepting is None or self._wake is None:
            return
        self._wake[1].send(b"x")
        _join(self._accepting)
        self._accepting = None
        self._close_listener()
        for wake_socket in self._wake:
            wake_socket.close()
        for connection in self._connections:
            _shutdown(connection)
        for thread in self._connections.values():
            _join(thread)
        self._connections.clear()
        self.reserve()

    def release(self) -> None:
        """Free the port; the next one may differ."""
        self._close_listener()
        self._address = None

    def _close_listener(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket, wake: socket.socket) -> None:
        poller = select.poll()  # Unlike select, it takes descriptors above 1023.
        for ready_socket in (listener, wake):
            poller.register(ready_socket, select.POLLIN)
        while True:
            if wake.fileno() in dict(poller.poll()):
                return
            try:
                connection, _ = listener.accept()
            except OSError:  # The client disconnected before it was accepted.
                continue
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(
                target=self._serve,
                args=(connection,),
                name=f"fake-kafka-{self.broker}-connection",
                daemon=True,
            )
            # Ended threads are removed here, not by the threads: `close` must be able to join every running one.
            self._connections = {c: t for c, t in self._connections.items() if t.is_alive()}
            self._connections[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while (frame := _read_frame(connection)) is not None:
                reply = self._reply(frame)
                connection.sendall(reply.data)
                if reply.then is Then.CLOSE:
                    return
                if reply.then is Then.IGNORE:
                    _discard(connection)
                    return
        except OSError:
            pass  # The client is gone, or the broker is going down.
        except Exception:
            _log.exception("unexpected error in fake broker %d; closing the connection", self.broker)
        finally:
            connection.close()


def _bound(port: int) -> socket.socket:
    deadline = time.monotonic() + JOIN_TIMEOUT
    while True:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError as exc:
            listener.close()
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"binding {HOST}:{port}", JOIN_TIMEOUT, (str(exc),)) from exc
            time.sleep(0.02)
        else:
            return listener


def _read_frame(connection: socket.socket) -> bytes | None:
    size = _read(connection, _SIZE.size)
    if size is None:
        return None
    (length,) = _SIZE.unpack(size)
    if not 0 < length <= LARGEST_FRAME:
        _log.warning("connection closed: a request claims %d bytes", length)
        return None
    return _read(connection, length)


def _read(connection: socket.socket, size: int) -> bytes | None:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        received = connection.recv_into(view)
        if received == 0:
            return None
        view = view[received:]
    return bytes(data)


def _discard(connection: socket.socket) -> None:
    while connection.recv(65_536):
        pass


def _shutdown(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # It is already closed.


def _join(thread: threading.Thread) -> None:
    thread.join(JOIN_TIMEOUT)
    if thread.is_alive():
        _log.error("thread %s did not end within %.0f s", thread.name, JOIN_TIMEOUT)
