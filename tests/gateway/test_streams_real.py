"""Streams from real brokers: each record comes once, over any number of connections, and no client hurts another."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.gateway.plain import exchange
from tests.gateway.running import ask, gateway, new_topic, port_of, post
from tests.gateway.streaming import Client, EventSource
from tests.waiting import eventually

from ottla import Producer
from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.gateway.access.gate import Access
from ottla.gateway.access.rates import Rates
from ottla.gateway.access.rules import Rule, Verb
from ottla.gateway.http.limits import Limits
from ottla.gateway.running import Gateway

pytestmark = pytest.mark.broker
_EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def running(kafka: LocalCluster) -> Iterator[Gateway]:
    limits = Limits(heartbeat_seconds=0.2, streams=3, answer_seconds=1.0)
    with gateway(kafka.bootstrap, limits=limits, max_record_bytes=5_000_000) as started:
        yield started
        eventually(lambda: not _streams(started), "no stream is left")
        assert started._reading is not None
        assert not started._reading.pages.readers.memory.used_bytes


def _streams(running: Gateway) -> int:
    return len(running._reading.ends)  # type: ignore[union-attr]


def _path(topic: str, query: str = "", partition: int | None = None) -> str:
    where = "" if partition is None else f"/partitions/{partition}"
    return f"/v1/topics/{topic}{where}/records?{query}"


def _write(running: Gateway, topic: str, *values: Any, **fields: Any) -> None:
    answer = post(running, f"/v1/topics/{topic}/records", {"records": [{"value": value, **fields} for value in values]})
    assert answer.status == 200, answer


def test_each_record_comes_once_however_often_the_connection_is_lost(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "stream-cuts", partitions=3)
    total, rng = 600, random.Random(5)

    def write() -> None:
        with Producer(kafka.bootstrap) as producer:
            for number in range(total):
                producer.send(topic, b"%d" % number, partition=number % 3)
                if number % 30 == 29:
                    producer.flush()

    source, connections = EventSource(), 0
    found: list[Any] = []
    writing = threading.Thread(target=write)
    while len(found) < total:
        headers = {"Last_Event_ID": source.last_id} if source.last_id else {}
        # What a browser sends again and again: only the first time it counts.
        with Client(port_of(running), _path(topic, "from=latest"), _EVENTS | headers) as client:
            connections += 1
            assert client.status == 200
            left = rng.randrange(1, 16_000)
            while left > 0 and len(found) < total:
                data = client.read(min(left, 4096))
                left -= len(data)
                found += [event.data for event in source.feed(data)]
                if not writing.ident and source.last_id:
                    writing.start()
            source.cut()
            client.cut()
    writing.join(30)
    assert connections > 5
    for partition in range(3):
        values = [each["value"] for each in found if each["partition"] == partition]
        assert values == list(range(partition, total, 3))


def test_lines_continue_behind_the_last_cursor(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "stream-lines", partitions=2)
    _write(running, topic, *range(60))
    _write(running, topic, *range(60, 90), partition=1)
    kept: list[Any] = []
    query = "until=latest&max_bytes=50"
    rounds = 0
    while "cursor=None" not in query:
        fresh: list[Any] = []
        stop_after = rounds * 7
        with Client(
            port_of(running), _path(topic, f"stream=true&{query}"), {"Accept": "application/x-ndjson"}
        ) as client:
            assert client.answer.getheader("content-type") == "application/x-ndjson"
            while (line := client.line()) is not None:
                if "next" in line:
                    kept += fresh
                    fresh, query = [], f"max_bytes=50&cursor={line['next']}"
                elif stop_after:
                    fresh.append(line)
                    stop_after -= 1
                else:
                    break  # cut in the middle: what came behind the last cursor comes again
        rounds += 1
    assert rounds > 3
    assert sorted(each["value"] for each in kept) == list(range(90))
    page = ask(port_of(running), "GET", _path(topic)).json["records"]
    assert sorted(page, key=lambda each: each["value"]) == sorted(kept, key=lambda each: each["value"])


def test_a_stream_of_a_partition_begins_and_ends_where_it_should(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "stream-partition", partitions=2)
    _write(running, topic, *range(10), partition=0)
    with Client(port_of(running), _path(topic, "offset=7", 0), _EVENTS) as client:
        source = EventSource()
        assert [event.data["offset"] for event in client.events(source, 3)] == [7, 8, 9]
        _write(running, topic, "later", partition=0)
        assert [event.data["value"] for event in client.events(source, 1)] == ["later"]
    source = EventSource()
    with Client(port_of(running), _path(topic, "offset=7&until=latest", 0), _EVENTS) as client:
        events = client.events(source, 99)
        assert [event.data.get("offset") for event in events] == [7, 8, 9, 10, None]
        assert (events[-1].kind, events[-1].data) == ("end", {"next": None})
    # The cursor of a read of all partitions, with its end, leads through one of them, too.
    with Client(port_of(running), _path(topic, "until=latest&from=latest&stream=true")) as client:
        cursor = client.line()["next"]
    with Client(port_of(running), _path(topic, f"cursor={cursor}", 0), _EVENTS) as client:
        assert [event.kind for event in client.events(EventSource(), 9)] == ["end"]
    # A browser comes again after every end: 204 tells it not to.
    assert ask(port_of(running), "GET", _path(topic, "", 0), **_EVENTS, Last_Event_ID=source.last_id).status == 204


def test_a_stream_without_records_shows_that_it_is_alive(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "stream-beats")
    with Client(port_of(running), _path(topic), _EVENTS) as client:
        source = EventSource()
        headers = {name.lower(): value for name, value in client.answer.getheaders()}
        assert headers["content-type"].startswith("text/event-stream")
        assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-store", "no")
        while len(source.comments) < 3:
            assert source.feed(client.read()) == []
        assert source.retry == 2000
        with Producer(kafka.bootstrap, transactional_id=f"{topic}-1") as producer:
            with suppress(ZeroDivisionError), producer.transaction():
                producer.send(topic, b"aborted")
                producer.flush()
                raise ZeroDivisionError
            first = source.last_id
            while source.last_id == first:  # it moves behind what will never be a record
                assert source.feed(client.read()) == []
            with producer.transaction():
                producer.send(topic, b"committed")
        assert [event.data["text"] for event in client.events(source, 1)] == ["committed"]
    with Client(port_of(running), _path(topic, "stream=true&from=latest")) as client:
        assert list(client.line()) == list(client.line()) == ["next"]
    assert running.ops_address is not None
    page = ask(running.ops_address.port, "GET", "/metrics").body.decode()
    assert 'ottla_gateway_http_streams_ended_total{why="client"}' in page
    assert "ottla_gateway_http_streams " in page
    described = ask(running.ops_address.port, "GET", "/openapi.json").json["paths"]
    reads = described["/v1/topics/{topic}/records"]["get"]
    assert "text/event-stream" in reads["responses"]["200"]["content"]
    assert {"stream", "from", "Last-Event-ID"} <= {each["name"] for each in reads["parameters"]}


def test_a_stream_whose_topic_goes_says_so(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "stream-deleted")
    _write(running, topic, 1)
    with Client(port_of(running), _path(topic), _EVENTS) as events, Admin(kafka.bootstrap) as admin:
        source = EventSource()
        assert [event.data["value"] for event in events.events(source, 1)] == [1]
        admin.delete_topics([topic])
        (failed,) = events.events(source, 9)
        assert (failed.kind, failed.data["error_code"]) == ("error", 40401)
        admin.create_topic(topic)
        eventually(lambda: topic in admin.topic_names(), "it is there again")

        def again() -> int:
            answer = ask(port_of(running), "GET", _path(topic), **_EVENTS, Last_Event_ID=source.last_id)
            return int(answer.json["error_code"])

        eventually(lambda: again() == 41002, "brokers know the new one")


def _last_line(client: Client) -> Any:
    last = None
    while (line := client.line()) is not None:
        last = line
    return last


def test_a_slow_client_is_dropped_and_delays_no_other(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "stream-slow")
    with (
        Client(port_of(running), _path(topic), _EVENTS, buffer_bytes=4096),
        Client(port_of(running), _path(topic), _EVENTS) as quick,
    ):
        source = EventSource()
        for _ in range(8):
            _write(running, topic, *["x" * 30_000] * 30)
        assert len(quick.events(source, 240)) == 240
        memory = running._reading.pages.readers.memory  # type: ignore[union-attr]
        assert memory.used_bytes < 8 << 20
        eventually(lambda: _streams(running) == 1, "the slow one is dropped")
        _write(running, topic, "more")
        assert quick.events(source, 1)[0].data["value"] == "more"
    assert running.counters._limits["answer_seconds"] >= 1


def test_there_are_so_many_streams_and_each_gives_its_place_back(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "stream-many")
    eventually(lambda: not _streams(running), "those of other tests have ended")
    clients = [Client(port_of(running), _path(topic), _EVENTS) for _ in range(3)]
    refused = ask(port_of(running), "GET", _path(topic), **_EVENTS)
    assert (refused.status, refused.json["limit"], refused.headers["retry-after"]) == (503, "streams", "1")
    assert ask(port_of(running), "GET", _path(topic)).status == 200
    # A request behind the stream does not hide that its client goes.
    clients[0].sock.sendall(b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    clients[1].sock.sendall(b"\x00garbage")
    for client in clients:
        client.cut()
    eventually(lambda: not _streams(running), "all have ended")


def test_the_rate_of_a_client_makes_its_stream_wait(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "stream-rate")
    rules = (Rule(("*",), (f"{topic}*",), frozenset(Verb)),)
    access = Access(rates=Rates(bytes=5_000.0), rules=rules)
    limits = Limits(heartbeat_seconds=0.1)
    with Producer(kafka.bootstrap) as producer:
        for number in range(56):
            producer.send(topic, b"x" * 1000 + b"%d" % number)
    with gateway(kafka.bootstrap, access=access, limits=limits, keeps_keys=False) as running:
        began = time.monotonic()
        with Client(port_of(running), _path(topic, "max_bytes=4000"), _EVENTS) as client:
            source = EventSource()
            events = client.events(source, 56)
            assert [event.data["offset"] for event in events] == list(range(56))
            assert time.monotonic() - began > 0.3
            assert "the rate of this client is reached" in source.comments
        assert ask(port_of(running), "GET", _path("another"), **_EVENTS).json["error_code"] == 40301


def test_a_stop_ends_streams_at_once(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "stream-stop")
    with gateway(kafka.bootstrap, keeps_keys=False) as running:
        with (
            Client(port_of(running), _path(topic), _EVENTS) as idle,
            Client(port_of(running), _path(topic, "stream=true")) as lines,
            Client(port_of(running), _path(topic), _EVENTS, buffer_bytes=4096),
        ):
            for _ in range(5):
                _write(running, topic, *["x" * 30_000] * 30)
            source = EventSource()
            assert len(idle.events(source, 150)) == 150
            _line_until(lines, 150)
            began = time.monotonic()
            running.stop()
            assert time.monotonic() - began < 10
            assert idle.events(source, 9) == []  # a clean end: http.client raises for any other
            assert _last_line(lines) is None
        assert not _streams(running)


def _line_until(client: Client, count: int) -> None:
    while count or "next" not in client.line():
        count -= bool(count) and "offset" in client.line()


@pytest.mark.parametrize("partition", [None, 0])
def test_wrong_requests_for_streams_are_refused(kafka: LocalCluster, running: Gateway, partition: int | None) -> None:
    topic = new_topic(kafka.bootstrap, f"stream-wrong-{partition}")
    for query, status, headers in (
        ("stream=yes", 400, {}),
        ("stream=true", 406, {"Accept": "application/json"}),
        ("stream=false", 406, _EVENTS),
        ("max_wait_ms=1", 400, _EVENTS),
        ("max_bytes=99999999", 400, _EVENTS),
        ("until=never", 400, _EVENTS),
        ("cursor=abc", 400, _EVENTS),
        ("", 400, {**_EVENTS, "Last_Event_ID": "abc"}),
        ("", 400, {**_EVENTS, "Last_Event_ID": "\x7f"}),
        ("", 400, {**_EVENTS, "Last_Event_ID": "A" * 15_000}),
    ):
        answer = ask(port_of(running), "GET", _path(topic, query, partition), **headers)
        assert answer.status == status, (query, headers, answer)
    old = b"GET %s HTTP/1.0\r\nAccept: text/event-stream\r\nHost: localhost\r\n\r\n"
    assert exchange(port_of(running), old % _path(topic, "", partition).encode()).startswith(b"HTTP/1.1 505")
    past = ask(port_of(running), "GET", _path(topic, "offset=5", 0), **_EVENTS)
    assert (past.status, past.json["error_code"]) == (416, 41601)
    assert ask(port_of(running), "GET", _path("gateway-none"), **_EVENTS).json["error_code"] == 40401
    assert ask(port_of(running), "GET", _path(topic, "", 7), **_EVENTS).json["error_code"] == 40402
