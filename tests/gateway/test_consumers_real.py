"""Consumer instances as programs for the REST Proxy use them, on a real broker: groups, commits, wrong calls, ends."""

from __future__ import annotations

import base64
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.running import Answered, ask, gateway, new_topic, port_of, post, program
from tests.waiting import eventually

from ottla import Producer
from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.gateway.access.gate import Access
from ottla.gateway.access.rules import Rule, Verb
from ottla.gateway.access.secrets import hash_secret
from ottla.gateway.http.limits import Limits
from ottla.gateway.reading.instances import Held
from ottla.gateway.running import Gateway

pytestmark = pytest.mark.broker
_V2 = "application/vnd.kafka.v2+json"


@pytest.fixture(scope="module")
def running(hasty: LocalCluster) -> Iterator[Gateway]:
    with gateway(hasty.bootstrap, keeps_keys=False) as started:
        yield started


class Instance:
    """A client of one instance."""

    def __init__(self, running: Gateway | int, group: str, *, login: str = "", **settings: Any) -> None:
        self.port = running if isinstance(running, int) else port_of(running)
        self.form = settings.get("format", "binary")
        self.headers = {"Authorization": login} if login else {}
        given = {name.replace("_", "."): value for name, value in settings.items()}
        answer = ask(self.port, "POST", f"/consumers/{group}", json.dumps(given), Content_Type=_V2, **self.headers)
        assert (answer.status, answer.headers["content-type"]) == (200, _V2), answer
        self.name = answer.json["instance_id"]
        self.path = f"/consumers/{group}/instances/{self.name}"
        self.base_uri = answer.json["base_uri"]
        assert self.base_uri.endswith(self.path)

    def call(self, method: str, what: str = "", body: Any = None, **headers: str) -> Answered:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content_Type": _V2, **headers, **self.headers}
        return ask(self.port, method, self.path + what, data, **headers)

    def done(self, method: str, what: str = "", body: Any = None) -> None:
        answer = self.call(method, what, body)
        assert answer.status == 204, answer

    def read(self, query: str = "") -> list[Any]:
        accept = f"application/vnd.kafka.{self.form}.v2+json"
        answer = self.call("GET", f"/records?{query}", Accept=accept)
        assert (answer.status, answer.headers["content-type"]) == (200, accept), answer
        found: list[Any] = answer.json
        return found

    def values(self, count: int, query: str = "timeout=500") -> list[Any]:
        """Read until there are so many values."""
        found: list[Any] = []

        def are_there() -> bool:
            found.extend(each["value"] for each in self.read(query))
            return len(found) >= count

        eventually(are_there, lambda: f"{count} values: {found}")
        return found

    def joined(self, *others: Instance) -> bool:
        """Whether it and others have partitions."""
        return all(each.call("GET", "/assignments").json["partitions"] for each in (self, *others))


def _held(running: Gateway, instance: Instance) -> Held:
    assert running._instances is not None
    (held,) = [held for key, held in running._instances._held.items() if key.name == instance.name]
    return held


def _topic(hasty: LocalCluster, name: str, values: int = 0, *, partitions: int = 1) -> str:
    topic = new_topic(hasty.bootstrap, f"rest-{name}", partitions=partitions)
    _write(hasty, topic, 0, values, partitions)
    return topic


def _write(hasty: LocalCluster, topic: str, start: int, stop: int, partitions: int = 1) -> None:
    with Producer(hasty.bootstrap) as producer:
        for number in range(start, stop):
            producer.send(topic, b"%d" % number, partition=number % partitions)


def test_the_documented_calls_of_the_proxy_do_what_they_say(hasty: LocalCluster, running: Gateway) -> None:
    topic = _topic(hasty, "documented")
    headers = {"Content_Type": "application/vnd.kafka.json.v2+json"}
    sent = {"records": [{"value": {"foo": "bar"}}]}
    assert post(running, f"/topics/{topic}", sent, **headers).status == 200
    group = f"my_json_consumer-{topic}"
    one = Instance(running, group, name="my_consumer_instance", format="json", auto_offset_reset="earliest")
    assert one.base_uri == f"http://127.0.0.1:{one.port}{one.path}"
    again = ask(one.port, "POST", f"/consumers/{group}", b'{"name": "my_consumer_instance"}', Content_Type=_V2)
    assert (again.status, again.json["error_code"]) == (409, 40902)
    one.done("POST", "/subscription", {"topics": [topic]})
    assert one.call("GET", "/subscription").json == {"topics": [topic]}
    (record,) = one.read()  # the first one: it waits for the group to give partitions
    documented = {"topic": topic, "key": None, "value": {"foo": "bar"}, "partition": 0, "offset": 0}
    assert {name: record[name] for name in documented} == documented
    assert one.call("GET", "/assignments").json == {"partitions": [{"topic": topic, "partition": 0}]}
    offsets = {"offsets": [{"topic": topic, "partition": 0, "offset": 0, "metadata": "mine"}]}
    assert one.call("POST", "/offsets", offsets).status == 200
    committed = one.call("GET", "/offsets", {"partitions": [{"topic": topic, "partition": 0}]}).json
    assert committed == {"offsets": [{"topic": topic, "partition": 0, "offset": 1, "metadata": "mine"}]}
    partitions = {"partitions": [{"topic": topic, "partition": 0}]}
    one.done("POST", "/positions/beginning", partitions)
    assert one.values(1) == [{"foo": "bar"}]
    one.done("POST", "/positions/end", partitions)
    assert post(running, f"/topics/{topic}", {"records": [{"value": 2}]}, **headers).status == 200
    assert one.values(1) == [2]
    one.done("POST", "/positions", {"offsets": [{"topic": topic, "partition": 0, "offset": 1}]})
    assert one.values(1) == [2]
    moment = {"topic": topic, "partition": 0, "timestamp": "2020-01-01T00:00:00Z"}
    one.done("POST", "/positions", {"timestamps": [moment]})
    assert one.values(2) == [{"foo": "bar"}, 2]
    one.done("DELETE", "/subscription")
    assert one.call("GET", "/subscription").json == {"topics": []}
    assert one.call("GET", "/records").json["error_code"] == 40903
    one.done("DELETE")
    for method, what in (("DELETE", ""), ("GET", "/records"), ("POST", "/subscription")):
        gone = one.call(method, what, {"topics": [topic]} if method == "POST" else None)
        assert (gone.status, gone.json["error_code"]) == (404, 40403)
        assert "Create it again" in gone.json["message"]


def test_formats_show_every_byte_or_say_that_they_cannot(hasty: LocalCluster, running: Gateway) -> None:
    topic = _topic(hasty, "formats")
    with Producer(hasty.bootstrap) as producer:
        producer.send(topic, b'{"a": 1}', key=b'"k"', headers=[("h", b"\xff")], timestamp=1_700_000_000.5)
        producer.send(topic, b"plain")
        producer.send(topic, b"\xff")
        producer.send(topic, None, key=b"gone")
    assigned = {"partitions": [{"topic": topic, "partition": 0}]}
    binary = Instance(running, topic, auto_offset_reset="earliest")
    binary.done("POST", "/assignments", assigned)
    records = binary.read()
    assert [each["value"] and base64.b64decode(each["value"]) for each in records] == [
        *(b'{"a": 1}', b"plain", b"\xff"),
        None,
    ]
    assert (records[0]["timestamp"], records[0]["headers"]) == (1_700_000_000_500, [{"key": "h", "value": "/w=="}])
    text = Instance(running, topic, format="text", auto_offset_reset="earliest")
    text.done("POST", "/assignments", assigned)
    assert text.values(2) == ['{"a": 1}', "plain"]
    refused = text.call("GET", "/records")
    assert (refused.status, refused.json["error_code"], refused.json["offset"]) == (422, 42203, 2)
    text.done("POST", "/positions", {"offsets": [{"topic": topic, "partition": 0, "offset": 3}]})
    assert text.values(1) == [None]
    as_json = Instance(running, topic, format="json", auto_offset_reset="earliest")
    as_json.done("POST", "/assignments", assigned)
    (record,) = as_json.read()
    assert (record["key"], record["value"]) == ("k", {"a": 1})
    assert as_json.call("GET", "/records").json["offset"] == 1
    wrong = as_json.call("GET", "/records", Accept="application/vnd.kafka.binary.v2+json")
    assert (wrong.status, wrong.json["error_code"]) == (406, 40601)
    for each in (binary, text, as_json):
        each.done("DELETE")


def test_two_instances_share_partitions_and_continue_for_each_other(hasty: LocalCluster, running: Gateway) -> None:
    topic = _topic(hasty, "shared", 40, partitions=4)
    settings = {"format": "json", "auto_offset_reset": "earliest", "auto_commit_enable": "false"}
    one, two = Instance(running, topic, **settings), Instance(running, topic, **settings)
    one.done("POST", "/subscription", {"topics": [topic]})
    assert sorted(one.values(40)) == list(range(40))
    assert one.call("POST", "/offsets").status == 200  # all that was read
    two.done("POST", "/subscription", {"topic_pattern": topic[:-1] + "."})
    # Nothing reads meanwhile: the gateway takes part for both.
    eventually(lambda: one.joined(two), "both have partitions")
    eventually(lambda: len(one.call("GET", "/assignments").json["partitions"]) == 2, "half of them each")
    _write(hasty, topic, 40, 80, 4)
    found: list[int] = []

    def are_there() -> bool:
        for each in (one, two):
            found.extend(record["value"] for record in each.read("timeout=200"))
        return len(found) >= 40

    eventually(are_there, "all records")
    assert sorted(found) == list(range(40, 80))
    two.done("DELETE")  # it has committed nothing: what it read comes again
    eventually(lambda: len(one.call("GET", "/assignments").json["partitions"]) == 4, "it has all of them")
    repeated = one.values(20)
    assert len(repeated) == 20
    assert set(repeated) < set(found)
    one.done("DELETE")


def test_with_automatic_commits_nothing_is_lost_that_was_not_asked_past(hasty: LocalCluster, running: Gateway) -> None:
    topic = _topic(hasty, "auto", 30)
    settings = {"format": "json", "auto_offset_reset": "earliest"}

    def begin() -> Instance:
        instance = Instance(running, topic, **settings)
        instance.done("POST", "/subscription", {"topics": [topic]})
        return instance

    def committed(instance: Instance) -> Any:
        asked = {"partitions": [{"topic": topic, "partition": 0}]}
        return [each["offset"] for each in instance.call("GET", "/offsets", asked).json["offsets"]]

    one = begin()
    some, more = len(one.read("max_bytes=40")), len(one.read("max_bytes=40"))
    assert 0 < some < 10
    assert 0 < more < 10
    # As if the gateway ended: what the second answer had was not asked past.
    _held(running, one).instance.close()
    two = begin()
    assert committed(two) == [some]
    again = [each["value"] for each in two.read("max_bytes=40")]
    assert again == list(range(some, some + len(again)))
    two.done("DELETE")  # its client says that it has them
    three = begin()
    assert committed(three) == [some + len(again)]
    assert three.values(30 - some - len(again)) == list(range(some + len(again), 30))
    for each in (one, three):
        each.done("DELETE")


def test_a_large_record_and_a_small_limit_come_together(hasty: LocalCluster, running: Gateway) -> None:
    topic = _topic(hasty, "large")
    with Producer(hasty.bootstrap) as producer:
        for size in (900_000, 10):
            producer.send(topic, b"x" * size)
    instance = Instance(running, topic, format="text", auto_offset_reset="earliest", fetch_min_bytes="5")
    instance.done("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    assert [len(each["value"]) for each in instance.read("max_bytes=1000")] == [900_000]
    assert [len(each["value"]) for each in instance.read("max_bytes=1000")] == [10]
    assert instance.read("timeout=50") == []
    instance.done("DELETE")


def test_wrong_calls_have_the_codes_of_the_proxy(hasty: LocalCluster, running: Gateway) -> None:
    topic = _topic(hasty, "wrong", 1)
    for given in (
        {"format": "avro"},
        {"auto.offset.reset": "first"},
        {"auto.commit.enable": "maybe"},
        {"fetch.min.bytes": "many"},
        {"consumer.request.timeout.ms": -7},
        {"isolation.level": "none"},
        {"name": "../../etc"},
        {"name": "x" * 300},
        {"name": 7},
        {"nonesuch": 1},
    ):
        answer = ask(port_of(running), "POST", "/consumers/wrong", json.dumps(given), Content_Type=_V2)
        assert (answer.status, answer.json["error_code"]) == (422, 42204), (given, answer)
    wrong_body = ask(port_of(running), "POST", "/consumers/wrong", b"{", Content_Type=_V2)
    assert (wrong_body.status, wrong_body.json["error_code"]) == (400, 40002)
    assert ask(port_of(running), "POST", "/consumers/wrong", b"{}", Content_Type="text/html").status == 415
    one = Instance(running, topic, format="json")
    partition = {"topic": topic, "partition": 0}
    unknown = {"topic": "gateway-none", "partition": 0}
    for method, what, body, status, code in (
        ("POST", "/subscription", {"topics": ["gateway-none"]}, 404, 40401),
        ("POST", "/subscription", {"topics": ["a b"]}, 422, 42206),
        ("POST", "/subscription", {}, 422, 42206),
        ("POST", "/subscription", {"topics": [topic], "topic_pattern": "x"}, 409, 40903),
        ("POST", "/subscription", {"topic_pattern": "("}, 422, 42206),
        ("POST", "/subscription", {"topic_pattern": "a" * 9999 + "(b{1000}){1000}"}, 422, 42206),
        ("POST", "/subscription", {"topics": topic}, 422, 42206),
        ("POST", "/assignments", {"partitions": [unknown]}, 404, 40401),
        ("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 9}]}, 404, 40402),
        ("POST", "/assignments", {"partitions": [{"topic": topic, "partition": -1}]}, 422, 42206),
        ("POST", "/positions", {"offsets": [{**partition, "offset": 0}]}, 409, 40903),
        ("POST", "/positions", {"offsets": [{**partition, "offset": -1}]}, 422, 42206),
        ("POST", "/positions", {"timestamps": [{**partition, "timestamp": "now"}]}, 400, 400),
        ("POST", "/positions/end", {"partitions": [partition]}, 409, 40903),
        ("POST", "/offsets", {"offsets": [{**partition, "offset": 1 << 70}]}, 422, 42206),
        ("POST", "/offsets", {"offsets": [{**partition, "offset": 0}]}, 409, 40903),
        ("GET", "/records?timeout=x", None, 400, 40002),
        ("GET", "/records?nonesuch=1", None, 400, 400),
        ("GET", "/records", None, 409, 40903),
        ("GET", "/offsets", b"[" * 100_000, 422, 42206),
        ("GET", "/offsets", b'{"partitions": [\xff]}', 400, 400),
    ):
        answer = one.call(method, what, body)
        assert (answer.status, answer.json["error_code"]) == (status, code), (method, what, body, answer)
        assert answer.headers["content-type"] == _V2
    one.done("POST", "/assignments", {"partitions": [partition]})
    refused = one.call("POST", "/subscription", {"topics": [topic]})
    assert (refused.status, refused.json["error_code"]) == (409, 40903)
    assert one.call("POST", "/offsets", {"offsets": [{**partition, "offset": 0}]}).status == 200
    one.done("DELETE")
    two = Instance(running, topic, auto_offset_reset="none", format="json")
    two.done("POST", "/subscription", {"topic_pattern": "(a+)+$"})  # nothing matches
    assert two.read("timeout=10") == []
    refused = two.call("POST", "/assignments", {"partitions": [partition]})
    assert (refused.status, refused.json["error_code"]) == (409, 40903)
    two.done("DELETE")


def _login(name: str) -> str:
    return "Basic " + base64.b64encode(f"{name}:{name}-secret".encode()).decode()


def test_an_instance_is_one_login_s_alone_and_ends_when_it_is_not_used(hasty: LocalCluster) -> None:
    topic, other = _topic(hasty, "logins", 3), _topic(hasty, "logins-other", 3)
    access = Access(
        secrets={name: hash_secret(f"{name}-secret".encode()) for name in ("ann", "bob", "pen")},
        needs_login=True,
        rules=(
            Rule(("ann", "bob"), (topic,), frozenset({Verb.CONSUME})),
            Rule(("pen",), (topic,), frozenset({Verb.PRODUCE})),
        ),
    )
    limits = Limits(consumers=2, consumer_idle_seconds=1.0)
    where = {"base_uri": "https://kafka.example/rest"}
    with gateway(hasty.bootstrap, access=access, limits=limits, keeps_keys=False, **where) as running:
        ann = Instance(running, topic, login=_login("ann"), name="mine", format="json", auto_offset_reset="earliest")
        assert ann.base_uri == f"https://kafka.example/rest{ann.path}"
        for method, what in (("GET", "/records"), ("DELETE", ""), ("GET", "/subscription")):
            answer = ask(ann.port, method, ann.path + what, Authorization=_login("bob"))
            assert (answer.status, answer.json["error_code"]) == (404, 40403)
        assert ask(ann.port, "DELETE", ann.path).status == 401
        none = ask(ann.port, "POST", f"/consumers/{topic}", Authorization=_login("pen"))
        assert (none.status, none.json["error_code"]) == (403, 40301), "who may read nothing takes no place"
        bob = Instance(running, topic, login=_login("bob"), name="mine")  # a name of his own
        full = ask(ann.port, "POST", f"/consumers/{topic}", Authorization=_login("bob"))
        assert (full.status, full.json["limit"]) == (503, "consumers")
        bob.done("DELETE")
        assert ann.call("POST", "/subscription", {"topics": [other]}).json["error_code"] == 40301
        assert ann.call("POST", "/assignments", {"partitions": [{"topic": other, "partition": 0}]}).status == 403
        ann.done("POST", "/subscription", {"topic_pattern": "gateway-rest-logins.*"})
        assert ann.call("GET", "/subscription").json == {"topics": [topic]}
        assert ann.values(3) == [0, 1, 2]
        metrics = ask(running.ops_address.port, "GET", "/metrics").body.decode()  # type: ignore[union-attr]
        assert "ottla_gateway_http_consumers 1" in metrics
        assert running._instances is not None
        eventually(lambda: not len(running._instances or ()), "it has ended")
        assert ann.call("GET", "/records").json["error_code"] == 40403
        with Admin(hasty.bootstrap) as admin:
            eventually(lambda: not _members(admin, topic), "it has left its group")


def _members(admin: Admin, group: str) -> int:
    return len(admin.groups.describe(group).members)


def test_a_stop_leaves_the_group_and_a_kill_loses_the_instance_only(
    hasty: LocalCluster, running: Gateway, tmp_path: Path
) -> None:
    topic = _topic(hasty, "kill", 20)
    settings = {"format": "json", "auto_offset_reset": "earliest"}

    def begin(where: Gateway | int) -> Instance:
        instance = Instance(where, topic, **settings)
        instance.done("POST", "/subscription", {"topics": [topic]})
        return instance

    with gateway(hasty.bootstrap, keeps_keys=False) as stopped:
        one = begin(stopped)
        some = len(one.read("max_bytes=30"))
        assert [each["value"] for each in one.read("max_bytes=1")] == [some]
    with Admin(hasty.bootstrap) as admin:
        assert not _members(admin, topic)
    with program(hasty.bootstrap, tmp_path) as served:
        two = begin(served.port)
        assert [each["value"] for each in two.read("max_bytes=1")] == [some]  # the last answer comes again
        assert two.call("POST", "/offsets").status == 200
        two.read("max_bytes=1")
        served.kill()
    # What a gateway says that was started again: it has never had the instance.
    gone = ask(port_of(running), "GET", two.path + "/records")
    assert (gone.status, gone.json["error_code"]) == (404, 40403)
    three = Instance(running, topic, **settings)
    three.done("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    assert three.values(1)[0] == some + 1
    three.done("DELETE")


def test_calls_of_one_instance_go_between_its_reads(hasty: LocalCluster, running: Gateway) -> None:
    topic = _topic(hasty, "calls")
    partition = {"topic": topic, "partition": 0}
    one = Instance(running, topic, format="json", auto_offset_reset="earliest", fetch_min_bytes="1000000")
    one.done("POST", "/assignments", {"partitions": [partition]})
    held = _held(running, one)
    answers: list[Answered] = []

    def read() -> None:
        answers.append(one.call("GET", "/records?timeout=20000"))

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    eventually(held.reading.locked, "one of them reads, the other one waits")
    assert one.call("POST", "/offsets", {"offsets": [{**partition, "offset": 4}]}).status == 200
    with socket.socket() as sock:
        sock.connect(("127.0.0.1", one.port))
        sock.sendall(f"GET {one.path}/records?timeout=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    one.done("DELETE")
    for thread in threads:
        thread.join(10)
    assert [answer.json["error_code"] for answer in answers] == [40403, 40403]


def test_records_of_a_client_that_has_gone_come_with_the_next_read(hasty: LocalCluster, running: Gateway) -> None:
    topic = _topic(hasty, "gone")
    one = Instance(running, topic, format="json", auto_offset_reset="earliest", fetch_min_bytes="1000000")
    one.done("POST", "/assignments", {"partitions": [{"topic": topic, "partition": 0}]})
    held = _held(running, one)
    with socket.socket() as sock:
        sock.connect(("127.0.0.1", one.port))
        sock.sendall(f"GET {one.path}/records?timeout=20000 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        eventually(held.reading.locked, "it reads")
        _write(hasty, topic, 0, 5)
        eventually(lambda: held.instance.buffered_bytes, "records wait for it")
    eventually(lambda: not held.reading.locked(), "it has gone")
    assert one.values(5) == list(range(5))
    one.done("DELETE")
