"""Clients of streams: what a browser's EventSource makes of bytes, and a connection that can be cut anywhere."""

from __future__ import annotations

import http.client
import json
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple


class Event(NamedTuple):
    """An event as a page gets it."""

    kind: str
    data: Any
    id: str


class EventSource:
    """Parses server-sent events as the standard says: an event that was cut off counts for nothing."""

    def __init__(self) -> None:
        self.last_id = ""
        self.retry = 0
        self.comments: list[str] = []
        self._rest = b""
        self._fields: dict[str, str] = {}

    def feed(self, data: bytes) -> list[Event]:
        """Return the events that end in these bytes."""
        events = []
        self._rest += data
        while b"\n" in self._rest:
            line, _, self._rest = self._rest.partition(b"\n")
            if line.startswith(b":"):
                self.comments.append(line[1:].strip().decode())
            elif line:
                name, _, value = line.decode().partition(": ")
                assert name in ("id", "data", "event", "retry"), line
                self._fields[name] = value
            else:
                events += self._dispatch()
        return events

    def _dispatch(self) -> list[Event]:
        fields, self._fields = self._fields, {}
        self.last_id = fields.get("id", self.last_id)
        self.retry = int(fields.get("retry", self.retry))
        if not fields.get("data"):
            return []
        return [Event(fields.get("event", "message"), json.loads(fields["data"]), self.last_id)]

    def cut(self) -> None:
        """The connection was lost."""
        self._rest, self._fields = b"", {}


class Client:
    """One connection with a stream on it."""

    def __init__(
        self, port: int, path: str, headers: Mapping[str, str] | None = None, *, buffer_bytes: int = 0
    ) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._connection.connect()
        self.sock: socket.socket = self._connection.sock
        if buffer_bytes:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        named = {key.replace("_", "-"): value for key, value in (headers or {}).items()}
        self._connection.request("GET", path, headers=named)
        self.answer = self._connection.getresponse()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def status(self) -> int:
        """Of the answer."""
        return self.answer.status

    def read(self, most: int = 1 << 16) -> bytes:
        """Return bytes of the body as soon as there are some; none at its end."""
        return self.answer.read1(most)

    def line(self) -> Any:
        """Return the next line of JSON, None at the end."""
        line = self.answer.readline()
        return json.loads(line) if line else None

    def events(self, source: EventSource, count: int) -> list[Event]:
        """Return at least so many events, less at the end."""
        found: list[Event] = []
        while len(found) < count and (data := self.read()):
            found += source.feed(data)
        return found

    def cut(self) -> None:
        """Lose the connection, without a farewell."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close it."""
        self.answer.close()
        self._connection.close()
        self.sock.close()
