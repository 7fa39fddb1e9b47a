"""Sends commands to a Redis server: each runs at most once, within a deadline.

A command comes in; its reply goes out, or an Ottla error. A command is only sent again if it certainly did not run:
it was not sent completely, or the server refused it. This module does not know what commands mean.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from redis import exceptions
from redis.connection import Connection, SSLConnection

from ottla.config import Address
from ottla.engines.fleet.redis_address import Kind, Place
from ottla.engines.fleet.redis_errors import code, first_line, meaning
from ottla.engines.fleet.redis_scripts import Script
from ottla.errors import ConfigError, StoreUnavailable
from ottla.net.tls import tls_context
from ottla.small_files import read_line

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 5.0
"""How long a server may be silent."""
CALL_SECONDS = 10.0
"""The time limit of a call, even if a server sends its reply byte by byte."""
_MAX_HOPS = 6
"""How many redirects of a cluster, and retries, a call follows."""
_MAX_IDLE = 16
"""How many idle connections are kept."""
Argument = str | bytes | int
_CLIENT_ERRORS = (exceptions.RedisError, ValueError)
"""What the redis package raises. `ValueError` is for servers that do not speak the protocol of Redis."""


class Link:
    """Connections to the server that has the group, opened on demand. Threads and forked children may share it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._owner: Address | None = None
        """The master, or the cluster node, that answered last; None if that is unknown or fixed by the address."""
        self._idle: deque[_Line] = deque()
        self._check_files()

    def run(self, script: Script, keys: tuple[str, ...], *arguments: Argument) -> Any:
        """Run a script, and load it first if the server does not have it yet.

        Raises `StoreUnavailable` if the server does not answer, `StoreIncompatible` or `ConfigError` if it cannot be
        used.
        """
        deadline = time.monotonic() + CALL_SECONDS
        rest: tuple[Argument, ...] = (len(keys), *keys, *arguments)
        try:
            return self._call(("EVALSHA", script.sha, *rest), deadline)
        except exceptions.NoScriptError:
            return self._call(("EVAL", script.text, *rest), deadline)

    def call(self, *arguments: Argument) -> Any:
        """Run one command. Raises what `run` raises."""
        return self._call(arguments, time.monotonic() + CALL_SECONDS)

    def close(self) -> None:
        """Close the idle connections. A later call opens new ones."""
        while (line := self._popped()) is not None:
            line.disconnect()

    def _call(self, arguments: tuple[Argument, ...], deadline: float) -> Any:
        """Run a command, and turn errors of the redis package into Ottla errors."""
        outside = sys.exception()  # it will be the __context__ of ours, but has nothing to do with the server
        try:
            return self._answer(arguments, deadline)
        except (exceptions.NoScriptError, ConfigError):
            raise
        except _CLIENT_ERRORS as error:
            raise meaning(error, self._place, outside) from error

    def _answer(self, arguments: tuple[Argument, ...], deadline: float) -> Any:
        """Send a command and return its reply. Follows redirects of a cluster."""
        ask_at: Address | None = None
        second = _SecondAttempt()
        for _ in range(_MAX_HOPS):
            line = self._sent(arguments, deadline, ask_at, second)
            try:
                reply = line.read_response()
            except exceptions.ResponseError as error:
                self._keep(line)
                if isinstance(error, exceptions.MovedError) and self._place.kind is Kind.CLUSTER:
                    self._owner, ask_at = _named(error, line), None
                elif isinstance(error, exceptions.AskError) and self._place.kind is Kind.CLUSTER:
                    ask_at = _named(error, line)
                elif code(error) == "READONLY" and self._owner is not None and second.is_due():
                    self._owner = None  # another server has become the master
                else:
                    raise
            except _CLIENT_ERRORS:
                self._owner = None
                raise
            else:
                if self._place.kind is Kind.CLUSTER and ask_at is None:
                    self._owner = line.address
                self._keep(line)
                return reply
        raise StoreUnavailable(str(self._place), "its nodes redirect to each other in a circle")

    def _sent(
        self, arguments: tuple[Argument, ...], deadline: float, ask_at: Address | None, second: _SecondAttempt
    ) -> _Line:
        """Send a command and return the connection on which its reply will arrive.

        Tries a second time if an idle connection was closed by the server, or the owner's address may be out of date.
        That is safe: a server does not run a command that it did not receive completely.
        """
        while True:
            line: _Line | None = None
            try:
                line = self._line(deadline) if ask_at is None else self._open(ask_at, deadline)
                if ask_at is not None:
                    line.ask("ASKING")
                line.send_command(*arguments)
            except _CLIENT_ERRORS:
                may_help = self._owner is not None or (line is not None and line.is_used)
                self._owner = None
                self.close()
                if not (may_help and second.is_due()):
                    raise
            else:
                return line

    def _line(self, deadline: float) -> _Line:
        """Return a connection to the server that has the group, or to one that can redirect there."""
        owner = self._owner
        if owner is not None:
            return self._idle_line(owner, deadline) or self._open(owner, deadline)
        if self._place.kind is Kind.SENTINEL:
            return self._open_master(deadline)
        return self._first(deadline)

    def _first(self, deadline: float) -> _Line:
        """Return a connection to the first address that answers."""
        *others, last = self._place.addresses
        for address in others:
            try:
                return self._idle_line(address, deadline) or self._open(address, deadline)
            except (exceptions.ConnectionError, exceptions.TimeoutError):
                continue
        return self._idle_line(last, deadline) or self._open(last, deadline)

    def _idle_line(self, address: Address, deadline: float) -> _Line | None:
        """Return an idle connection to this address that is still usable, with a new deadline."""
        while (line := self._popped()) is not None:
            # A forked child drops its parent's connections without sending anything on them.
            if line.pid == os.getpid() and line.address == address and not line.has_ended():
                line.end.at = deadline
                return line
            line.disconnect()
        return None

    def _popped(self) -> _Line | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _keep(self, line: _Line) -> None:
        """Keep a connection for later calls, unless there are enough."""
        line.is_used = True
        if len(self._idle) < _MAX_IDLE:
            self._idle.append(line)
        else:
            line.disconnect()

    def _open(self, address: Address, deadline: float, *, with_password: bool = True) -> _Line:
        """Open a connection and authenticate."""
        place = self._place
        end = _Deadline()
        end.at = deadline
        settings: dict[str, Any] = {
            "host": address.host,
            "port": address.port,
            "db": place.db if with_password else 0,
            "username": place.username if with_password else None,
            "password": self._password() if with_password else None,
            "socket_timeout": ANSWER_SECONDS,
            "socket_connect_timeout": max(0.001, min(CONNECT_SECONDS, deadline - time.monotonic())),
            "protocol": 2,  # RESP2, which all versions speak: replies are lists, not maps
        }
        line: _Line
        if place.tls is None:
            line = _PlainLine(end=end, **settings)
        else:
            settings |= {
                "ssl_ca_certs": place.tls.ca_file,
                "ssl_certfile": place.tls.cert_file,
                "ssl_keyfile": place.tls.key_file,
                "ssl_check_hostname": place.tls.check_hostname,
            }
            line = _TlsLine(end=end, **settings)
        line.connect()
        return line

    def _open_master(self, deadline: float) -> _Line:
        """Connect to the server that a sentinel names as the master, and check that it is one."""
        address = self._ask_sentinels(deadline)
        line = self._open(address, deadline)
        role = line.ask("ROLE")
        if role[0] != b"master":
            line.disconnect()
            raise exceptions.ConnectionError(f"{address}, named by the sentinels, is not the master yet")
        self._owner = address
        return line

    def _ask_sentinels(self, deadline: float) -> Address:
        """Return the address of the master. Raises `ConnectionError` of the redis package if no sentinel knows it."""
        reasons = []
        for sentinel in self._place.addresses:
            try:
                master = self._ask_sentinel(sentinel, deadline)
            except exceptions.RedisError as error:
                reasons.append(f"{sentinel}: {first_line(error)}")
                continue
            if master is not None:
                return Address(master[0].decode(), int(master[1]))
            reasons.append(f"{sentinel} knows no master {self._place.master!r}")
        raise exceptions.ConnectionError(f"no sentinel names the master: {'; '.join(reasons)}")

    def _ask_sentinel(self, sentinel: Address, deadline: float) -> list[bytes] | None:
        """Return host and port of the master; None if the sentinel does not know it."""
        arguments = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._place.master)
        try:
            # Sentinels usually have no password, even where the servers have one.
            line = self._open(sentinel, deadline, with_password=False)
        except exceptions.AuthenticationError:
            if not self._place.has_password:
                raise
            line = self._open(sentinel, deadline)
        try:
            host_and_port: list[bytes] | None = line.ask(*arguments)
        finally:
            line.disconnect()
        return host_and_port

    def _password(self) -> str | None:
        """Return the password, read again from its file for each connection so that it can be rotated."""
        if (path := self._place.password_file) is None:
            return self._place.password
        try:
            password = read_line(path)
        except OSError as error:
            raise ConfigError(
                f"the fleet's store {self._place}: its password_file {path} cannot be read: {error.strerror}"
            ) from None
        if not password:
            raise ConfigError(
                f"the fleet's store {self._place}: its password_file {path} has no password in its first line"
            )
        return password

    def _check_files(self) -> None:
        """Raise `ConfigError` early, at the start, for files that are missing or unusable."""
        self._password()
        tls = self._place.tls
        if tls is None:
            return
        for name, path in (("ca", tls.ca_file), ("cert", tls.cert_file), ("key", tls.key_file)):
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"the fleet's store {self._place} has {name}={path}, but there is no such file")
        try:
            tls_context(tls)
        except ConfigError as error:
            raise ConfigError(f"the fleet's store {self._place} cannot be used: {error}") from error


class _SecondAttempt:
    """The one retry that a call has."""

    def __init__(self) -> None:
        self._is_left = True

    def is_due(self) -> bool:
        """Return True the first time."""
        due, self._is_left = self._is_left, False
        return due


class _Deadline:
    """The deadline of the call that uses a connection, as a monotonic time."""

    at = 0.0


class _Bounded:
    """A socket whose reads and writes end at the deadline of the call. Everything else goes to the socket."""

    def __init__(self, inner: socket.socket, end: _Deadline) -> None:
        self._inner = inner
        self._end = end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def recv(self, size: int) -> bytes:
        self._limit()
        return self._inner.recv(size)

    def recv_into(self, buffer: bytearray) -> int:
        self._limit()
        return self._inner.recv_into(buffer)

    def sendall(self, data: bytes) -> None:
        self._limit()
        self._inner.sendall(data)

    def _limit(self) -> None:
        """Set the socket timeout to what is left of the call. A timeout per read alone would not bound a slow reply."""
        left = self._end.at - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._inner.settimeout(min(left, ANSWER_SECONDS))


class _PlainLine(Connection):
    """One connection. Used directly, without a client, so that the redis package does not send anything again."""

    is_used = False

    def __init__(self, *, end: _Deadline, **settings: Any) -> None:
        self.end = end
        super().__init__(**settings)

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    def ask(self, *arguments: Argument) -> Any:
        """Run a command that may run twice."""
        self.send_command(*arguments)
        return self.read_response()

    def has_ended(self) -> bool:
        """Whether the server has closed it, or has sent something that was not asked for."""
        open_socket: Any = self._sock
        if open_socket is None:
            return True
        poll = select.poll()
        poll.register(open_socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _connect(self) -> Any:
        return _Bounded(super()._connect(), self.end)


class _TlsLine(_PlainLine, SSLConnection):
    """One connection with TLS."""


_Line = _PlainLine


def _named(error: exceptions.AskError, line: _Line) -> Address:
    """Return the address of a redirect. One without a host means the host of the node that sent it."""
    return Address(error.host if error.host not in ("", "?") else line.host, error.port)
