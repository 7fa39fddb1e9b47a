"""Sends events as statsd metrics over UDP, in plain statsd or with the tags of DogStatsD.

Each event becomes a count and one metric per number in it, packed into as few datagrams as possible. It must never
block on the network and never raise: what cannot be sent is counted in `lost` and discarded.
"""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ottla.config import DEFAULT_PORT, Address, parse_address
from ottla.errors import ConfigError
from ottla.events.event import Event, fields_of
from ottla.events.measures import Measure, Reading, labels_of, readings

DATAGRAM_BYTES = 1432
"""Fits into an Ethernet frame with its headers, even through common tunnels."""
STATSD_PORT = 8125
LOOKUP_PAUSE = 30.0
"""Seconds until a failed host name lookup is retried."""

_PREFIX = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]")
_NOT_IN_PARTS = re.compile(r"[^A-Za-z0-9_-]")
_NOT_IN_TAGS = re.compile(r"[\s|,#\x00-\x1f\x7f-\x9f]")


class StatsdSink:
    """Sends metrics such as `ottla.flush_acknowledged.records.clicks.0:100|c` to `address`. `prefix` begins them.

    With `tags`, even an empty mapping, it speaks DogStatsD: topic, partition and broker become tags, next to the given
    ones, instead of parts of the name. A host name is looked up once, at the first event; only that may block. Raises
    `ConfigError` for an invalid address or prefix.
    """

    def __init__(
        self, address: str = "127.0.0.1:8125", prefix: str = "ottla", *, tags: Mapping[str, str] | None = None
    ) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise ConfigError(f"statsd prefix {prefix!r} is not words of a-z A-Z 0-9 _ - with dots between them")
        self._address = _parse(address)
        self._prefix = prefix
        self._tags = None if tags is None else [_tag(name, value) for name, value in tags.items()]
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._destination: tuple[Any, ...] = ()
        self._next_lookup = 0.0
        self._closed = False
        self.lost = 0
        """Datagrams that could not be sent. UDP does not report those lost on the way."""

    def __call__(self, event: Event) -> None:
        fields = fields_of(event)
        ending, tags = self._decoration(labels_of(fields))
        measured = [Reading(f"{event.kind}.count", Measure.COUNT, 1.0), *readings(event, fields)]
        lines = [line for reading in measured for line in self._lines(reading, ending, tags)]
        with self._lock:
            for datagram in _packed(lines):
                self._send(datagram)

    def close(self) -> None:
        """Close the socket. Later events are ignored."""
        with self._lock:
            self._closed = True
            if self._socket is not None:
                self._socket.close()
                self._socket = None

    def _decoration(self, labels: Mapping[str, str]) -> tuple[str, str]:
        """Return what follows the name, and what follows the value."""
        if self._tags is None:
            return "".join(f".{_NOT_IN_PARTS.sub('_', value) or '_'}" for value in labels.values()), ""
        tags = [*self._tags, *(_tag(name, value) for name, value in labels.items())]
        return "", f"|#{','.join(tags)}" if tags else ""

    def _lines(self, reading: Reading, ending: str, tags: str) -> Iterator[str]:
        """Yield the lines for a number: a counter, a timer in milliseconds, or a gauge."""
        name = f"{self._prefix}.{_NOT_IN_NAMES.sub('_', reading.name)}"
        if reading.measure is Measure.TIME:
            yield f"{name.removesuffix('seconds')}time{ending}:{_digits(reading.value * 1000)}|ms{tags}"
            return
        if reading.value < 0 and self._tags is None:
            yield f"{name}{ending}:0|g"  # plain statsd treats a signed gauge as a change of the previous value
        yield f"{name}{ending}:{_digits(reading.value)}|{'g' if reading.measure is Measure.GAUGE else 'c'}{tags}"

    def _send(self, datagram: bytes) -> None:
        """Send a datagram, or count it as lost."""
        if self._closed:
            return
        try:
            if self._socket is None:
                self._open()
            # Not connected: a connected socket would reject the next datagram if no server received the previous one.
            if self._socket is not None:
                self._socket.sendto(datagram, self._destination)
                return
        except (OSError, UnicodeError):  # send buffer full, no route, no such host, an invalid host name
            pass
        self.lost += 1

    def _open(self) -> None:
        """Look up the host and open a socket, unless the last lookup failed recently."""
        now = time.monotonic()
        if now < self._next_lookup:
            return
        self._next_lookup = now + LOOKUP_PAUSE
        candidates = socket.getaddrinfo(*self._address, type=socket.SOCK_DGRAM)
        # localhost often has an IPv6 address first, where few statsd servers listen, and UDP would not report it.
        family, kind, protocol, _, self._destination = min(
            candidates, key=lambda candidate: candidate[0] != socket.AF_INET
        )
        new_socket = socket.socket(family, kind, protocol)
        new_socket.setblocking(False)
        self._socket = new_socket


def _parse(text: str) -> Address:
    """Parse the address. Without a port, statsd's default port is used instead of Kafka's."""
    try:
        address = parse_address(text)
    except ConfigError:
        raise ConfigError(f"statsd address {text!r} is not HOST:PORT, for example 127.0.0.1:{STATSD_PORT}") from None
    has_port = text.strip().endswith(f":{address.port}")
    return address if has_port or address.port != DEFAULT_PORT else Address(address.host, STATSD_PORT)


def _tag(name: str, value: object) -> str:
    return f"{_NOT_IN_TAGS.sub('_', name)}:{_NOT_IN_TAGS.sub('_', str(value))}"


def _digits(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.3f}"


def _packed(lines: Iterable[str]) -> Iterator[bytes]:
    """Join lines to datagrams of at most `DATAGRAM_BYTES`. A single longer line goes alone."""
    datagram = b""
    for line in lines:
        data = line.encode(errors="replace")
        if datagram and len(datagram) + 1 + len(data) > DATAGRAM_BYTES:
            yield datagram
            datagram = b""
        datagram = datagram + b"\n" + data if datagram else data
    if datagram:
        yield datagram
