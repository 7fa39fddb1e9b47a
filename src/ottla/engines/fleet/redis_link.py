"""Commands to a Redis server that are carried out at most once, and never take longer than their time.

A command goes in, the answer comes out, or an error of Ottla's. A command is sent again only where it surely was not
carried out: it was not sent, or the server said so. What a command means is not known here.
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

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 5.0
"""How long a server may say nothing."""
CALL_SECONDS = 10.0
"""How long a call takes at most, even if a server sends its answer byte by byte."""
_HOPS = 6
_MOST_IDLE = 16
Word = str | bytes | int
_TROUBLES = (exceptions.RedisError, ValueError)
"""The second is what a server gets that sends something else than Redis does."""


class Link:
    """Connections to the server that has the group, made when they are needed. Threads and forks may share it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._owner: Address | None = None
        """Who answered last, where that is not fixed."""
        self._idle: deque[_Line] = deque()
        self._check_files()

    def run(self, script: Script, keys: tuple[str, ...], *words: Word) -> Any:
        """Run a script, which the server may not have seen yet."""
        until = time.monotonic() + CALL_SECONDS
        rest: tuple[Word, ...] = (len(keys), *keys, *words)
        try:
            return self._call(("EVALSHA", script.sha, *rest), until)
        except exceptions.NoScriptError:
            return self._call(("EVAL", script.text, *rest), until)

    def call(self, *words: Word) -> Any:
        """One command."""
        return self._call(words, time.monotonic() + CALL_SECONDS)

    def close(self) -> None:
        """End all connections that are not in use. A later call makes new ones."""
        while (line := self._popped()) is not None:
            line.disconnect()

    def _call(self, words: tuple[Word, ...], until: float) -> Any:
        outside = sys.exception()
        try:
            return self._answer(words, until)
        except (exceptions.NoScriptError, ConfigError):
            raise
        except _TROUBLES as error:
            raise meaning(error, self._place, outside) from error

    def _answer(self, words: tuple[Word, ...], until: float) -> Any:
        ask_at: Address | None = None
        again = _Again()
        for _ in range(_HOPS):
            line = self._sent(words, until, ask_at, again)
            try:
                answer = line.read_response()
            except exceptions.ResponseError as error:
                self._keep(line)
                if isinstance(error, exceptions.MovedError) and self._place.kind is Kind.CLUSTER:
                    self._owner, ask_at = _named(error, line), None
                elif isinstance(error, exceptions.AskError) and self._place.kind is Kind.CLUSTER:
                    ask_at = _named(error, line)
                elif code(error) == "READONLY" and self._owner is not None and again.is_due():
                    self._owner = None  # another server is the master by now
                else:
                    raise
            except _TROUBLES:
                self._owner = None
                raise
            else:
                if self._place.kind is Kind.CLUSTER and ask_at is None:
                    self._owner = line.address
                self._keep(line)
                return answer
        raise StoreUnavailable(str(self._place), "its nodes name one another in a circle")

    def _sent(self, words: tuple[Word, ...], until: float, ask_at: Address | None, again: _Again) -> _Line:
        """The connection on which a command went out.

        One that ended while it was idle costs another attempt, as does an address that may be out of date: a command
        that could not be handed over whole is not carried out.
        """
        while True:
            line: _Line | None = None
            try:
                line = self._line(until) if ask_at is None else self._open(ask_at, until)
                if ask_at is not None:
                    line.ask("ASKING")
                line.send_command(*words)
            except _TROUBLES:
                may_help = self._owner is not None or (line is not None and line.is_used)
                self._owner = None
                self.close()
                if not (may_help and again.is_due()):
                    raise
            else:
                return line

    def _line(self, until: float) -> _Line:
        """A connection to the server that has the group, as far as that is known."""
        owner = self._owner
        if owner is not None:
            return self._idle_line(owner, until) or self._open(owner, until)
        if self._place.kind is Kind.SENTINEL:
            return self._open_master(until)
        return self._first(until)

    def _first(self, until: float) -> _Line:
        """The first address that answers."""
        *others, last = self._place.addresses
        for address in others:
            try:
                return self._idle_line(address, until) or self._open(address, until)
            except (exceptions.ConnectionError, exceptions.TimeoutError):
                continue
        return self._idle_line(last, until) or self._open(last, until)

    def _idle_line(self, address: Address, until: float) -> _Line | None:
        while (line := self._popped()) is not None:
            # What a forked child has from its parent is the parent's: it is dropped without a word to the server.
            if line.pid == os.getpid() and line.address == address and not line.has_ended():
                line.end.at = until
                return line
            line.disconnect()
        return None

    def _popped(self) -> _Line | None:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _keep(self, line: _Line) -> None:
        line.is_used = True
        if len(self._idle) < _MOST_IDLE:
            self._idle.append(line)
        else:
            line.disconnect()

    def _open(self, address: Address, until: float, *, with_password: bool = True) -> _Line:
        place = self._place
        end = _End()
        end.at = until
        settings: dict[str, Any] = {
            "host": address.host,
            "port": address.port,
            "db": place.db if with_password else 0,
            "username": place.username if with_password else None,
            "password": self._password() if with_password else None,
            "socket_timeout": ANSWER_SECONDS,
            "socket_connect_timeout": max(0.001, min(CONNECT_SECONDS, until - time.monotonic())),
            "protocol": 2,
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

    def _open_master(self, until: float) -> _Line:
        """The server that a sentinel calls the master, and that says so itself."""
        address = self._ask_sentinels(until)
        line = self._open(address, until)
        role = line.ask("ROLE")
        if role[0] != b"master":
            line.disconnect()
            raise exceptions.ConnectionError(f"{address}, named by the sentinels, is not the master yet")
        self._owner = address
        return line

    def _ask_sentinels(self, until: float) -> Address:
        reasons = []
        for sentinel in self._place.addresses:
            try:
                found = self._ask_sentinel(sentinel, until)
            except exceptions.RedisError as error:
                reasons.append(f"{sentinel}: {first_line(error)}")
                continue
            if found is not None:
                return Address(found[0].decode(), int(found[1]))
            reasons.append(f"{sentinel} knows no master {self._place.master!r}")
        raise exceptions.ConnectionError(f"no sentinel names the master: {'; '.join(reasons)}")

    def _ask_sentinel(self, sentinel: Address, until: float) -> list[bytes] | None:
        """Sentinels have no password, as a rule, even where the servers have one."""
        words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._place.master)
        try:
            line = self._open(sentinel, until, with_password=False)
        except exceptions.AuthenticationError:
            if not self._place.has_password:
                raise
            line = self._open(sentinel, until)
        try:
            found: list[bytes] | None = line.ask(*words)
        finally:
            line.disconnect()
        return found

    def _password(self) -> str | None:
        if (path := self._place.password_file) is None:
            return self._place.password
        try:
            password = Path(path).read_text(encoding="utf-8").partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise ConfigError(
                f"the fleet's store {self._place}: its password_file {path} cannot be read: {why}"
            ) from None
        if not password:
            raise ConfigError(
                f"the fleet's store {self._place}: its password_file {path} has no password in its first line"
            )
        return password

    def _check_files(self) -> None:
        self._password()
        tls = self._place.tls
        if tls is None:
            return
        for name, path in (("ca", tls.ca_file), ("cert", tls.cert_file), ("key", tls.key_file)):
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"the fleet's store {self._place} has {name}={path}, and there is no such file")
        try:
            tls_context(tls)
        except ConfigError as error:
            raise ConfigError(f"the fleet's store {self._place} cannot be used: {error}") from error


class _Again:
    """The one other attempt of a call."""

    def __init__(self) -> None:
        self._is_left = True

    def is_due(self) -> bool:
        """True for the first who asks."""
        due, self._is_left = self._is_left, False
        return due


class _End:
    """When the call that uses a connection is over."""

    at = 0.0


class _Bounded:
    """A socket of which no read and no write goes on after the time of the call. The rest is that of the socket."""

    def __init__(self, inner: socket.socket, end: _End) -> None:
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
        left = self._end.at - time.monotonic()
        if left <= 0:
            raise TimeoutError("timed out")
        self._inner.settimeout(min(left, ANSWER_SECONDS))


class _PlainLine(Connection):
    """One connection. The package's own attempts to send again are off where a connection is used by itself."""

    is_used = False

    def __init__(self, *, end: _End, **settings: Any) -> None:
        self.end = end
        super().__init__(**settings)

    @property
    def address(self) -> Address:
        return Address(self.host, self.port)

    def ask(self, *words: Word) -> Any:
        """For what may be carried out twice."""
        self.send_command(*words)
        return self.read_response()

    def has_ended(self) -> bool:
        """Whether the server has ended it, or has said something that nobody waits for."""
        open_socket: Any = self._sock
        if open_socket is None:
            return True
        poll = select.poll()
        poll.register(open_socket.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    def _connect(self) -> Any:
        return _Bounded(super()._connect(), self.end)


class _TlsLine(_PlainLine, SSLConnection):
    """The same with TLS."""


_Line = _PlainLine


def _named(error: exceptions.AskError, line: _Line) -> Address:
    """Where a node says to go; without a host it means its own."""
    return Address(error.host if error.host not in ("", "?") else line.host, error.port)
