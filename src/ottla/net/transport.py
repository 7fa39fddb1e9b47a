"""A TCP connection to a broker that never blocks longer than a deadline allows. `tls.py` has the one with TLS.

An address and a deadline come in, a transport goes out that sends and receives bytes. It knows nothing of Kafka's
frames. The socket is non-blocking: an operation is tried first, and polled for only if it would block.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
from collections.abc import Sequence
from typing import Any

from ottla.config import Address, Tls
from ottla.errors import ConnectFailed
from ottla.net.deadline import Deadline
from ottla.net.interrupt import Interrupt
from ottla.net.waiting import Flag, Total

_KEEPALIVE_IDLE_SECONDS = 60
MOST_BUFFERS = 512
"""The most buffers in one sendmsg call. The kernel takes 1024 at most."""

IpAddress = tuple[socket.AddressFamily, Any]


class Transport:
    """A connected socket. One thread may send while another receives."""

    def __init__(self, sock: socket.socket, *, address: Address) -> None:
        self.address = address
        self._socket = sock
        # No lock: a signal handler may interrupt a call and wait for another thread that makes one.
        self._users = Total()
        self._ended = False

    @staticmethod
    def connect(
        address: Address, *, tls: Tls | None, deadline: Deadline, interrupt: Interrupt | None = None
    ) -> Transport:
        """Connect to the first of the host's addresses that answers, then do the TLS handshake.

        Raises `ConnectFailed` (or its `SecurityMismatch`), `ConfigError` for files that cannot be used, and
        `ConnectionLost` if `interrupt` ends it.
        """
        interrupt = interrupt or Interrupt()
        if tls is None:
            return Transport(_connected(address, deadline, interrupt), address=address)
        from ottla.net.tls import TlsTransport, handshake, tls_context

        context = tls_context(tls)
        sock = _connected(address, deadline, interrupt)
        try:
            wrapped = handshake(sock, context, address=address, deadline=deadline, interrupt=interrupt)
        except BaseException:
            sock.close()
            raise
        return TlsTransport(wrapped, address=address)

    @property
    def is_encrypted(self) -> bool:
        """Whether it uses TLS."""
        return False

    def fileno(self) -> int:
        """Return the file descriptor, for the owner of a select loop."""
        return self._socket.fileno()

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Send some of the bytes, of at most MOST_BUFFERS buffers. Returns how many; 0 if the socket is full.

        The next call must start with the bytes that were not taken; others may follow.
        """
        try:
            return self._socket.sendmsg(buffers)
        except BlockingIOError:
            return 0

    def receive(self, space: memoryview) -> int | None:
        """Receive into `space`. Returns the number of bytes; None if there are none yet, 0 at the end."""
        try:
            return self._socket.recv_into(space)
        except BlockingIOError:
            return None

    def wait(self, events: int, seconds: float) -> int:
        """Wait for `select.POLLIN` or `POLLOUT`, at most `seconds`. Returns the events, 0 for none."""
        return poll(self._socket, events, seconds)

    def enter(self) -> bool:
        """Register a thread as a user of the socket until `leave`. Returns False if the connection has ended."""
        self._users.add(1)  # first: `end` sets `_ended` and then looks at the users
        if self._ended:
            self.leave()
            return False
        return True

    def leave(self) -> None:
        """Unregister a thread. The last one to leave an ended connection closes the socket."""
        self._users.add(-1)
        if self._ended and not self._users.value:
            self._socket.close()

    def end(self) -> None:
        """End the connection for both sides and wake the threads that wait on it."""
        self._ended = True
        shut_down(self._socket)
        # Not while a thread polls it: the number of a closed descriptor may be reused at once.
        if not self._users.value:
            self._socket.close()

    def abandon(self) -> None:
        """Close only this process's descriptor: the parent process may still use the connection."""
        self._socket.close()


def _connected(address: Address, deadline: Deadline, interrupt: Interrupt) -> socket.socket:
    sock = _connect_any(address, deadline, interrupt)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(sock)
    except BaseException:
        sock.close()
        raise
    return sock


def _connect_any(address: Address, deadline: Deadline, interrupt: Interrupt) -> socket.socket:
    """Try the addresses of the host in turn. Each gets an equal share of the remaining time."""
    reasons: list[str] = []
    ip_addresses = _resolve(address, deadline, interrupt)
    for position, (family, ip_address) in enumerate(ip_addresses):
        share = deadline.sooner(deadline.remaining() / (len(ip_addresses) - position))
        try:
            return _connect_one(family, ip_address, deadline=share, interrupt=interrupt)
        except OSError as exc:
            name = f"{ip_address[0]}: " if len(ip_addresses) > 1 else ""
            reasons.append(f"{name}{reason_of(exc, share)}")
    raise ConnectFailed(address, "no TCP connection: " + "; ".join(reasons))


def _connect_one(
    family: socket.AddressFamily, ip_address: Any, *, deadline: Deadline, interrupt: Interrupt
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        with interrupt.ends(lambda: shut_down(sock)):
            code = sock.connect_ex(ip_address)
            if code == errno.EINPROGRESS:
                if not poll(sock, select.POLLOUT, deadline.remaining()):
                    raise TimeoutError
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            if sock.getsockname() == sock.getpeername():
                # On Linux a client whose own port happens to be the target's can connect to itself.
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    except BaseException:
        sock.close()
        raise
    return sock


def _resolve(address: Address, deadline: Deadline, interrupt: Interrupt) -> list[IpAddress]:
    """Return the IP addresses of the host. The system's resolver has no timeout, so names are resolved in a thread."""
    outcome: list[list[IpAddress] | Exception] = []
    done = Flag()

    def look_up() -> None:
        try:
            outcome.append(_look_up(address))
        except (OSError, UnicodeError) as exc:
            outcome.append(exc)
        done.set()

    if _is_literal(address.host):
        look_up()
    else:
        # It cannot be interrupted. A late one is abandoned, hence a daemon thread.
        threading.Thread(target=look_up, name=f"resolve {address.host}", daemon=True).start()
        with interrupt.ends(done.set):
            done.wait(deadline.remaining())
            if not outcome:
                raise ConnectFailed(address, f"the name was not resolved within {deadline.seconds:.1f} s")
    if isinstance(outcome[0], Exception):
        raise ConnectFailed(address, f"the name does not resolve: {outcome[0]}") from outcome[0]
    return outcome[0]


def _is_literal(host: str) -> bool:
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host.partition("%")[0])
        except (OSError, ValueError):
            continue
        return True
    return False


def _look_up(address: Address) -> list[IpAddress]:
    # For text, Python loads its Unicode tables here; bytes it takes as they are.
    host = address.host.encode() if address.host.isascii() else address.host
    infos = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
    return [(family, ip_address) for family, _, _, _, ip_address in infos]


def reason_of(exc: OSError, deadline: Deadline) -> str:
    """Return the reason of a system error as text."""
    if isinstance(exc, TimeoutError) and exc.errno is None:
        return f"no answer within {deadline.seconds:.1f} s"
    return (exc.strerror or str(exc)).lower()


def poll(sock: socket.socket, events: int, seconds: float) -> int:
    """Wait for events on a socket, at most `seconds`. Returns the events, 0 for none."""
    poller = select.poll()
    poller.register(sock, events)
    # Milliseconds, rounded up: a poll of 0 ms just before the deadline would spin.
    ready = poller.poll(int(seconds * 1000) + 1 if seconds > 0 else 0)
    return ready[0][1] if ready else 0


def shut_down(sock: socket.socket) -> None:
    """Shut down a connection, even one that is being opened, and wake the threads that poll it."""
    with contextlib.suppress(OSError):
        # The method of the plain socket: SSLSocket.shutdown would drop the TLS state that another thread is using.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_SECONDS)
