"""Reading through the gateway from real brokers: what is in the log comes, once, or the answer says what does not."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import confluent_kafka
import confluent_kafka.admin
import pyarrow as pa
import pytest
from tests.gateway.running import Answered, ask, gateway, new_topic, port_of, post
from tests.waiting import eventually

from ottla import Producer
from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.gateway.access.gate import Access
from ottla.gateway.access.rates import Rates
from ottla.gateway.access.rules import Rule, Verb
from ottla.gateway.http.limits import Limits
from ottla.gateway.reading.places import Cursor
from ottla.gateway.running import Gateway

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def running(kafka: LocalCluster) -> Iterator[Gateway]:
    limits = Limits(read_most_bytes=4 << 20)
    with gateway(kafka.bootstrap, limits=limits, max_record_bytes=5_000_000) as started:
        yield started


def _read(running: Gateway, topic: str, query: str = "", *, partition: int | None = 0, **headers: str) -> Answered:
    where = "" if partition is None else f"/partitions/{partition}"
    return ask(port_of(running), "GET", f"/v1/topics/{topic}{where}/records?{query}", **headers)


def _write(running: Gateway, topic: str, *records: dict[str, Any]) -> None:
    answer = post(running, f"/v1/topics/{topic}/records", {"records": list(records)})
    assert answer.status == 200, answer


def test_every_byte_of_a_record_comes(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "read-bytes")
    written: list[dict[str, Any]] = [
        {"value": {"a": [1, "ü"]}, "key": "k", "headers": [["h", "1"], ["h", None]], "timestamp": 1_700_000_000.5},
        {"text": "plain text", "key_base64": "/w=="},
        {"base64": "/wA="},
        {"text": "null"},
        {"value": None},
        {"text": '{"two":\n"lines"}', "headers_base64": [["b", "/w=="]]},
        {"text": '"\\ud800"'},
    ]
    _write(running, topic, *written)
    answer = _read(running, topic)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    records = answer.json["records"]
    assert [each["offset"] for each in records] == list(range(len(written)))
    assert records[0]["timestamp"] == 1_700_000_000.5
    for found, given in zip(records, written, strict=True):
        assert {name: found[name] for name in given} == given
    assert answer.json["next_offset"] == answer.json["end_offset"] == len(written)
    lines = _read(running, topic, Accept="application/x-ndjson")
    assert [json.loads(line) for line in lines.body.splitlines()] == records
    assert lines.headers["ottla-next"] == answer.json["next"]
    arrow = _read(running, topic, Accept="application/vnd.apache.arrow.stream")
    table = pa.ipc.open_stream(io.BytesIO(arrow.body)).read_all()
    assert table.column("value").to_pylist()[:3] == [b'{"a": [1, "\\u00fc"]}', b"plain text", b"\xff\x00"]
    assert [tuple(pair.values()) for pair in table.column("headers").to_pylist()[0]] == [("h", b"1"), ("h", None)]
    shown = _read(running, topic, "values=base64").json["records"]
    assert shown[1]["base64"] == "cGxhaW4gdGV4dA=="
    assert _read(running, topic, Accept="image/png").status == 406


def test_cursors_lead_through_a_partition_and_a_topic(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "read-pages", partitions=3)
    _write(running, topic, *({"value": number, "partition": number % 3} for number in range(300)))
    found: list[int] = []
    query = "max_records=7"
    while True:
        page = _read(running, topic, query, partition=1).json
        found += [each["value"] for each in page["records"]]
        if not page["records"]:
            break
        assert len(page["records"]) <= 7
        query = f"max_records=7&cursor={page['next']}"
    assert found == list(range(1, 300, 3))
    values: list[int] = []
    query = "until=latest&max_bytes=100"
    while True:
        page = _read(running, topic, query, partition=None).json
        values += [each["value"] for each in page["records"]]
        if page["next"] is None:
            break
        query = f"max_bytes=100&cursor={page['next']}"
    assert sorted(values) == list(range(300))
    link = _read(running, topic, "max_records=1", partition=None).headers["link"]
    following = ask(port_of(running), "GET", link.partition(">")[0].removeprefix("<"))
    assert following.status == 200


def test_places_are_offsets_and_times(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "read-places")
    _write(running, topic, *({"value": number, "timestamp": 1_700_000_000 + number} for number in range(10)))

    def first(query: str) -> Any:
        records = _read(running, topic, query).json["records"]
        return records[0]["value"] if records else None

    assert first("offset=4") == 4
    assert first("offset=earliest") == 0
    assert first("offset=latest") is None
    assert first("offset=10") is None
    assert first("timestamp=1700000003") == 3
    assert first("timestamp=2023-11-14T22:13:27Z") == 7
    assert first("timestamp=2100-01-01T00:00:00Z") is None
    page = _read(running, topic, "from=1700000002&until=1700000005", partition=None).json
    assert [each["value"] for each in page["records"]] == [2, 3, 4]
    assert page["next"] is None


def test_a_read_waits_for_a_record_and_no_longer(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "read-wait", partitions=2)
    _write(running, topic, {"value": 0, "partition": 0})
    answers: list[tuple[Answered, float]] = []

    def wait(query: str, partition: int | None) -> None:
        began = time.monotonic()
        answers.append((_read(running, topic, query, partition=partition), time.monotonic() - began))

    for query, partition in (("offset=1&max_wait_ms=20000", 0), ("from=latest&max_wait_ms=20000", None)):
        thread = threading.Thread(target=wait, args=(query, partition))
        thread.start()
        eventually(lambda: any(running._reading.pages.news._waiting), "it waits")  # type: ignore[union-attr]
        _write(running, topic, {"value": 1, "partition": 0})
        thread.join(30)
        answer, seconds = answers.pop()
        assert [each["value"] for each in answer.json["records"]] == [1]
        assert seconds < 19
    wait("offset=3&max_wait_ms=300", 0)
    assert answers[0][0].json["records"] == []
    assert 0.25 < answers[0][1] < 15


def test_a_large_record_comes_whatever_the_size(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "read-large", max_message_bytes="6000000")
    for value in ("x" * 3_000_000, "y" * 10):
        answer = post(running, f"/v1/topics/{topic}/records", value.encode(), Content_Type="text/plain")
        assert answer.status == 200, answer
    page = _read(running, topic, "max_bytes=1000").json
    assert [len(each["text"]) for each in page["records"]] == [3_000_000]
    assert [each["text"] for each in _read(running, topic, f"cursor={page['next']}").json["records"]] == ["y" * 10]


def test_what_is_gone_is_said(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "read-gone")
    _write(running, topic, *({"value": number} for number in range(10)))
    cursor = _read(running, topic, "max_records=2").json["next"]
    of_all = _read(running, topic, "max_records=2", partition=None).json["next"]
    delete_before(kafka, topic, 5)
    with Admin(kafka.bootstrap) as admin:
        for answer in (
            _read(running, topic, f"cursor={cursor}"),
            _read(running, topic, "offset=2"),
            _read(running, topic, f"cursor={of_all}", partition=None),
        ):
            assert (answer.status, answer.json["error_code"]) == (410, 41001), answer
            assert answer.json["lost"] == {"start": 2, "stop": 5}
            assert (answer.json["begin_offset"], answer.json["end_offset"]) == (5, 10)
        past = _read(running, topic, "offset=11")
        assert (past.status, past.json["error_code"], past.json["end_offset"]) == (416, 41601, 10)
        cursor = _read(running, topic, "offset=6&max_records=1").json["next"]
        admin.delete_topics([topic])
        eventually(lambda: topic not in admin.topic_names(), "it is deleted")
        admin.create_topic(topic)
        _write_soon(running, topic)
        replaced = _read(running, topic, f"cursor={cursor}")
        assert (replaced.status, replaced.json["error_code"]) == (410, 41002), replaced
        assert _read(running, topic, f"cursor={of_all}", partition=None).json["error_code"] == 41002
        assert len(_read(running, topic, "offset=0").json["records"]) == 10


def delete_before(kafka: LocalCluster, topic: str, offset: int) -> None:
    """Delete the first records of partition 0, as retention does."""
    client = confluent_kafka.admin.AdminClient({"bootstrap.servers": kafka.bootstrap})
    for done in client.delete_records([confluent_kafka.TopicPartition(topic, 0, offset)]).values():
        done.result(60)


def _write_soon(running: Gateway, topic: str) -> None:
    body = {"records": [{"value": number} for number in range(10)]}
    eventually(lambda: post(running, f"/v1/topics/{topic}/records", body).status == 200, "it can be written again")


def test_committed_records_are_read_unless_told_otherwise(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "read-transactions")
    with Producer(kafka.bootstrap, transactional_id=f"{topic}-1") as producer:
        with suppress(ZeroDivisionError), producer.transaction():
            producer.send(topic, b"aborted")
            producer.flush()
            raise ZeroDivisionError
        with producer.transaction():
            producer.send(topic, b"committed")
        texts = [each["text"] for each in _read(running, topic).json["records"]]
        assert texts == ["committed"]
        everything = _read(running, topic, "isolation=read_uncommitted").json["records"]
        assert [each["text"] for each in everything] == ["aborted", "committed"]


def test_wrong_parameters_are_refused(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "read-wrong")
    for query in WRONG:
        answer = _read(running, topic, query)
        assert (answer.status, answer.json["error_code"]) == (400, 400), (query, answer)
    for query in ("until=never", "from=yesterday", "cursor=abc", "offset=1", "from=latest&cursor=a"):
        assert _read(running, topic, query, partition=None).status == 400, query
    assert _read(running, topic, "offset=9223372036854775806").json["error_code"] == 41601
    assert _read(running, topic, partition=1).json["error_code"] == 40402
    assert ask(port_of(running), "GET", f"/v1/topics/{topic}/partitions/x/records").json["error_code"] == 40402
    assert _read(running, "gateway-no-such-topic").json["error_code"] == 40401


WRONG = [
    "offset=-1",
    "offset=1.5",
    "offset=",
    "offset=99999999999999999999",
    "offset=9223372036854775807",
    "offset=%D9%A1",
    "offset=1&timestamp=1",
    "offset=1&offset=2",
    "timestamp=nan",
    "timestamp=-1",
    "timestamp=1e300",
    "timestamp=2026-01-01T00:00:00",
    "max_bytes=0",
    "max_bytes=1000000000000",
    "max_bytes=1_000",
    "max_records=0",
    "max_records=99999999",
    "max_wait_ms=-1",
    "max_wait_ms=31000",
    "max_wait_ms=1e3",
    "isolation=none",
    "values=xml",
    "cursor=",
    "cursor=AAAA",
    "cursor=" + "A" * 15_000,
    "cursor=%00%ff",
    "cursor=..%2f..%2fetc",
    "nonesuch=1",
]


def test_rules_and_rates_apply(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "read-rules")
    rules = (
        Rule(("*",), (topic,), frozenset({Verb.PRODUCE})),
        Rule(("*",), ("gateway-read-other*",), frozenset({Verb.CONSUME})),
    )
    with gateway(kafka.bootstrap, access=Access(rules=rules)) as running:
        assert _read(running, topic).json["error_code"] == 40301
        assert _read(running, topic, partition=None).status == 403
    with gateway(kafka.bootstrap, access=Access(rates=Rates(bytes=100.0))) as running:
        _write(running, topic, {"text": "x" * 900})
        assert _read(running, topic).status == 200
        refused = _read(running, topic)
        assert (refused.status, refused.json["limit"]) == (429, "bytes_per_second")
        assert int(refused.headers["retry-after"]) > 1


def test_a_cursor_leads_to_no_other_topic_than_the_one_that_was_asked_for(kafka: LocalCluster) -> None:
    open_topic, closed = new_topic(kafka.bootstrap, "read-open"), new_topic(kafka.bootstrap, "read-closed")
    with Producer(kafka.bootstrap) as producer, Admin(kafka.bootstrap) as admin:
        producer.send(closed, b"not for everybody").result()
        topic_id = admin.cluster.metadata([closed]).topics[closed].id
    cursor = Cursor(topic_id, {0: 0}, {}).text()
    rules = (Rule(("*",), (open_topic,), frozenset({Verb.CONSUME})),)
    with gateway(kafka.bootstrap, access=Access(rules=rules)) as running:
        for query in ("", "&stream=true", "&max_wait_ms=100"):
            for partition in (0, None):
                answer = _read(running, open_topic, f"cursor={cursor}{query}", partition=partition)
                assert (answer.status, answer.json["error_code"]) == (410, 41002), (query, partition)


def test_a_slow_client_and_a_full_memory_hurt_no_other(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "read-slow", max_message_bytes="6000000")
    other = new_topic(kafka.bootstrap, "read-slow-other")
    limits = Limits(read_memory_bytes=8 << 20, answer_seconds=2.0)
    with gateway(kafka.bootstrap, limits=limits, max_record_bytes=5_000_000) as running:
        for _ in range(6):
            post(running, f"/v1/topics/{topic}/records", b"x" * 4_000_000, Content_Type="text/plain")
        _write(running, other, {"value": 1})
        import socket

        slow = []
        for _ in range(8):
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(("127.0.0.1", port_of(running)))
            path = f"/v1/topics/{topic}/partitions/0/records?offset=0&max_bytes=100"
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            slow.append(sock)
        memory = running._reading.pages.readers.memory  # type: ignore[union-attr]
        eventually(lambda: memory.used_bytes > 4_000_000, "answers wait for their clients")
        assert _read(running, other, "max_bytes=1000").json["records"][0]["value"] == 1
        eventually(lambda: memory.used_bytes == 0, "slow clients are dropped, and their memory is free")
        for sock in slow:
            sock.close()
