"""Sockets that systemd opened and passed on: which descriptors they are, and which listener each is for.

Comes in: the environment as a mapping, and the process id. Goes out: descriptors with their names from
`FileDescriptorName=`. Pure but for `adopt`, which makes a socket of a descriptor. It does not read `os.environ`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ottla.errors import ConfigError

FIRST_DESCRIPTOR = 3
VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
"""What a caller removes from the environment when it has read it, so that no child takes the sockets for its own."""
_MOST_DESCRIPTORS = 1000


class Passed(NamedTuple):
    """A descriptor that was passed to this process. The name is "" if it has none."""

    descriptor: int
    name: str


def passed(environment: Mapping[str, str], *, pid: int) -> tuple[Passed, ...]:
    """Return the descriptors for the process `pid`; none if they are for another one.

    Raises `ConfigError` if the variables contradict each other.
    """
    count_text = environment.get("LISTEN_FDS", "")
    if not count_text or environment.get("LISTEN_PID", str(pid)) != str(pid):
        return ()
    if not count_text.isascii() or not count_text.isdigit() or int(count_text) > _MOST_DESCRIPTORS:
        raise ConfigError(f"LISTEN_FDS is {count_text!r}, expected the number of sockets that systemd passed on")
    count = int(count_text)
    names = environment.get("LISTEN_FDNAMES", "").split(":") if environment.get("LISTEN_FDNAMES") else []
    if names and len(names) != count:
        raise ConfigError(f"LISTEN_FDNAMES has {len(names)} names for {count} sockets")
    names = names or [""] * count
    return tuple(Passed(FIRST_DESCRIPTOR + i, name) for i, name in enumerate(names))


def named(sockets: Iterable[Passed], name: str) -> tuple[int, ...]:
    """Return the descriptors with this name, in their order."""
    return tuple(entry.descriptor for entry in sockets if entry.name == name)


def adopt(descriptor: int, *, kind: int, what: str) -> socket.socket:
    """Return a socket of type `kind` from a descriptor that was passed on. Raises `ConfigError` for anything else."""
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ConfigError(f"{what}: descriptor {descriptor} is not a socket: {error.strerror}") from error
    if sock.type != kind:
        found, wanted = sock.type.name, socket.SocketKind(kind).name
        sock.detach()
        raise ConfigError(f"{what}: descriptor {descriptor} is a {found}, expected a {wanted}: see its .socket unit")
    if kind == socket.SOCK_STREAM and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.detach()
        raise ConfigError(f"{what}: descriptor {descriptor} is a connection: the .socket unit must say Accept=no")
    os.set_inheritable(descriptor, False)
    return sock
