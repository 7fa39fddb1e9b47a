"""One TCP socket towards a broker, with or without TLS, that never blocks longer than a deadline allows.

Addresses and a deadline come in; a transport comes out on which bytes are sent and received. It knows
nothing of Kafka's frames. The socket is non-blocking: an operation is tried first, and waited for by polling
only when it would block.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import select
import socket
import ssl
import threading
from collections.abc import Sequence
from typing import Any

from ottla.config import Address, Tls
from ottla.errors import Advice, ConfigError, ConnectFailed, SecurityMismatch
from ottla.net.deadline import Deadline
from ottla.net.interrupt import Interrupt
from ottla.net.waiting import Flag, Total

_KEEPALIVE_IDLE_SECONDS = 60
_TLS_CHUNK_BYTES = 1 << 18
MOST_BUFFERS = 512
"""Buffers handed to one sendmsg; the kernel takes 1024 at most."""
_JOIN_BYTES = 1 << 14
"""TLS has no scatter-gather: smaller buffers are joined into one record instead of one record each."""

IpAddress = tuple[socket.AddressFamily, Any]


class Transport:
    """A connected socket. One thread may send while another receives."""

    def __init__(self, sock: socket.socket, *, address: Address) -> None:
        self.address = address
        self._socket = sock
        # No lock: a signal handler may come in the middle of a call, and wait for another thread that makes one.
        self._users = Total()
        self._ended = False
        # OpenSSL's state of one connection must not be touched by two threads at once.
        self._tls_lock = threading.Lock() if isinstance(sock, ssl.SSLSocket) else None
        # What OpenSSL could not write: it must be offered the very same bytes until it has.
        self._stuck: bytes | memoryview | None = None

    @classmethod
    def connect(
        cls, address: Address, *, tls: Tls | None, deadline: Deadline, interrupt: Interrupt | None = None
    ) -> Transport:
        """TCP to the first of the host's addresses that answers, then the TLS handshake."""
        context = None if tls is None else tls_context(tls)
        interrupt = interrupt or Interrupt()
        sock = _connect_any(address, deadline, interrupt)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(sock)
            if context is not None:
                sock = _handshake(sock, context, address=address, deadline=deadline, interrupt=interrupt)
        except BaseException:
            sock.close()
            raise
        return cls(sock, address=address)

    @property
    def is_encrypted(self) -> bool:
        """Whether it uses TLS."""
        return self._tls_lock is not None

    def fileno(self) -> int:
        """The file descriptor, for the owner of a select loop."""
        return self._socket.fileno()

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Sends some of the bytes, of at most MOST_BUFFERS, and returns how many; 0 when the socket is full.

        Bytes that it did not take must come first in the next call; others may then stand behind them.
        """
        try:
            if self._tls_lock is None:
                return self._socket.sendmsg(buffers)
            with self._tls_lock:
                if self._stuck is None:
                    self._stuck = _one_record(buffers)
                count = self._socket.send(self._stuck)
                self._stuck = None
                return count
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0

    def receive(self, space: memoryview) -> int | None:
        """Receives into `space` and returns how many bytes: None when none are there yet, 0 at the end."""
        try:
            if self._tls_lock is None:
                return self._socket.recv_into(space)
            with self._tls_lock:
                return self._socket.recv_into(space[:_TLS_CHUNK_BYTES])
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLEOFError:
            return 0

    def wait(self, events: int, seconds: float) -> int:
        """Waits for `select.POLLIN` or `POLLOUT`, at most `seconds`; the events that came, 0 for none."""
        return _poll(self._socket, events, seconds)

    def enter(self) -> bool:
        """A thread is about to use the socket, until it calls `leave`; False when it has ended."""
        self._users.add(1)  # first this: `end` says that it has ended, and then looks who is there
        if self._ended:
            self.leave()
            return False
        return True

    def leave(self) -> None:
        """A thread is done with the socket. The last one to leave an ended connection closes it."""
        self._users.add(-1)
        if self._ended and not self._users.value:
            self._socket.close()

    def end(self) -> None:
        """Ends the connection for both sides and wakes whoever waits on it."""
        self._ended = True
        _shut_down(self._socket)
        # Not under a thread that polls it: the number of a closed descriptor may be another's at once.
        if not self._users.value:
            self._socket.close()

    def abandon(self) -> None:
        """Closes this process's descriptor without a word to the other side: a parent process uses it, too."""
        self._socket.close()


def tls_context(tls: Tls) -> ssl.SSLContext:
    """OpenSSL's settings for `tls`; a file that cannot be used is a ConfigError that names it."""
    try:
        context = ssl.create_default_context(cafile=None if tls.ca_file is None else os.fspath(tls.ca_file))
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"Tls(ca_file={str(tls.ca_file)!r}) has no readable certificates: {exc}") from exc
    context.check_hostname = tls.check_hostname
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.cert_file is not None:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file, tls.key_password or "")
        except (OSError, ssl.SSLError) as exc:
            files = f"cert_file={str(tls.cert_file)!r}, key_file={str(tls.key_file)!r}"
            raise ConfigError(f"Tls({files}) cannot be used as client certificate: {exc}") from exc
    return context


def _connect_any(address: Address, deadline: Deadline, interrupt: Interrupt) -> socket.socket:
    """Tries every address of the host in turn; each gets its share of the time that is left."""
    reasons: list[str] = []
    found = _resolve(address, deadline, interrupt)
    for position, (family, ip_address) in enumerate(found):
        share = deadline.sooner(deadline.remaining() / (len(found) - position))
        try:
            return _connect_one(family, ip_address, deadline=share, interrupt=interrupt)
        except OSError as exc:
            name = f"{ip_address[0]}: " if len(found) > 1 else ""
            reasons.append(f"{name}{_reason(exc, share)}")
    raise ConnectFailed(address, "no TCP connection: " + "; ".join(reasons))


def _connect_one(
    family: socket.AddressFamily, ip_address: Any, *, deadline: Deadline, interrupt: Interrupt
) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        with interrupt.ends(lambda: _shut_down(sock)):
            code = sock.connect_ex(ip_address)
            if code == errno.EINPROGRESS:
                if not _poll(sock, select.POLLOUT, deadline.remaining()):
                    raise TimeoutError
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            if sock.getsockname() == sock.getpeername():
                # Linux lets a client whose own port happens to be the target's connect to itself.
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    except BaseException:
        sock.close()
        raise
    return sock


def _resolve(address: Address, deadline: Deadline, interrupt: Interrupt) -> list[IpAddress]:
    """The host's addresses. The system's resolver has no deadline, so a name is looked up in a thread."""
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
        # It cannot be interrupted: when it is late it is left to end by itself, hence a daemon.
        threading.Thread(target=look_up, name=f"resolve {address.host}", daemon=True).start()
        with interrupt.ends(done.set):
            done.wait(deadline.remaining())
            if not outcome:
                raise ConnectFailed(address, f"the name was not resolved within {deadline.seconds:.1f} s")
    if isinstance(outcome[0], Exception):
        raise ConnectFailed(address, f"the name does not resolve: {outcome[0]}") from outcome[0]
    return outcome[0]


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _look_up(address: Address) -> list[IpAddress]:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    return [(family, ip_address) for family, _, _, _, ip_address in found]


def _handshake(
    sock: socket.socket, context: ssl.SSLContext, *, address: Address, deadline: Deadline, interrupt: Interrupt
) -> ssl.SSLSocket:
    try:
        wrapped = context.wrap_socket(sock, server_hostname=address.host, do_handshake_on_connect=False)
    except (OSError, ValueError) as exc:
        raise ConnectFailed(address, f"TLS handshake failed: {exc}") from exc
    try:
        with interrupt.ends(lambda: _shut_down(wrapped)):
            _shake_hands(wrapped, deadline)
    except OSError as exc:
        wrapped.close()
        raise _handshake_error(exc, address, deadline) from exc
    except BaseException:
        wrapped.close()
        raise
    return wrapped


def _shake_hands(sock: ssl.SSLSocket, deadline: Deadline) -> None:
    while True:
        try:
            return sock.do_handshake()
        except ssl.SSLWantReadError:
            ready = _poll(sock, select.POLLIN, deadline.remaining())
        except ssl.SSLWantWriteError:
            ready = _poll(sock, select.POLLOUT, deadline.remaining())
        if not ready:
            raise TimeoutError


def _handshake_error(exc: OSError, address: Address, deadline: Deadline) -> ConnectFailed:
    if isinstance(exc, ssl.SSLCertVerificationError):
        # OpenSSL's codes for a mismatch of host name and of IP address.
        advice = Advice.HOST_NAME if exc.verify_code in (62, 64) else Advice.CA_FILE
        reason = f"the broker's certificate is not accepted: {exc.verify_message}; {advice}"
        return SecurityMismatch(address, reason)
    if isinstance(exc, ssl.SSLEOFError | ConnectionError):
        reason = f"the connection was closed during the TLS handshake: {Advice.NO_TLS}"
        return ConnectFailed(address, reason)
    if isinstance(exc, ssl.SSLError):
        reason = (exc.reason or str(exc)).replace("_", " ").lower()
        if "wrong version number" in reason:
            reason += f": {Advice.NO_TLS}"
        return SecurityMismatch(address, f"TLS handshake failed: {reason}")
    return ConnectFailed(address, f"no TLS handshake: {_reason(exc, deadline)}")


def _reason(exc: OSError, deadline: Deadline) -> str:
    if isinstance(exc, TimeoutError) and exc.errno is None:
        return f"no answer within {deadline.seconds:.1f} s"
    return (exc.strerror or str(exc)).lower()


def _one_record(buffers: Sequence[memoryview]) -> bytes | memoryview:
    """The next bytes for one TLS write: the first buffer, or several small ones joined."""
    if len(buffers) == 1 or len(buffers[0]) >= _JOIN_BYTES:
        return buffers[0][:_TLS_CHUNK_BYTES]
    joined: list[memoryview] = []
    size = 0
    for buffer in buffers:
        if size + len(buffer) > _JOIN_BYTES:
            joined.append(buffer[: _JOIN_BYTES - size])
            break
        joined.append(buffer)
        size += len(buffer)
    return b"".join(joined)


def _poll(sock: socket.socket, events: int, seconds: float) -> int:
    poller = select.poll()
    poller.register(sock, events)
    # Rounded up: a poll of 0 ms just before the deadline would spin.
    ready = poller.poll(int(seconds * 1000) + 1 if seconds > 0 else 0)
    return ready[0][1] if ready else 0


def _shut_down(sock: socket.socket) -> None:
    """Ends the connection, also one that is not there yet, and wakes whoever polls it."""
    with contextlib.suppress(OSError):
        # Of the plain socket: SSLSocket.shutdown would drop the TLS state under another thread's feet.
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _keep_alive(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_SECONDS)
