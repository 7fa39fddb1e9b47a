"""Small TCP servers that misbehave on purpose, for tests of the connection."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from ottla.config import Address
from ottla.errors import ErrorCode
from ottla.wire import messages

API_VERSIONS = 18
METADATA = 3


class Peer:
    """The server's end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.sock.recv(count - len(data))
            if not part:
                raise ConnectionError("the client is gone")
            data += part
        return data

    def request(self) -> tuple[int, int, int]:
        """Return API key, version and correlation id of the next request."""
        frame = self.read(struct.unpack(">i", self.read(4))[0])
        return struct.unpack_from(">hhi", frame)

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def drip(self, data: bytes, *, seconds: float) -> None:
        for position in range(len(data)):
            self.send(data[position : position + 1])
            time.sleep(seconds)

    def answer(self, asked: tuple[int, int, int], fields: dict[str, Any]) -> None:
        self.send(response(asked, fields))

    def introduce(self) -> None:
        """Answer ApiVersions like a broker that supports Metadata 0 to 12."""
        asked = self.request()
        assert asked[0] == API_VERSIONS
        self.answer(asked, api_versions())

    def wait_until_closed(self) -> None:
        while self.sock.recv(4096):
            pass


Script = Callable[[Peer], None]


def api_versions(**ranges: tuple[int, int]) -> dict[str, Any]:
    offered = {"Metadata": (0, 12), "ApiVersions": (0, 4), **ranges}
    keys = [
        {"api_key": messages.api_key(name), "min_version": low, "max_version": high}
        for name, (low, high) in offered.items()
    ]
    return {"error_code": ErrorCode.none, "api_keys": keys}


def response(asked: tuple[int, int, int], fields: dict[str, Any]) -> bytes:
    """Return a complete response frame for the request `asked`."""
    api_key, version, correlation_id = asked
    entity_type = messages.response_type(api_key, version)
    flexible_header = api_key != API_VERSIONS and messages.is_flexible(api_key, version)
    return frame(correlation_id, body(entity_type, fields), tagged=flexible_header)


def body(entity_type: type, fields: dict[str, Any]) -> bytes:
    return messages.encode_body(messages.compose(entity_type, {"throttle_time": timedelta(0), **fields}))


def frame(correlation_id: int, payload: bytes, *, tagged: bool = False) -> bytes:
    inside = struct.pack(">i", correlation_id) + (b"\0" if tagged else b"") + payload
    return struct.pack(">i", len(inside)) + inside


def metadata_fields(cluster_id: str = "c") -> dict[str, Any]:
    return {"brokers": [], "cluster_id": cluster_id, "controller_id": -1, "topics": [], "error_code": ErrorCode.none}


@contextlib.contextmanager
def serving(*scripts: Script, tls: ssl.SSLContext | None = None) -> Iterator[Address]:
    """Run the first script on the first connection and so on, the last one on all that follow."""
    server = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            for number in range(1_000_000):
                sock, _ = server.accept()
                open_sockets.append(sock)
                script = scripts[min(number, len(scripts) - 1)]
                thread = threading.Thread(target=_run, args=(script, sock, tls))
                threads.append(thread)
                thread.start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield Address("127.0.0.1", server.getsockname()[1])
    finally:
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
        acceptor.join()
        for sock in open_sockets:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def _run(script: Script, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
    try:
        with contextlib.suppress(OSError):
            if tls is not None:
                sock = tls.wrap_socket(sock, server_side=True)
            script(Peer(sock))
    finally:
        sock.close()
