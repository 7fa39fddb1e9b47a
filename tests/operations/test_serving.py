"""The HTTP server that lag and health share, over real sockets."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request

import pytest
from tests.waiting import eventually

from ottla.errors import ConfigError
from ottla.operations.serving import Page, Request, Server, routed


def _get(server: Server, path: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(f"{server.url}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def _fail() -> Page:
    raise ValueError("secret")


def test_routes_answer_and_a_page_that_fails_disturbs_no_other() -> None:
    with Server(routed({"/health": lambda: Page("fine"), "/broken": _fail})) as server:
        assert _get(server, "/health?x=1") == (200, "fine")
        assert _get(server, "/nothing") == (404, "there is /broken /health\n")
        status, body = _get(server, "/broken")
        assert (status, "secret" in body) == (500, False)
        assert _get(server, "/health")[0] == 200


def test_a_body_in_pieces_comes_whole() -> None:
    with Server(lambda request: Page(piece * 1000 for piece in (b"a", b"b"))) as server:
        assert _get(server, "/")[1] == "a" * 1000 + "b" * 1000


@pytest.mark.parametrize(
    ("header", "is_accepted"),
    [("gzip", True), ("br, gzip;q=0.5", True), ("*", True), ("gzip;q=0", False), ("gzip;q=0.0", False), ("br", False)],
)
def test_gzip_is_sent_to_those_who_accept_it(header: str, is_accepted: bool) -> None:
    seen: list[Request] = []

    def answer(request: Request) -> Page:
        seen.append(request)
        return Page("")

    with Server(answer) as server:
        _get(server, "/?a=1&a=2", **{"Accept-Encoding": header})
    assert seen == [Request("/", {"a": ["1", "2"]}, is_accepted)]


def test_idle_connections_take_no_room_for_ever() -> None:
    routes = routed({"/": lambda: Page("x")})
    with Server(routes, deadline=1.0, most_connections=4) as server:
        idle = [socket.create_connection(server.address, timeout=30) for _ in range(4)]
        try:
            began = time.monotonic()
            eventually(lambda: _is_served(server), seconds=20)
            assert time.monotonic() - began > 0.3, "four connections are all there is room for"
        finally:
            for connection in idle:
                connection.close()


def _is_served(server: Server) -> bool:
    try:
        return _get(server, "/")[0] == 200
    except OSError:
        return False


@pytest.mark.skipif(not _has_ipv6(), reason="needs IPv6")
def test_an_ipv6_address_is_listened_on() -> None:
    with Server(routed({"/": lambda: Page("x")}), host="::1") as server:
        assert server.url.startswith("http://[::1]:")
        assert _get(server, "/") == (200, "x")


def test_a_port_in_use_is_one_message() -> None:
    with Server(routed({"/": lambda: Page("x")})) as first:
        host, port = first.address
        with pytest.raises(ConfigError, match=f"cannot listen on {host}:{port}: another program listens there"):
            Server(routed({}), host=host, port=port)


def test_a_server_that_never_answered_can_be_closed() -> None:
    server = Server(routed({}))
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address, timeout=1).close()
