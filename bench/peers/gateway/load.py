"""The load: connections that send one request after the other, and take the time of each. One process, one thread."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import uvloop

_WARM_SECONDS = 1.0


class _Client(asyncio.Protocol):
    """One connection."""

    def __init__(self, request: bytes, until: list[float]) -> None:
        self._request = request
        self._until = until
        self._pending = b""
        self._sent_at = 0.0
        self.seconds: list[float] = []
        self.failed = 0
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._send()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._pending += data
        head, separator, rest = self._pending.partition(b"\r\n\r\n")
        if not separator:
            return
        lower = head.lower()
        at = lower.find(b"content-length:")
        length = int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(rest) < length:
            return
        now = time.perf_counter()
        self._pending = rest[length:]
        if now > self._until[0]:
            self.seconds.append(now - self._sent_at)
            self.failed += not head.startswith(b"HTTP/1.1 2")
        if now > self._until[1]:
            self._transport.close()
            return
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def load(
    port: int, path: str, content_type: str, body: bytes, connections: int, seconds: float
) -> dict[str, Any]:
    """Send requests and return how many were answered per second, and percentiles of the time."""
    lines = ("Host: localhost", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", "", "")
    head = "\r\n".join((f"POST {path} HTTP/1.1", *lines))
    began = time.perf_counter() + _WARM_SECONDS
    until = [began, began + seconds]
    loop = asyncio.get_running_loop()
    clients = []
    for _ in range(connections):
        _, client = await loop.create_connection(lambda: _Client(head.encode() + body, until), "127.0.0.1", port)
        clients.append(client)
    await asyncio.wait_for(asyncio.gather(*(client.ended for client in clients)), seconds + 60)
    taken = sorted(each for client in clients for each in client.seconds)
    return {
        "requests_per_second": len(taken) / seconds,
        "failed": sum(client.failed for client in clients),
        "p50_ms": taken[len(taken) // 2] * 1e3 if taken else None,
        "p99_ms": taken[len(taken) * 99 // 100] * 1e3 if taken else None,
    }


if __name__ == "__main__":
    given = json.load(sys.stdin)
    given["body"] = given["body"].encode()
    print(json.dumps(uvloop.run(load(**given))))
