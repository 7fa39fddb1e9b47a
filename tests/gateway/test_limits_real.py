"""Limits that records hit are named beside each record, and counted; streams of records end in time."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from tests.gateway.plain import receive
from tests.gateway.running import ask, gateway, new_topic, port_of, post
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.gateway.http.limits import Limits
from ottla.gateway.running import Gateway

pytestmark = pytest.mark.broker
_LARGE = "x" * 5_000
"""More than the topics here accept."""


def _hits(running: Gateway, limit: str) -> int:
    assert running.ops_address is not None
    text = ask(running.ops_address.port, "GET", "/metrics").body.decode()
    lines = [line for line in text.splitlines() if line.startswith("ottla_gateway_http_limits_hit_total")]
    return sum(int(line.split()[1]) for line in lines if f'limit="{limit}"' in line)


def _v3(running: Gateway, topic: str) -> str:
    (cluster,) = ask(port_of(running), "GET", "/v3/clusters").json["data"]
    return f"/v3/clusters/{cluster['cluster_id']}/topics/{topic}/records"


def _native(running: Gateway, topic: str) -> list[Any]:
    answer = post(
        running,
        f"/v1/topics/{topic}/records",
        {"records": [{"value": 1, "partition": 0}, {"value": _LARGE, "partition": 1}]},
    )
    assert (answer.status, answer.json["limit"]) == (207, "max.message.bytes")
    return [each for each in answer.json["failed"] if each["index"] == 1]


def _v2(running: Gateway, topic: str) -> list[Any]:
    answer = post(
        running, f"/topics/{topic}", {"records": [{"value": 1, "partition": 0}, {"value": _LARGE, "partition": 1}]}
    )
    assert "limit" not in answer.json["offsets"][0]
    return [each for each in answer.json["offsets"] if each["error_code"] is not None]


def _stream(running: Gateway, topic: str) -> list[Any]:
    records = [{"partition_id": at, "value": {"type": "JSON", "data": data}} for at, data in enumerate((1, _LARGE))]
    answer = post(running, _v3(running, topic), "".join(map(json.dumps, records)).encode())
    return [each for each in map(json.loads, answer.body.splitlines()) if each["error_code"] != 200]


def _batch(running: Gateway, topic: str) -> list[Any]:
    values = [{"type": "JSON", "data": data} for data in (1, _LARGE)]
    entries = [{"id": str(at), "partition_id": at, "value": value} for at, value in enumerate(values)]
    failures: list[Any] = post(running, _v3(running, topic) + ":batch", {"entries": entries}).json["failures"]
    return failures


@pytest.mark.parametrize("write", [_native, _v2, _stream, _batch])
def test_a_record_that_hits_a_limit_says_which_and_is_counted(
    kafka: LocalCluster, write: Callable[[Gateway, str], list[Any]]
) -> None:
    topic = new_topic(
        kafka.bootstrap, f"limits{write.__name__.replace('_', '-')}", partitions=2, max_message_bytes="2000"
    )
    with gateway(kafka.bootstrap, keeps_keys=False) as running:
        failed = write(running, topic)
        assert [each["limit"] for each in failed] == ["max.message.bytes"]
        assert _hits(running, "max.message.bytes") == 1


def test_a_limit_that_is_hit_without_waiting_is_counted(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "limits-none")
    with gateway(kafka.bootstrap, keeps_keys=False) as running:
        assert post(running, f"/v1/topics/{topic}/records?ack=none", "x" * 1_500_000).status == 204
        eventually(lambda: _hits(running, "record_bytes") == 1, "it is counted")


class _Stream:
    """A stream of records of v3 that stays open."""

    def __init__(self, running: Gateway, topic: str) -> None:
        self.sock = socket.create_connection(("localhost", port_of(running)), timeout=30)
        head = f"POST {_v3(running, topic)} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self.sock.sendall((head + "Transfer-Encoding: chunked\r\n\r\n").encode())

    def send(self, piece: bytes) -> None:
        self.sock.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))

    def drip(self, piece: bytes) -> bytes:
        """Send the piece again and again until the other side has closed; return what it answered."""
        self.sock.settimeout(0.05)
        seen = b""
        while True:
            try:
                self.send(piece)
                part = self.sock.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                return seen
            if not part:
                return seen
            seen += part


@pytest.mark.parametrize("piece", [b" ", b"x"])
def test_a_stream_that_brings_no_whole_record_ends_however_often_bytes_come(kafka: LocalCluster, piece: bytes) -> None:
    topic = new_topic(kafka.bootstrap, f"stalled-{piece.hex()}")
    with gateway(kafka.bootstrap, keeps_keys=False, limits=Limits(body_seconds=0.5)) as running:
        stream = _Stream(running, topic)
        with stream.sock:
            stream.send(b'{"value":{"type":"JSON","data":1}}{"value":{"type":"JSON","data":"')
            seen = stream.drip(piece)
        assert seen.count(b'"error_code":200') == 1
        assert b'"error_code":408' in seen
        assert b'"limit":"body_seconds"' in seen
        assert _hits(running, "body_seconds") >= 1


def test_a_stream_has_a_longest_life_and_pauses_between_records_are_free(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "lifetime")
    limits = Limits(body_seconds=0.6, write_stream_seconds=1.5)
    with gateway(kafka.bootstrap, keeps_keys=False, limits=limits) as running:
        stream = _Stream(running, topic)
        with stream.sock:
            seen = stream.drip(b'{"value":{"type":"JSON","data":1}}')
        assert seen.count(b'"error_code":200') > 1
        assert b'"limit":"write_stream_seconds"' in seen
        assert b'"limit":"body_seconds"' not in seen


def test_a_stream_that_says_nothing_ends(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "silent")
    with gateway(kafka.bootstrap, keeps_keys=False, limits=Limits(body_seconds=0.5)) as running:
        stream = _Stream(running, topic)
        with stream.sock:
            assert b'"limit":"body_seconds"' in receive(stream.sock)
