"""A guarded HTTP listener without Kafka behind it, and a client that sends any bytes."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ottla.gateway.access.gate import Access, Gate
from ottla.gateway.http.app import App, HotPath, Path
from ottla.gateway.http.bodies import read_rows
from ottla.gateway.http.counters import Counters
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.request import Answer, Request, as_json
from ottla.gateway.http.server import HttpListener, bind


class Plain(NamedTuple):
    """A listener, where it listens, and which limits were hit."""

    listener: HttpListener
    port: int
    hit: Counter[str]
    bodies: list[bytes]


@contextmanager
def plain_listener(limits: Limits | None = None, access: Access | None = None, tls: object = None) -> Iterator[Plain]:
    """Serve a route that reads records and answers with their number."""
    limits = limits or Limits()
    hit: Counter[str] = Counter()
    bodies: list[bytes] = []
    gate = Gate(access or Access())

    async def records(request: Request, topic: str) -> Answer:
        body = await request.body()
        rows = read_rows(body, request.header(b"content-type"), request.query, limits=request.limits)
        bodies.append(body)
        return as_json({"topic": topic, "records": len(rows), "by": request.identity})

    async def names(request: Request) -> Answer:
        return as_json([])

    async def large(request: Request) -> Answer:
        return Answer(200, b"x" * (64 << 20), b"text/plain")

    path = Path("POST", "/v1/topics/{topic}/records", records, "")
    counters = Counters()
    app = App(
        gate,
        limits=limits,
        counters=counters,
        hot=[HotPath("/v1/topics/", "/records", path)],
        paths=[Path("GET", "/v1/topics", names, ""), Path("GET", "/large", large, "")],
    )
    sock = bind("127.0.0.1", 0)
    listener = HttpListener(app, [sock], limits=limits, count=lambda name: hit.update([name]), tls=tls)  # type: ignore[arg-type]
    listener.start()
    try:
        yield Plain(listener, sock.getsockname()[1], hit, bodies)
    finally:
        listener.close()
        sock.close()
        gate.close()


def exchange(port: int, request: bytes, *, seconds: float = 10.0) -> bytes:
    """Send bytes and return all that comes back until the connection ends, or until nothing comes for a while."""
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as sock:
        try:
            sock.sendall(request)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return receive(sock)


def receive(sock: socket.socket) -> bytes:
    """Return all that comes until the connection ends."""
    parts = []
    try:
        while part := sock.recv(1 << 16):
            parts.append(part)
    except (ConnectionResetError, TimeoutError):
        pass
    return b"".join(parts)


def statuses(answer: bytes) -> list[int]:
    """Return the statuses of the answers in what came back."""
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:] if part[:3].isdigit() and part[:3] != b"100"]
