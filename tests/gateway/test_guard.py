"""Slow, idle and many clients: each is dropped after its time, and none keeps others waiting."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.gateway.plain import exchange, plain_listener, receive, statuses
from tests.waiting import eventually

from ottla.gateway.http.limits import Limits

_SHORT = Limits(head_seconds=0.4, body_seconds=0.6, answer_seconds=0.5, idle_seconds=1)
_HEAD = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_GOOD = _HEAD + b"Content-Length: 2\r\n\r\n{}"


def _drip(sock: socket.socket, data: bytes) -> None:
    try:
        for number in data:
            sock.sendall(bytes([number]))
            time.sleep(0.1)
    except OSError:
        pass  # the listener has ended it


@pytest.mark.parametrize(
    ("phase", "first", "slowly", "limit"),
    [
        ("nothing is sent", b"", b"", "head_seconds"),
        ("the request line comes slowly", b"", b"POST /v1/topics/t/records HTTP/1.1", "head_seconds"),
        ("the headers stop", b"POST / HTTP/1.1\r\nHost: l", b"", "head_seconds"),
        ("the headers come slowly", _HEAD, b"X-A: " + b"a" * 50, "head_seconds"),
        ("the body does not come", _HEAD + b"Content-Length: 9\r\n\r\n", b"", "body_seconds"),
        ("the body comes slowly", _HEAD + b"Content-Length: 50\r\n\r\n", b" " * 50, "body_seconds"),
        ("a chunk does not end", _HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", b"", "body_seconds"),
        ("chunks come slowly", _HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n" * 9, "body_seconds"),
        ("the last chunk does not come", _HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", b"", "body_seconds"),
    ],
)
def test_a_client_that_stalls_is_dropped_in_each_phase(phase: str, first: bytes, slowly: bytes, limit: str) -> None:
    with plain_listener(_SHORT) as plain, socket.create_connection(("127.0.0.1", plain.port), timeout=10) as sock:
        started = time.monotonic()
        sock.sendall(first)
        dripping = threading.Thread(target=_drip, args=(sock, slowly))
        dripping.start()
        answer = receive(sock)
        assert statuses(answer) == [408], phase
        assert limit.encode() in answer
        assert 0.3 < time.monotonic() - started < 8
        assert plain.hit[limit] == 1
        dripping.join()


@pytest.mark.parametrize("between", [b"", b"\r\n", b"P"])
def test_a_client_that_stalls_between_two_requests_is_dropped(between: bytes) -> None:
    with plain_listener(_SHORT) as plain, socket.create_connection(("127.0.0.1", plain.port), timeout=10) as sock:
        sock.sendall(_GOOD + between)
        answer = receive(sock)  # ends because the listener ends it
        assert statuses(answer)[0] == 200


def test_a_client_that_does_not_read_its_answer_is_dropped() -> None:
    with plain_listener(_SHORT) as plain, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", plain.port))
        sock.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        eventually(lambda: plain.hit["answer_seconds"] == 1, "the client is dropped", seconds=10)
        eventually(lambda: plain.listener.connections == 0, "its connection is gone", seconds=10)


def test_a_client_that_stalls_in_the_handshake_is_dropped(tmp_path: Path) -> None:
    import trustme

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with (
        plain_listener(_SHORT, tls=context) as plain,
        socket.create_connection(("127.0.0.1", plain.port), timeout=10) as sock,
    ):
        sock.sendall(b"\x16\x03\x01")
        started = time.monotonic()
        assert receive(sock) == b""
        assert time.monotonic() - started < 8


def test_more_connections_than_the_limit_are_refused_and_others_go_on() -> None:
    with plain_listener(Limits(connections=5)) as plain:
        held = [socket.create_connection(("127.0.0.1", plain.port), timeout=10) for _ in range(5)]
        eventually(lambda: plain.listener.connections == 5, "all are connected", seconds=10)
        refused = exchange(plain.port, b"")
        assert statuses(refused) == [503]
        assert b'"limit":"connections"' in refused
        assert b"retry-after" in refused
        held[0].sendall(_GOOD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        assert statuses(receive(held[0])) == [200]
        for sock in held:
            sock.close()


def test_a_body_above_the_limit_is_refused_before_it_is_read() -> None:
    with plain_listener() as plain, socket.create_connection(("127.0.0.1", plain.port), timeout=10) as sock:
        sock.sendall(_HEAD + b"Content-Length: 50000000\r\n\r\n")
        answer = sock.recv(1 << 16)
        assert statuses(answer) == [413]
        assert b'"limit":"body_bytes"' in answer


def test_bodies_of_all_clients_share_a_limit_of_memory() -> None:
    with plain_listener(Limits(body_memory_bytes=1 << 20, body_seconds=60.0)) as plain:
        head = b"POST /v1/topics/t/records HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
        body = b"Content-Length: 500000\r\n\r\n" + b"x" * 500_000
        with socket.create_connection(("127.0.0.1", plain.port)) as slow:
            slow.sendall(head + b"Content-Length: 900001\r\n\r\n" + b"x" * 900_000)
            short = head + b"Connection: close\r\n" + body
            eventually(lambda: 503 in statuses(exchange(plain.port, short)), "the memory is used")
            slow.sendall(b"x")
            assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        assert statuses(exchange(plain.port, short)) == [200]


def test_a_client_that_asks_before_it_sends_is_answered() -> None:
    with plain_listener() as plain, socket.create_connection(("127.0.0.1", plain.port), timeout=10) as sock:
        sock.sendall(_HEAD + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 100 ")
        sock.sendall(b"{}")
        assert statuses(sock.recv(1 << 16)) == [200]


@pytest.mark.parametrize("cut", [_GOOD[:-1], _HEAD, _HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{"])
def test_a_client_that_goes_in_the_middle_leaves_nothing_behind(cut: bytes) -> None:
    with plain_listener() as plain:
        with socket.create_connection(("127.0.0.1", plain.port), timeout=10) as sock:
            sock.sendall(cut)
        eventually(lambda: plain.listener.connections == 0, "its connection is gone", seconds=10)
        assert plain.bodies == []


def test_requests_under_way_end_while_new_connections_are_refused() -> None:
    with plain_listener() as plain, socket.create_connection(("127.0.0.1", plain.port), timeout=10) as sock:
        sock.sendall(_GOOD[:-1])
        eventually(lambda: plain.listener.connections == 1, "it is connected", seconds=10)
        plain.listener.stop_accepting()
        assert not plain.listener.drain(0.3)
        sock.sendall(_GOOD[-1:])
        answer = receive(sock)
        assert statuses(answer) == [200]
        assert plain.listener.drain(10)


def test_a_body_may_be_compressed() -> None:
    body = gzip.compress(b'{"records":[{"value":1},{"value":2}]}')
    with plain_listener() as plain:
        request = (
            _HEAD + b"Connection: close\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        )
        assert b'"records":2' in exchange(plain.port, request)


def test_one_slow_client_keeps_no_other_waiting() -> None:
    with plain_listener() as plain:
        slow = [socket.create_connection(("127.0.0.1", plain.port), timeout=10) for _ in range(50)]
        for sock in slow:
            sock.sendall(_HEAD)
        good = _GOOD.replace(b"Content-Length", b"Connection: close\r\nContent-Length")
        answers: list[list[int]] = []
        ask: Callable[[], None] = lambda: answers.append(statuses(exchange(plain.port, good)))  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert answers == [[200]] * 10
        for sock in slow:
            sock.close()
