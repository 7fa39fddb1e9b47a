"""A transport with TLS: settings, handshake, sending and receiving.

A connected socket and the settings come in, a `TlsTransport` goes out. Imported only when TLS is configured, because
loading OpenSSL is slow. It knows nothing of Kafka.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections.abc import Sequence

from ottla.config import Address, Tls
from ottla.errors import Advice, ConfigError, ConnectFailed, SecurityMismatch
from ottla.net.deadline import Deadline
from ottla.net.interrupt import Interrupt
from ottla.net.transport import Transport, poll, reason_of, shut_down

_CHUNK_BYTES = 1 << 18
_JOIN_BYTES = 1 << 14
"""TLS has no scatter-gather: smaller buffers are joined into one record instead of sent as one record each."""


class TlsTransport(Transport):
    """A connected socket with TLS."""

    def __init__(self, sock: ssl.SSLSocket, *, address: Address) -> None:
        super().__init__(sock, address=address)
        # Two threads must not use OpenSSL's state of one connection at the same time.
        self._lock = threading.Lock()
        # What OpenSSL could not write: it must get exactly the same bytes until it has written them.
        self._stuck: bytes | memoryview | None = None

    @property
    def is_encrypted(self) -> bool:
        """Whether it uses TLS."""
        return True

    def send(self, buffers: Sequence[memoryview]) -> int:
        """Send some of the bytes: see `Transport.send`."""
        try:
            with self._lock:
                if self._stuck is None:
                    self._stuck = _one_record(buffers)
                count = self._socket.send(self._stuck)
                self._stuck = None
                return count
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0

    def receive(self, space: memoryview) -> int | None:
        """Receive into `space`: see `Transport.receive`."""
        try:
            with self._lock:
                return self._socket.recv_into(space[:_CHUNK_BYTES])
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLEOFError:
            return 0


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the OpenSSL settings for `tls`. Raises `ConfigError`, with its name, if a file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=None if tls.ca_file is None else os.fspath(tls.ca_file))
    except (OSError, ssl.SSLError) as exc:
        raise ConfigError(f"the file {str(tls.ca_file)!r} of ca_file has no readable certificates: {exc}") from exc
    context.check_hostname = tls.check_hostname
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.cert_file is not None:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file, tls.key_password or "")
        except (OSError, ssl.SSLError) as exc:
            files = f"cert_file={str(tls.cert_file)!r}, key_file={str(tls.key_file)!r}"
            raise ConfigError(f"{files} cannot be used as a client certificate: {exc}") from exc
    return context


def handshake(
    sock: socket.socket, context: ssl.SSLContext, *, address: Address, deadline: Deadline, interrupt: Interrupt
) -> ssl.SSLSocket:
    """Return the socket with TLS on it. Raises `ConnectFailed` or `SecurityMismatch` with the setting to check."""
    try:
        wrapped = context.wrap_socket(sock, server_hostname=address.host, do_handshake_on_connect=False)
    except (OSError, ValueError) as exc:
        raise ConnectFailed(address, f"TLS handshake failed: {exc}") from exc
    try:
        with interrupt.ends(lambda: shut_down(wrapped)):
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
            ready = poll(sock, select.POLLIN, deadline.remaining())
        except ssl.SSLWantWriteError:
            ready = poll(sock, select.POLLOUT, deadline.remaining())
        if not ready:
            raise TimeoutError


def _handshake_error(exc: OSError, address: Address, deadline: Deadline) -> ConnectFailed:
    if isinstance(exc, ssl.SSLCertVerificationError):
        # 62 and 64 are OpenSSL's codes for a mismatch of the host name and of the IP address.
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
    return ConnectFailed(address, f"no TLS handshake: {reason_of(exc, deadline)}")


def _one_record(buffers: Sequence[memoryview]) -> bytes | memoryview:
    """Return the bytes for the next TLS write: the first buffer, or several small ones joined."""
    if len(buffers) == 1 or len(buffers[0]) >= _JOIN_BYTES:
        return buffers[0][:_CHUNK_BYTES]
    joined: list[memoryview] = []
    size = 0
    for buffer in buffers:
        if size + len(buffer) > _JOIN_BYTES:
            joined.append(buffer[: _JOIN_BYTES - size])
            break
        joined.append(buffer)
        size += len(buffer)
    return b"".join(joined)
