"""Gives sockets that another process opened to the listeners they are for: systemd, or a gateway that restarts.

Sockets by name and the settings of a listener come in, settings with descriptors go out: sockets that were passed on
take the place of all addresses in the settings. Pure but for the descriptors, which change hands.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ottla.errors import ConfigError
from ottla.gateway.datagram.settings import DatagramSettings
from ottla.gateway.settings import Listen
from ottla.gateway.syslog.settings import SyslogSettings

OWN = "own-"
"""Begins the names of sockets that a gateway has left to the next one, with their files."""
DEFAULT_TOPIC = "syslog"
Passed = Mapping[str, Sequence[socket.socket]]


def for_socket(settings: DatagramSettings | None, passed: Passed) -> DatagramSettings | None:
    """Return the settings of the socket in dory's format, None if there is none."""
    given, is_own = _named(passed, "socket")
    if not given:
        return settings
    known = settings or DatagramSettings()
    for sock in given:
        _check_local(sock)
    return replace(
        known,
        path=None,
        stream_path=None,
        tcp=None,
        datagram_descriptors=_taken(given, socket.SOCK_DGRAM),
        stream_descriptors=_taken(given, socket.SOCK_STREAM),
        owns_files=is_own,
    )


def for_syslog(settings: SyslogSettings | None, passed: Passed, *, is_insecure: bool) -> SyslogSettings | None:
    """Return the settings of syslog, None if there is none. Raises `ConfigError` for one that is open to strangers."""
    given, is_own = _named(passed, "syslog")
    over_tls, _ = _named(passed, "syslog-tls")
    if not given and not over_tls:
        return settings
    known = settings or SyslogSettings(topic=DEFAULT_TOPIC)
    unix = [sock for sock in given if sock.family == socket.AF_UNIX]
    network = [sock for sock in given if sock.family != socket.AF_UNIX]
    if not is_insecure and not known.anyone_may_write:
        is_guarded = known.server_tls is not None and known.server_tls.needs_certificate
        for sock in (*network, *(() if is_guarded else over_tls)):
            _check_local(sock)
    return replace(
        known,
        udp=(),
        tcp=(),
        tls=(),
        path=None,
        stream_path=None,
        udp_descriptors=_taken(network, socket.SOCK_DGRAM),
        tcp_descriptors=_taken(network, socket.SOCK_STREAM),
        tls_descriptors=_taken(over_tls, socket.SOCK_STREAM),
        datagram_descriptors=_taken(unix, socket.SOCK_DGRAM),
        stream_descriptors=_taken(unix, socket.SOCK_STREAM),
        owns_files=is_own,
    )


def _named(passed: Passed, name: str) -> tuple[list[socket.socket], bool]:
    own = list(passed.get(OWN + name, ()))
    return (own, True) if own else (list(passed.get(name, ())), False)


def _taken(given: Sequence[socket.socket], kind: int) -> tuple[int, ...]:
    return tuple(sock.detach() for sock in given if sock.fileno() >= 0 and sock.type == kind)


def _check_local(sock: socket.socket) -> None:
    if sock.family == socket.AF_UNIX:
        return
    where = Listen(*sock.getsockname()[:2])
    if not where.is_loopback:
        raise ConfigError(
            f"the socket at {where} that was passed on can be reached from other machines, and its senders have no"
            " login"
        )
