"""A bug shows in the log with its place, and never with what a client has sent."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.waiting import eventually

from ottla.gateway.access.gate import Access, Gate
from ottla.gateway.counts import Counts
from ottla.gateway.http.app import App, HotPath
from ottla.gateway.http.app import Path as Route
from ottla.gateway.http.counters import Counters
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.problems import Problem
from ottla.gateway.http.request import Answer, Request
from ottla.gateway.http.server import HttpListener, bind
from ottla.gateway.intake import Incoming
from ottla.gateway.keys.writer import KeyedWriter
from ottla.gateway.receiving import sockets
from ottla.gateway.receiving.cutting import Framing, SyslogCutting
from ottla.gateway.receiving.datagrams import DatagramReceiver
from ottla.gateway.receiving.streams import StreamReceiver
from ottla.net.access import ClusterAccess

from .plain import exchange

_PAYLOAD = "payload-of-a-client"


def _broken(*_: object) -> None:
    raise LookupError(_PAYLOAD)


def _datagram(folder: Path) -> None:
    counts = Counts()
    sock = sockets.unix_socket(folder / "s", socket.SOCK_DGRAM, mode=0o222)
    with closing(DatagramReceiver(sock, _broken, counts=counts, most_bytes=1000)) as receiver:
        receiver.start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.sendto(_PAYLOAD.encode(), str(folder / "s"))
        eventually(lambda: counts.get("handler_errors") == 1, "the datagram is counted")


def _stream(folder: Path, cutter: Callable[[], object] | None = None) -> None:
    counts = Counts()
    sock = sockets.unix_socket(folder / "s", socket.SOCK_STREAM, mode=0o222)
    made = cutter or SyslogCutting(Framing.DETECT, most_bytes=1000)
    with closing(StreamReceiver(sock, _broken, cutter=made, counts=counts)) as receiver:  # type: ignore[arg-type]
        receiver.start()
        with socket.socket(socket.AF_UNIX) as sender:
            sender.connect(str(folder / "s"))
            sender.sendall(f"<13>{_PAYLOAD}\n".encode())
            name, labels = ("handler_errors", {}) if cutter is None else ("connections_ended", {"reason": "error"})
            eventually(lambda: counts.get(name, **labels) == 1, "it is counted")


def _broken_cutter(folder: Path) -> None:
    _stream(folder, lambda: _broken)


def _keys(folder: Path) -> None:
    writer = KeyedWriter(ClusterAccess(bootstrap="127.0.0.1:9"), gateway="g", topic="keys", limits=Limits())
    writer._recover = _broken  # type: ignore[method-assign]
    try:
        with pytest.raises(Problem) as caught:
            asyncio.run(writer.write("name", b"digest", "t", [Incoming(_PAYLOAD.encode())]))
        assert caught.value.status == 503
    finally:
        writer.close(10)


def _handler(folder: Path) -> None:
    async def handle(request: Request, topic: str) -> Answer:
        await request.body()
        raise LookupError(_PAYLOAD)

    route = Route("POST", "/t/{topic}", handle, "")
    gate = Gate(Access())
    app = App(gate, limits=Limits(), counters=Counters(), hot=[HotPath("/t/", "", route)], paths=[])
    with closing(bind("127.0.0.1", 0)) as sock, closing(HttpListener(app, [sock])) as listener:
        listener.start()
        head = b"POST /t/a HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}"
        answer = exchange(sock.getsockname()[1], head)
        assert answer.startswith(b"HTTP/1.1 500")
        assert _PAYLOAD.encode() not in answer


@pytest.mark.parametrize("provoke", [_datagram, _stream, _broken_cutter, _keys, _handler])
def test_a_bug_is_logged_with_its_place_and_without_what_was_sent(
    provoke: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    provoke(tmp_path)
    assert _PAYLOAD not in caplog.text
    assert re.search(r"LookupError at .*test_faults\.py:\d+; this is a bug", caplog.text)
