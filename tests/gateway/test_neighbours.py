"""What one client sends wrong is refused, and what others send at the same time arrives."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.running import ask, gateway, new_topic, port_of, post, records_of
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.gateway.datagram.format import Message, write
from ottla.gateway.datagram.settings import DatagramSettings
from ottla.gateway.running import Gateway
from ottla.gateway.syslog.settings import SyslogSettings

pytestmark = pytest.mark.broker
_DAYS = 3 * 86_400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("neighbours")


@pytest.fixture(scope="module")
def running(kafka: LocalCluster, folder: Path) -> Iterator[Gateway]:
    # The linger makes one batch of what clients send at the same time.
    with gateway(
        kafka.bootstrap,
        spool=folder / "spool",
        linger=0.1,
        name="neighbours",
        keys_topic="neighbours-keys",
        socket=DatagramSettings(stream_path=folder / "stream", linger=0.1),
        compat=frozenset({"kafboy", "flasfka"}),
    ) as started:
        yield started


def _statuses(running: Gateway, topic: str, records: list[dict[str, Any]]) -> Counter[tuple[str, int]]:
    """Send each record from a client of its own, at the same time; return the statuses by the record's value."""
    found: Counter[tuple[str, int]] = Counter()

    def send(record: dict[str, Any]) -> None:
        found[record["value"], post(running, f"/v1/topics/{topic}/records", {"records": [record]}).status] += 1

    threads = [threading.Thread(target=send, args=(record,)) for record in records]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_a_time_that_brokers_refuse_takes_no_records_of_others_with_it(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "ahead")
    bad = {"value": "bad", "timestamp": time.time() + _DAYS}
    good = {"value": "good"}
    assert _statuses(running, topic, [good, good, bad, good, bad, good]) == {("good", 200): 4, ("bad", 422): 2}
    assert [row["value"] for row in records_of(kafka.bootstrap, topic)] == [b'"good"'] * 4


def test_a_record_without_the_key_that_its_topic_needs_takes_no_others_with_it(
    kafka: LocalCluster, running: Gateway
) -> None:
    topic = new_topic(kafka.bootstrap, "compacted", cleanup_policy="compact")
    good, bad = {"value": "good", "key": "k"}, {"value": "bad"}
    assert _statuses(running, topic, [bad, good, good, bad, good]) == {("good", 200): 3, ("bad", 422): 2}


def test_a_message_that_cannot_be_a_record_takes_no_others_of_its_stream_with_it(
    kafka: LocalCluster, running: Gateway, folder: Path
) -> None:
    topic = new_topic(kafka.bootstrap, "large")
    headers = tuple((b"h", bytes(30_000)) for _ in range(70))  # two megabytes, in a small message
    messages = [Message(topic.encode(), b"%d" % number, timestamp_ms=-1) for number in range(50)]
    messages.insert(20, Message(topic.encode(), b"large", headers=headers))
    with socket.socket(socket.AF_UNIX) as sender:
        sender.connect(str(folder / "stream"))
        sender.sendall(b"".join(map(write, messages)))
    listener = running.silent["socket"]
    eventually(
        lambda: sum(entry.value for entry in listener.counters() if entry.name == "discarded") == 1,
        lambda: str(listener.counters()),
    )
    eventually(lambda: len(records_of(kafka.bootstrap, topic)) == 50, "the sound ones")
    assert [row["value"] for row in records_of(kafka.bootstrap, topic)] == [b"%d" % number for number in range(50)]


def test_a_host_whose_clock_is_ahead_loses_no_line(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "clocks")
    settings = SyslogSettings(topic=topic, udp=(("127.0.0.2", 0),))
    with gateway(kafka.bootstrap, syslog=settings, keeps_keys=False) as started:
        port = int(started.silent["syslog"].addresses[0].rpartition(":")[2])
        now = time.time()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for hours in (0, 2, 0):
                shown = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now + hours * 3600))
                sender.sendto(f"<13>1 {shown} host app - - - {hours}".encode(), ("127.0.0.2", port))
        counters = started.silent["syslog"].counters
        eventually(lambda: len(records_of(kafka.bootstrap, topic)) == 3, lambda: str(counters()))
    times = [row["timestamp"].timestamp() for row in records_of(kafka.bootstrap, topic)]
    assert all(abs(each - now) < 60 for each in times)


def test_a_key_is_refused_where_it_would_not_be_kept(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "keyless")
    cluster = ask(port_of(running), "GET", "/v3/clusters").json["data"][0]["cluster_id"]
    v3 = f"/v3/clusters/{cluster}/topics/{topic}/records"
    for path, body in (
        (f"{v3}:batch", {"entries": [{"id": "1", "value": {"type": "JSON", "data": 1}}]}),
        (v3, {"value": {"type": "JSON", "data": 1}}),
        (f"/topics/{topic}?async=true", {"records": [{"value": 1}]}),
        (f"/sync/{topic}", {"a": 1}),
        (f"/{topic}/", {"messages": ["a"]}),
    ):
        answer = post(running, path, body, Idempotency_Key="k")
        assert (answer.status, b"Idempotency-Key" in answer.body) == (400, True), path
    assert not records_of(kafka.bootstrap, topic)


def test_records_of_a_stream_before_rubbish_are_written(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "rubbish")
    cluster = ask(port_of(running), "GET", "/v3/clusters").json["data"][0]["cluster_id"]
    record = b'{"value":{"type":"JSON","data":1}}'
    answer = post(running, f"/v3/clusters/{cluster}/topics/{topic}/records", record * 2 + b"rubbish")
    assert [b'"error_code":200' in line for line in answer.body.splitlines()] == [True, True, False]
    assert len(records_of(kafka.bootstrap, topic)) == 2


def test_a_web_page_whose_name_leads_to_this_machine_reads_no_status_page(running: Gateway) -> None:
    assert running.ops_address is not None
    for host, status in (("evil.example", 421), ("localhost:1", 200), ("127.0.0.1", 200)):
        assert ask(running.ops_address.port, "GET", "/discards/json", Host=host).status == status


def test_keys_go_on_when_their_topic_was_deleted(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "keyed-beside")
    url = f"/v1/topics/{topic}/records"
    assert post(running, url, 1, Idempotency_Key="a").status == 200
    with Admin(kafka.bootstrap) as admin:
        admin.delete_topics(["neighbours-keys"])
    statuses: list[int] = []

    def is_written() -> bool:
        statuses.append(post(running, url, 2, Idempotency_Key="b").status)
        return statuses[-1] == 200

    eventually(is_written, lambda: f"a key is kept again: {statuses}")
    assert set(statuses) <= {503, 200}
    assert len(records_of(kafka.bootstrap, topic)) == 2
