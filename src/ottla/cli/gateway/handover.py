"""Listening sockets that outlive a process: those that systemd or a process before this one has opened.

The protocol is systemd's: descriptors from 3 on, their number in LISTEN_FDS, their names in LISTEN_FDNAMES. A restart
uses it, too: the process executes itself and keeps its sockets, so the kernel queues connections meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from typing import NoReturn

NAMES = ("http", "ops", "socket", "syslog", "syslog-tls", "own-socket", "own-syslog", "own-syslog-tls")
"""What `FileDescriptorName` may be. Names with `own-` are for the sockets that a gateway leaves to the next one."""
_FIRST = 3
_ABOVE = 100
"""Where descriptors are out of the way of those that are being arranged."""


def given_sockets(environment: MutableMapping[str, str]) -> dict[str, list[socket.socket]]:
    """Return the sockets that this process was started with, by name; the variables are removed."""
    pid, count, names = (environment.pop(f"LISTEN_{name}", "") for name in ("PID", "FDS", "FDNAMES"))
    if pid != str(os.getpid()) or not count.isdecimal():
        return {}
    named = names.split(":") if names else []
    sockets: dict[str, list[socket.socket]] = {}
    for at in range(int(count)):
        sock = socket.socket(fileno=_FIRST + at)
        sock.set_inheritable(False)
        name = named[at] if at < len(named) else "http"
        sockets.setdefault(name if name in NAMES else "http", []).append(sock)
    return sockets


def restart(sockets: Mapping[str, Sequence[socket.socket]], environment: MutableMapping[str, str]) -> NoReturn:
    """Execute this program again with the same arguments and these sockets."""
    flat = [(name, sock) for name, given in sockets.items() for sock in given]
    high = [fcntl.fcntl(sock.fileno(), fcntl.F_DUPFD_CLOEXEC, _ABOVE) for _, sock in flat]
    for at, descriptor in enumerate(high):
        os.dup2(descriptor, _FIRST + at, inheritable=True)
    environment["LISTEN_PID"] = str(os.getpid())
    environment["LISTEN_FDS"] = str(len(flat))
    environment["LISTEN_FDNAMES"] = ":".join(name for name, _ in flat)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # until the new program handles it; its default is to die
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  (the same program again)


def notify(environment: Mapping[str, str], state: str) -> None:
    """Tell systemd what the process does, if it was started by it."""
    address = environment.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
    except OSError:
        pass  # not worth ending for
