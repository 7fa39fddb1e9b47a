"""The HTTP server, over real sockets: what clients get, and what hostile ones cannot do."""

from __future__ import annotations

import errno
import gzip
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.waiting import eventually

from ottla.errors import ConfigError
from ottla.operations.lag.evaluate import Evaluator
from ottla.operations.lag.history import HistoryFailed
from ottla.operations.lag.server import LagServer
from ottla.operations.lag.values import Snapshot

from .samples import sample


class _Source:
    """The last snapshot."""

    def __init__(self) -> None:
        self.snapshot: Snapshot | None = Evaluator().observe(sample(0.0, 5, 10))

    def latest(self) -> Snapshot | None:
        return self.snapshot


@pytest.fixture
def source() -> _Source:
    return _Source()


@pytest.fixture
def server(source: _Source) -> Iterator[LagServer]:
    looks = [{"at": 1.0}]
    with LagServer(
        "127.0.0.1",
        0,
        latest=source.latest,
        cluster="prod",
        deadline=0.5,
        most_connections=8,
        history=lambda group, since: looks if group == "billing" else [],
    ) as opened:
        yield opened


def _get(server: LagServer, path: str, **headers: str) -> tuple[int, bytes, Any]:
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


def _raw(server: LagServer, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        received = b""
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(65536):
                received += chunk
        except OSError as error:  # The server has refused the request and closed before all of it was written.
            if not isinstance(error, ConnectionError) and error.errno != errno.ENOTCONN:
                raise
        return received


def test_every_path_answers(server: LagServer) -> None:
    assert _get(server, "/burrow/admin")[:2] == (200, b"GOOD")
    assert _get(server, "/burrow/admin/ready")[:2] == (200, b"READY")
    status, body, headers = _get(server, "/v3/kafka/prod/consumer/billing/lag")
    assert (status, headers["Content-Type"]) == (200, "application/json")
    assert json.loads(body)["status"]["totallag"] == 5
    assert json.loads(_get(server, "/lag?group=billing")[1])["rows"][0]["lag_records"] == 5
    assert json.loads(_get(server, "/lag?topic=other")[1])["rows"] == []
    assert json.loads(_get(server, "/history?group=billing")[1])["looks"] == [{"at": 1.0}]
    assert _get(server, "/history?group=billing&since=x")[0] == 400
    assert "/metrics" in json.loads(_get(server, "/")[1])["paths"]
    assert _get(server, "/nothing")[0] == 404


def test_metrics_come_plain_or_compressed_and_are_the_same(server: LagServer) -> None:
    _, plain, headers = _get(server, "/metrics")
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    _, packed, headers = _get(server, "/metrics", **{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"

    def without_age(text: bytes) -> list[bytes]:
        return [line for line in text.splitlines() if not line.startswith(b"ottla_lag_poll_age_seconds{")]

    assert without_age(gzip.decompress(packed)) == without_age(plain)
    assert b"kafka_consumergroup_group_lag{" in plain
    assert b"ottla_lag_poll_age_seconds{" in plain


def test_metrics_are_those_of_the_last_poll(server: LagServer, source: _Source) -> None:
    assert b'group="billing"' in _get(server, "/metrics")[1]
    source.snapshot = Evaluator().observe(sample(1.0, 5, 10, name="other"))
    text = _get(server, "/metrics")[1]
    assert b'group="other"' in text
    assert b'group="billing"' not in text


def test_before_the_first_poll_it_says_so(server: LagServer, source: _Source) -> None:
    source.snapshot = None
    assert _get(server, "/burrow/admin/ready")[:2] == (503, b"STARTING")
    assert _get(server, "/metrics")[0] == 503
    assert _get(server, "/burrow/admin")[0] == 200


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\xfe garbage\r\n\r\n",
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /v3/kafka/%00%ff%zz/../.. HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1000 + b"\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"DELETE /v3/kafka/prod/consumer/billing HTTP/1.1\r\n\r\n",
        b"GET http://[broken HTTP/1.1\r\n\r\n",
        b"GET //[broken HTTP/1.1\r\n\r\n",
        b"GET /lag?group=%f0%28&since=1e999 HTTP/1.1\r\n\r\n",
        b"",
    ],
)
def test_hostile_requests_get_an_error_and_disturb_nobody_else(server: LagServer, data: bytes) -> None:
    answer = _raw(server, data)
    assert b"Traceback" not in answer
    assert b" 200 " not in answer.partition(b"\r\n")[0] or b"lag?group" in data
    assert _get(server, "/burrow/admin")[0] == 200


def test_a_path_that_is_none_gets_an_answer(server: LagServer) -> None:
    assert _raw(server, b"GET http://[broken HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.0 400 ")


def test_a_history_that_cannot_be_read_is_said(source: _Source) -> None:
    def fail(group: str, since: float) -> list[dict[str, Any]]:
        raise HistoryFailed("cannot read the history lag.db: disk I/O error")

    with LagServer("127.0.0.1", 0, latest=source.latest, history=fail) as server:
        status, body, _ = _get(server, "/history?group=billing")
        assert (status, json.loads(body)["message"]) == (503, "the history cannot be read")
        assert _get(server, "/history?group=billing&since=nan")[0] == 400


def test_nothing_can_be_changed(server: LagServer) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v3/kafka", method=method)
        with pytest.raises(urllib.error.HTTPError) as raised:
            urllib.request.urlopen(request, timeout=10)
        with raised.value:
            assert raised.value.code == 501


def test_a_client_that_drips_is_ended_by_its_deadline(server: LagServer) -> None:
    ended = threading.Event()
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:

        def drip() -> None:
            try:
                while not ended.wait(0.02):
                    connection.sendall(b"G")
            except OSError:
                pass

        thread = threading.Thread(target=drip)
        thread.start()
        began = time.monotonic()
        try:
            while connection.recv(1000):
                pass
        except ConnectionError:
            pass
        ended.set()
        thread.join()
        assert time.monotonic() - began < 10


def test_too_many_connections_are_refused_and_room_comes_back(source: _Source) -> None:
    with LagServer("127.0.0.1", 0, latest=source.latest, deadline=3.0, most_connections=4) as server:
        idle = [socket.create_connection(("127.0.0.1", server.port), timeout=30) for _ in range(4)]
        try:
            eventually(lambda: _refused(server), "the fifth is refused", seconds=2.5)
            eventually(lambda: not _refused(server), "there is room again", seconds=20)
        finally:
            for connection in idle:
                connection.close()


def _refused(server: LagServer) -> bool:
    try:
        return _get(server, "/burrow/admin")[0] != 200
    except (OSError, urllib.error.URLError):
        return True


def test_a_port_in_use_is_one_clear_message(server: LagServer, source: _Source) -> None:
    with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1:{server.port}: another program listens there"):
        LagServer("127.0.0.1", server.port, latest=source.latest)
