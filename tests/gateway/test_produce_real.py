"""Writing through the gateway to real brokers: what is answered is what is in the log."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from tests.gateway.plain import receive
from tests.gateway.running import Answered, ask, gateway, new_topic, port_of, post, records_of
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.gateway.access.gate import Access
from ottla.gateway.access.rules import Rule, Verb
from ottla.gateway.http.limits import Limits
from ottla.gateway.running import Gateway

pytestmark = pytest.mark.broker
_NDJSON = "application/x-ndjson"


@pytest.fixture(scope="module")
def running(kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    spool = tmp_path_factory.mktemp("gateway") / "spool"
    compat = frozenset({"kafboy", "flasfka"})
    name = f"real-{spool.parent.name}"
    with gateway(kafka.bootstrap, spool=spool, spool_fsync=False, compat=compat, name=name) as started:
        yield started


def _values(kafka: LocalCluster, topic: str) -> list[Any]:
    return [row["value"] for row in records_of(kafka.bootstrap, topic)]


def test_records_are_where_the_answer_says(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "native", partitions=3)
    url = f"/v1/topics/{topic}/records"
    body = {
        "records": [
            {"value": {"a": 1}, "key": "k", "headers": {"h": "1"}, "timestamp": 1_700_000_000.5, "partition": 2},
            {"text": "plain", "partition": 1},
            {"partition": 2},
        ]
    }
    answer = post(running, url + "?detail=record", body)
    assert answer.status == 200
    there = records_of(kafka.bootstrap, topic)
    found = {(row["partition"], row["offset"]): row for row in there}
    first, second, third = (found[each["partition"], each["offset"]] for each in answer.json["records"])
    assert (first["key"], first["value"], first["timestamp"].timestamp()) == (b"k", b'{"a": 1}', 1_700_000_000.5)
    assert [tuple(pair.values()) for pair in first["headers"]] == [("h", b"1")]
    assert (second["value"], third["value"], third["partition"]) == (b"plain", None, 2)
    lines = b"\n".join(b'{"n":%d}' % number for number in range(500))
    answer = post(running, url, lines, Content_Type=_NDJSON)
    assert answer.status == 200
    assert sum(each["count"] for each in answer.json["ranges"]) == 500
    table = pa.table({"value": [b"arrow"], "partition": pa.array([0], pa.int32())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    body_bytes = sink.getvalue().to_pybytes()
    assert post(running, url, body_bytes, Content_Type="application/vnd.apache.arrow.stream").status == 200
    assert post(running, url + "?key=k", b"\x00\xff", Content_Type="application/octet-stream").status == 200
    assert {b"arrow", b"\x00\xff", b'{"n":499}'} <= set(_values(kafka, topic))


def test_acknowledgements_wait_for_what_they_say(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "acks")
    url = f"/v1/topics/{topic}/records"
    assert post(running, url + "?ack=none", {"n": 1}).status == 204
    answer = post(running, url + "?ack=spool", {"n": 2})
    assert (answer.status, answer.json) == (202, {"records": 1, "ack": "spool"})
    assert post(running, url + "?ack=all", {"n": 3}).status == 200
    eventually(lambda: len(_values(kafka, topic)) == 3, "all of them arrive")
    assert post(running, url + "?ack=some", {}).status == 400


def test_what_fails_shows_in_the_status(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "failing", max_message_bytes="2000")
    url = f"/v1/topics/{topic}/records"
    some = post(running, url, {"records": [{"value": 1}, {"value": 2, "partition": 7}]})
    assert (some.status, [each["index"] for each in some.json["failed"]]) == (207, [1])
    assert post(running, url, {"records": [{"value": 2, "partition": 7}]}).status == 422
    for path in (url, url + "?ack=spool"):
        large = post(running, path, b"x" * 1_500_000, Content_Type="text/plain")
        assert (large.status, large.json["limit"]) == (413, "record_bytes")
    refused = post(running, url, b"x" * 5_000, Content_Type="text/plain")
    assert (refused.status, refused.json["limit"]) == (413, "max.message.bytes")
    started = time.monotonic()
    missing = post(running, "/v1/topics/gateway-no-such-topic/records", {})
    assert (missing.status, missing.json["error_code"]) == (404, 40401)
    assert time.monotonic() - started < 3
    assert post(running, "/v1/topics/a%20b/records", {}).status == 422


def test_a_new_topic_is_known_at_once(kafka: LocalCluster, running: Gateway) -> None:
    assert post(running, f"/v1/topics/gateway-later-{id(running)}/records", {}).status == 404
    topic = new_topic(kafka.bootstrap, "new")
    eventually(lambda: post(running, f"/v1/topics/{topic}/records", {}).status == 200, "it is known", seconds=5)


def test_topics_are_described(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "described", partitions=2)
    post(running, f"/v1/topics/{topic}/records", {"records": [{"value": 1, "partition": 1}]})
    port = port_of(running)
    assert topic in ask(port, "GET", "/v1/topics").json["topics"]
    assert ask(port, "GET", f"/v1/topics/{topic}").json["partitions"] == [
        {"partition": 0, "begin_offset": 0, "end_offset": 0},
        {"partition": 1, "begin_offset": 0, "end_offset": 1},
    ]
    assert ask(port, "GET", "/v1/topics/gateway-none").status == 404
    assert topic in ask(port, "GET", "/topics").json
    assert [each["partition"] for each in ask(port, "GET", f"/topics/{topic}/partitions").json] == [0, 1]
    described = ask(port, "GET", f"/topics/{topic}").json
    assert (described["name"], described["configs"]["cleanup.policy"]) == (topic, "delete")
    assert ask(port, "GET", f"/topics/{topic}/partitions/1").json["partition"] == 1
    offsets = ask(port, "GET", f"/topics/{topic}/partitions/1/offsets")
    assert offsets.json == {"beginning_offset": 0, "end_offset": 1}
    assert ask(port, "GET", f"/topics/{topic}/partitions/9").json["error_code"] == 40402
    assert sorted(ask(port, "GET", "/brokers").json["brokers"]) == [1, 2, 3]
    (cluster,) = ask(port, "GET", "/v3/clusters").json["data"]
    v3 = f"/v3/clusters/{cluster['cluster_id']}/topics"
    assert topic in [each["topic_name"] for each in ask(port, "GET", v3).json["data"]]
    assert ask(port, "GET", f"{v3}/{topic}").json["partitions_count"] == 2
    assert ask(port, "GET", "/v3/clusters/other/topics").status == 404


def _curl(running: Gateway, path: str, *arguments: str) -> Answered:
    """Run curl as the documentation of the other projects writes it."""
    url = f"http://localhost:{port_of(running)}{path}"
    command = ["curl", "-s", "-4", "-w", "\n%{http_code}", *arguments, url]
    output = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
    body, _, status = output.rpartition(b"\n")
    return Answered(int(status), body, {})


_JSON2, _BINARY2 = "application/vnd.kafka.json.v2+json", "application/vnd.kafka.binary.v2+json"


@pytest.mark.parametrize(
    ("content_type", "data", "key", "value"),
    [
        (_JSON2, '{"records":[{"value":{"foo":"bar"}}]}', None, b'{"foo":"bar"}'),
        (_JSON2, '{"records":[{"key":"alice","value":{"count":0}}]}', b'"alice"', b'{"count":0}'),
        (_BINARY2, '{"records":[{"key":"a2V5","value":"Y29uZmx1ZW50"}]}', b"key", b"confluent"),
        ("application/vnd.kafka.text.v2+json", '{"records":[{"key":"k","value":"text"}]}', b"k", b"text"),
        ("application/json", '{"records":[{"value":{"free":"radius"}}]}', None, b'{"free":"radius"}'),
        ("application/vnd.kafka.v2+json", '{"records":[{"value":"S2Fma2E="}]}', None, b"Kafka"),
    ],
)
def test_curl_lines_for_v2_work(
    kafka: LocalCluster, running: Gateway, content_type: str, data: str, key: bytes | None, value: bytes
) -> None:
    topic = new_topic(kafka.bootstrap, f"curl-{abs(hash((content_type, data)))}")
    accept = "Accept: application/vnd.kafka.v2+json"
    answer = _curl(
        running, f"/topics/{topic}", "-X", "POST", "-H", f"Content-Type: {content_type}", "-H", accept, "--data", data
    )
    assert (answer.status, answer.json["offsets"]) == (
        200,
        [{"partition": 0, "offset": 0, "error_code": None, "error": None}],
    )
    (record,) = records_of(kafka.bootstrap, topic)
    assert (record["key"], record["value"]) == (key, value)


def test_v2_has_what_its_relatives_have(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "v2", partitions=2)
    record = {"value": 1, "timestamp": 1_700_000_000_123, "headers": [{"key": "h", "value": "MQ=="}]}
    assert post(running, f"/topics/{topic}/partitions/1", {"records": [record]}).status == 200
    assert post(running, f"/topics/{topic}?async=true", {"records": [{"value": 2}]}).status == 204
    eventually(lambda: len(_values(kafka, topic)) == 2, "both arrive")
    found = next(row for row in records_of(kafka.bootstrap, topic) if row["value"] == b"1")
    assert (found["partition"], found["timestamp"].timestamp()) == (1, 1_700_000_000.123)
    assert [tuple(pair.values()) for pair in found["headers"]] == [("h", b"1")]
    url = f"/topics/{topic}"
    some = post(running, url, {"records": [{"value": 1}, {"value": 1, "partition": 9}]})
    assert (some.status, some.headers["ottla-failed-records"]) == (200, "1")
    assert [each["error_code"] for each in some.json["offsets"]] == [None, 50002]
    assert post(running, url, {"records": [{"value": 1, "partition": 9}]}).status == 422
    assert post(running, url, {"records": []}).json["error_code"] == 42206
    missing = post(running, "/topics/gateway-none", {"records": [{"value": 1}]})
    assert (missing.status, missing.headers["content-type"]) == (404, "application/vnd.kafka.v2+json")
    assert post(running, url, {"records": [{}]}, Content_Type="application/vnd.kafka.avro.v2+json").status == 415


def test_v3_answers_while_records_come(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "v3")
    port = port_of(running)
    (cluster,) = ask(port, "GET", "/v3/clusters").json["data"]
    url = f"/v3/clusters/{cluster['cluster_id']}/topics/{topic}/records"
    with socket.create_connection(("localhost", port), timeout=30) as sock:
        head = f"POST {url} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        sock.sendall((head + "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n").encode())
        seen = b""
        for number in range(5):
            record = b'{"value":{"type":"JSON","data":%d}}' % number
            sock.sendall(b"%x\r\n%s\r\n" % (len(record), record))
            while seen.count(b'"error_code":200') <= number:  # its receipt, before the next one is sent
                part = sock.recv(1 << 16)
                assert part
                seen += part
        sock.sendall(b"9\r\nnonsense!\r\n0\r\n\r\n")
        seen += receive(sock)
    assert b'"error_code":400' in seen
    assert seen.endswith(b"0\r\n\r\n")
    assert _values(kafka, topic) == [b"0", b"1", b"2", b"3", b"4"]
    body = '{"value":{"type":"STRING","data":"a"}}{"value":{"type":"BINARY","data":"AAE="}}'
    answer = _curl(running, url, "-X", "POST", "-H", "Content-Type: application/json", "-d", body)
    receipts = [json.loads(line) for line in answer.body.splitlines()]
    assert [(each["offset"], each["value"]["size"]) for each in receipts] == [(5, 1), (6, 2)]
    entries = [{"id": "1", "value": {"type": "JSON", "data": 1}}, {"id": "2", "value": {"type": "AVRO", "data": 1}}]
    batch = post(running, url + ":batch", {"entries": entries})
    assert batch.status == 207
    assert [each["id"] for each in batch.json["successes"]] == ["1"]
    assert [each["id"] for each in batch.json["failures"]] == ["2"]


def test_programs_of_kafboy_and_flasfka_go_on(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "compat")
    assert _curl(running, f"/sync/{topic}", "-X", "POST", "-d", "a=1&b=x+y").json == [{"ok": True}, {"ok": True}]
    assert _curl(running, f"/async/{topic}", "-X", "POST", "-d", "a=2").json == {"ok": 1}
    assert _curl(running, f"/batch/sync/{topic}", "-X", "POST", "-d", "a=3").json == [{"ok": True}]
    assert _curl(running, f"/sync/{topic}", "-X", "POST").json == {"error": "no_body"}
    assert _curl(running, f"/sync/{topic}").status == 400
    assert _curl(running, "/disco").status == 200
    assert _curl(running, f"/{topic}/", "-X", "POST", "-d", '{"messages":["m"]}').status == 204
    assert _curl(running, f"/{topic}/key/", "-X", "POST", "-d", '{"messages":["n"]}').status == 204
    assert _curl(running, f"/{topic}/", "-X", "POST", "-d", "nonsense").status == 400
    eventually(lambda: len(_values(kafka, topic)) == 6, "all arrive")
    rows = {(row["key"], row["value"]) for row in records_of(kafka.bootstrap, topic)}
    assert rows == {(b"a", b"1"), (b"b", b"x y"), (b"a", b"2"), (b"a", b"3"), (None, b"m"), (b"key", b"n")}


def test_a_repeated_key_writes_once(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "keys")
    url = f"/v1/topics/{topic}/records"
    answers: list[Answered] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(post(running, url, {"n": n}, Idempotency_Key=f"key {n}")))
        for n in [*range(10)] * 3
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [answer.status for answer in answers] == [200] * 30
    eventually(lambda: len(_values(kafka, topic)) >= 10, "all are visible")
    assert sorted(_values(kafka, topic)) == [b'{"n": %d}' % n for n in range(10)]
    assert len({answer.body for answer in answers}) == 10
    other = post(running, url, {"n": 1}, Idempotency_Key="key 2")
    assert (other.status, other.json["error_code"]) == (422, 42211)
    refused = post(running, url, {"records": [{"value": 1}, {"value": 1, "partition": 9}]}, Idempotency_Key="refused")
    assert refused.status == 422
    assert post(running, url, {"n": 99}, Idempotency_Key="refused").status == 200  # nothing was written under it
    assert post(running, url + "?ack=none", {}, Idempotency_Key="x").status == 400
    assert post(running, url, {}, Idempotency_Key="x" * 300).status == 400
    v2 = [post(running, f"/topics/{topic}", {"records": [{"value": 7}]}, Idempotency_Key="v2").body for _ in range(2)]
    assert v2[0] == v2[1]
    # Readers of committed data see a transaction some milliseconds after its commit was answered.
    eventually(lambda: len(_values(kafka, topic)) == 12, "the last ones are visible")
    assert sorted(_values(kafka, topic)).count(b"7") == 1


def test_rules_hold_for_each_api(kafka: LocalCluster) -> None:
    open_topic, closed = new_topic(kafka.bootstrap, "rules-open"), new_topic(kafka.bootstrap, "rules-closed")
    access = Access(rules=(Rule(("anonymous",), (open_topic,), frozenset({Verb.PRODUCE})),))
    with gateway(kafka.bootstrap, access=access, keeps_keys=False, compat=frozenset({"kafboy", "flasfka"})) as running:
        (cluster,) = ask(port_of(running), "GET", "/v3/clusters").json["data"]
        v3 = f"/v3/clusters/{cluster['cluster_id']}/topics"
        for topic, allowed in ((open_topic, True), (closed, False)):
            found = [
                post(running, f"/v1/topics/{topic}/records", {}).status,
                post(running, f"/topics/{topic}", {"records": [{}]}).status,
                post(running, f"/topics/{topic}/partitions/0", {"records": [{}]}).status,
                post(running, f"{v3}/{topic}/records", {}).status,
                post(running, f"{v3}/{topic}/records:batch", {"entries": [{"id": "1"}]}).status,
                post(running, f"/sync/{topic}", {"a": 1}).status,
                post(running, f"/batch/async/{topic}", {"a": 1}).status,
                post(running, f"/{topic}/", {"messages": ["a"]}).status,
            ]
            assert all((status != 403) is allowed for status in found), found
            for path in (f"/v1/topics/{topic}", f"/topics/{topic}", f"/topics/{topic}/partitions", f"{v3}/{topic}"):
                assert ask(port_of(running), "GET", path).status == 403
        assert ask(port_of(running), "GET", "/v1/topics").json == {"topics": []}
        assert post(running, f"/v1/topics/{open_topic}/records", {}, Idempotency_Key="k").status == 501


def test_the_second_listener_says_how_it_goes(kafka: LocalCluster, running: Gateway) -> None:
    assert running.ops_address is not None
    port = running.ops_address.port
    topic = new_topic(kafka.bootstrap, "ops")
    assert post(running, f"/v1/topics/{topic}/records", {}).status == 200
    assert ask(port, "GET", "/health").status == 200
    assert ask(port, "GET", "/ready").json == {"status": "ready", "missing": {}}
    metrics = ask(port, "GET", "/metrics").body.decode()
    assert f'ottla_gateway_http_records_total{{topic="{topic}"}} 1' in metrics
    assert "ottla_flush_acknowledged_total" in metrics
    page = ask(port, "GET", "/openapi.json").json
    assert {"/v1/topics/{topic}/records", "/topics/{topic}", "/sync/{topic}"} <= page["paths"].keys()
    assert ask(port_of(running), "GET", "/metrics").status == 404


def test_more_than_memory_and_time_allow_is_refused_and_says_so(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "memory")
    limits = Limits(ack_seconds=5)
    with gateway("127.0.0.1:9", keeps_keys=False, limits=limits, buffer_bytes=1 << 20) as away:
        answer = post(away, f"/v1/topics/{topic}/records", {})
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert away.ops_address is not None
        assert ask(away.ops_address.port, "GET", "/ready").status == 503
        assert ask(away.ops_address.port, "GET", "/health").status == 200
