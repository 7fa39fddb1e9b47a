"""Opens the sockets of listeners, or says in one sentence why it cannot.

A unix socket takes the place of a file that a dead process left, and never that of one in use. Sockets do not block.
Nothing is received here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ottla.errors import ConfigError, OttlaError

RECEIVE_BUFFER_BYTES = 8 << 20
"""What a UDP socket asks the system for: what does not fit is lost."""
_PATH_BYTES = 107
_BACKLOG = 1024
_RECEIVE_BUFFER_FORCE = 33  # SO_RCVBUFFORCE, for those who may exceed net.core.rmem_max
_COUNT_OVERFLOWS = 40  # SO_RXQ_OVFL


class SocketFile(NamedTuple):
    """The file of a unix socket, by its identity: another process may put its own at the same path."""

    path: Path
    device: int
    inode: int


def unix_socket(path: Path, kind: int, *, mode: int) -> socket.socket:
    """Return a socket of type `kind` at a path, with this mode. Streams listen.

    Raises `ConfigError` for a path that no socket can have, and `OttlaError` if a process listens there or the system
    refuses.
    """
    encoded = os.fsencode(path)
    if len(encoded) > _PATH_BYTES:
        raise ConfigError(
            f"the socket path {path} has {len(encoded)} bytes, the system allows {_PATH_BYTES}: shorten it"
        )
    if b"\0" in encoded:
        raise ConfigError(f"the socket path {str(path)!r} has a null character")
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        with _alone_in(path.parent, path):
            _remove_stale(path, kind)
            os.fchmod(sock.fileno(), mode)  # before the file exists: it never has more rights than it should
            sock.bind(str(path))
            os.chmod(path, mode)  # adds what the umask took away
        sock.setblocking(False)
        if kind == socket.SOCK_STREAM:
            sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise OttlaError(f"cannot listen on {path}: {error.strerror or error}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def file_of(path: Path) -> SocketFile:
    """Return which file is at a path now. Raises `OSError`."""
    status = path.lstat()
    return SocketFile(path, status.st_dev, status.st_ino)


def remove(file: SocketFile) -> None:
    """Remove the file of a socket, unless another process has put its own in its place."""
    try:
        with _alone_in(file.path.parent, file.path):
            if file_of(file.path) == file:
                file.path.unlink()
    except (OSError, OttlaError):
        pass  # it is gone, or no longer ours to remove


def stream_listener(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """Return a listening TCP socket. Raises `OttlaError`."""
    return _internet_socket(host, port, socket.SOCK_STREAM, reuse_port=reuse_port)


def udp_socket(
    host: str, port: int, *, reuse_port: bool = False, receive_bytes: int = RECEIVE_BUFFER_BYTES
) -> socket.socket:
    """Return a UDP socket that counts what the system drops. Raises `OttlaError`."""
    sock = _internet_socket(host, port, socket.SOCK_DGRAM, reuse_port=reuse_port)
    prepare_udp(sock, receive_bytes=receive_bytes)
    return sock


def prepare_udp(sock: socket.socket, *, receive_bytes: int = RECEIVE_BUFFER_BYTES) -> None:
    """Give a UDP socket a large buffer, and have the system count what does not fit."""
    sock.setblocking(False)
    try:
        sock.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER_FORCE, receive_bytes)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.setsockopt(socket.SOL_SOCKET, _COUNT_OVERFLOWS, 1)


def shown(sock: socket.socket) -> str:
    """Return the address of a socket, as people write it."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{os.fsdecode(sock.getsockname())}"
    host, port = sock.getsockname()[:2]
    kind = "udp" if sock.type == socket.SOCK_DGRAM else "tcp"
    return f"{kind}:[{host}]:{port}" if ":" in host else f"{kind}:{host}:{port}"


def _internet_socket(host: str, port: int, kind: int, *, reuse_port: bool) -> socket.socket:
    place = f"{host}:{port}"
    if not 0 <= port <= 65535:
        raise ConfigError(f"{place}: a port is a number from 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=kind, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise OttlaError(f"cannot listen on {place}: {error.strerror or error}") from error
    sock = socket.socket(family, kind)
    try:
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(host not in ("::", "")))
        sock.bind(address)
        sock.setblocking(False)
        if kind == socket.SOCK_STREAM:
            sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        hint = "; ports below 1024 need the right to bind them" if error.errno == errno.EACCES and port < 1024 else ""
        raise OttlaError(f"cannot listen on {place}: {error.strerror or error}{hint}") from error
    return sock


def _remove_stale(path: Path, kind: int) -> None:
    """Remove the file of a dead process. Raises `OttlaError` if the path is taken."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise OttlaError(
            f"cannot listen on {path}: there is a file that is no socket; remove it or choose another path"
        )
    with socket.socket(socket.AF_UNIX, kind) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EPROTOTYPE, errno.EAGAIN, errno.EINPROGRESS):
                raise
    raise OttlaError(f"cannot listen on {path}: another process listens there; stop it or choose another path")


@contextmanager
def _alone_in(folder: Path, path: Path) -> Iterator[None]:
    """Hold a lock on the folder, so that no two gateways look at a path and take it at once."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    except OSError as error:
        raise OttlaError(f"cannot listen on {path}: the folder {folder}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
