"""Group reads: what is not acknowledged comes again, what is acknowledged does not, whatever dies in between."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.running import Answered, Program, ask, gateway, new_topic, port_of, post, program
from tests.gateway.test_reads_real import delete_before
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.gateway.http.limits import Limits
from ottla.gateway.running import Gateway

pytestmark = pytest.mark.broker
_PROMPT = "lease_seconds=1&max_wait_ms=20000"
_PATIENT = "lease_seconds=60&max_wait_ms=20000"


@pytest.fixture(scope="module")
def running(kafka: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    store = f"sqlite:///{tmp_path_factory.mktemp('groups') / 'groups.db'}"
    limits = Limits(groups=20)
    with gateway(kafka.bootstrap, group_store=store, unit_records=10, limits=limits) as started:
        yield started


def _port(running: Gateway | Program) -> int:
    return running.port if isinstance(running, Program) else port_of(running)


def fetch(running: Gateway | Program, topic: str, query: str = _PATIENT, *, group: str = "g") -> Answered:
    """Ask for a unit."""
    return ask(_port(running), "POST", f"/v1/groups/{group}/topics/{topic}/fetch?{query}")


def say(running: Gateway | Program, topic: str, what: str, group: str = "g", /, **body: Any) -> Answered:
    """Acknowledge, release or extend."""
    return ask(_port(running), "POST", f"/v1/groups/{group}/topics/{topic}/{what}", json.dumps(body))


def _is_halted(answer: Answered, why: str) -> bool:
    return answer.status == 410 and answer.json["error_code"] == 41003 and why in answer.json["message"]


def _values(answer: Answered) -> list[int]:
    assert answer.status == 200, answer
    return [each["value"] for each in answer.json["records"]]


def _write(running: Gateway | Program, topic: str, count: int) -> None:
    body = {"records": [{"value": number} for number in range(count)]}
    assert post(_port(running), f"/v1/topics/{topic}/records", body).status == 200


def test_acknowledged_records_come_once(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "group-once", partitions=3)
    _write(running, topic, 100)
    found: list[int] = []
    lock = threading.Lock()

    def work() -> None:
        while (answer := fetch(running, topic, "lease_seconds=60&max_wait_ms=4000")).status == 200:
            with lock:
                found.extend(_values(answer))
            assert say(running, topic, "acknowledge", lease=answer.json["lease"]).status == 204

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert sorted(found) == list(range(100))
    state = ask(port_of(running), "GET", f"/v1/groups/g/topics/{topic}").json
    assert sum(each["done"] for each in state["partitions"]) == 100
    assert (state["counts"]["reclaimed"], state["lease_seconds"]) == (0, 60.0)


def test_what_is_not_acknowledged_comes_again(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "group-again")
    _write(running, topic, 10)
    first = fetch(running, topic, _PROMPT)
    again = fetch(running, topic, _PROMPT)
    assert _values(first) == _values(again) == list(range(10))
    assert (first.json["attempt"], again.json["attempt"]) == (1, 2)
    late = say(running, topic, "acknowledge", lease=first.json["lease"])
    assert (late.status, late.json["error_code"]) == (409, 40904)
    assert say(running, topic, "acknowledge", lease=again.json["lease"]).status == 204
    assert say(running, topic, "acknowledge", lease=again.json["lease"]).status == 204, "asked again, it is the same"
    assert fetch(running, topic, "max_wait_ms=2500").status == 204


def test_a_lease_can_be_prolonged_and_given_back(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "group-extend")
    _write(running, topic, 10)
    held = fetch(running, topic, "lease_seconds=3&max_wait_ms=20000").json["lease"]
    other: list[Answered] = []
    thread = threading.Thread(target=lambda: other.append(fetch(running, topic, "max_wait_ms=5000")))
    thread.start()
    while thread.is_alive():
        assert say(running, topic, "extend", lease=held).status == 200
        thread.join(0.2)
    assert other[0].status == 204, "a lease that is prolonged does not expire"
    assert say(running, topic, "release", lease=held).status == 204
    again = fetch(running, topic, "max_wait_ms=20000")
    assert again.json["attempt"] == 1, "given back in order, it was no attempt"
    assert say(running, topic, "release", lease=again.json["lease"], failed="no disk").status == 204
    assert say(running, topic, "release", lease=again.json["lease"]).status == 409
    assert fetch(running, topic, "max_wait_ms=20000").json["attempt"] == 2


def test_a_part_can_be_acknowledged(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "group-part")
    _write(running, topic, 10)
    answer = fetch(running, topic, _PATIENT + "&max_records=6")
    assert (_values(answer), answer.json["start"], answer.json["stop"]) == (list(range(6)), 0, 6)
    lease = answer.json["lease"]
    assert say(running, topic, "acknowledge", lease=lease, upto=7).status == 400
    assert say(running, topic, "acknowledge", lease=lease, upto=4).status == 204
    rest = fetch(running, topic)
    assert _values(rest) == list(range(4, 10))
    assert say(running, topic, "acknowledge", lease=rest.json["lease"]).status == 204


def test_records_that_always_fail_are_set_aside_and_named(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "group-poison")
    _write(running, topic, 20)
    for _ in range(2):
        answer = fetch(running, topic, _PATIENT + "&max_attempts=2")
        assert _values(answer)[0] == 0
        assert say(running, topic, "release", lease=answer.json["lease"], failed="poison").status == 204
    assert _values(fetch(running, topic)) == list(range(10, 20))
    (failure,) = ask(port_of(running), "GET", f"/v1/groups/g/topics/{topic}").json["failures"]
    assert (failure["start"], failure["stop"], failure["attempts"], failure["reason"]) == (0, 10, 2, "poison")


def test_offsets_that_are_gone_are_said(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "group-gone")
    _write(running, topic, 10)
    answer = fetch(running, topic, _PATIENT + "&max_attempts=1")
    assert say(running, topic, "release", lease=answer.json["lease"]).status == 204
    delete_before(kafka, topic, 5)
    gone = fetch(running, topic)
    assert (gone.status, gone.json["error_code"], gone.json["lost"]) == (410, 41001, {"start": 0, "stop": 5})
    (failure,) = ask(port_of(running), "GET", f"/v1/groups/g/topics/{topic}").json["failures"]
    assert "deleted" in failure["reason"]


def test_a_topic_that_was_created_again_is_not_mistaken(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "group-replaced")
    _write(running, topic, 10)
    lease = fetch(running, topic).json["lease"]
    assert say(running, topic, "acknowledge", lease=lease).status == 204
    with Admin(kafka.bootstrap) as admin:
        admin.delete_topics([topic])
        eventually(lambda: topic not in admin.topic_names(), "it is deleted")
        admin.create_topic(topic)
    body = {"records": [{"value": 100 + number} for number in range(10)]}
    eventually(lambda: post(running, f"/v1/topics/{topic}/records", body).status == 200, "it can be written")
    # Before that, it may say that the topic is not there: the brokers do not learn of it together.
    eventually(lambda: _is_halted(fetch(running, topic, "max_wait_ms=500"), "created again"), "the group says so")
    assert ask(port_of(running), "DELETE", f"/v1/groups/g/topics/{topic}").status == 204
    assert _values(fetch(running, topic))[0] == 100


def test_groups_are_apart_and_keep_their_terms(kafka: LocalCluster, running: Gateway) -> None:
    topic = new_topic(kafka.bootstrap, "group-terms")
    _write(running, topic, 10)
    assert _values(fetch(running, topic)) == _values(fetch(running, topic, group="other"))
    other = fetch(running, topic, "lease_seconds=7")
    assert (other.status, other.json["error_code"]) == (409, 40905)
    lease = fetch(running, topic, group="third").json["lease"]
    assert say(running, topic, "acknowledge", "other", lease=lease).status == 409, "a lease belongs to its group"
    assert say(running, topic, "acknowledge", "third", lease=lease).status == 204
    assert say(running, topic, "acknowledge", "other", lease=lease).status == 409, "also when it was acknowledged there"
    assert say(running, topic, "extend", "nobody", lease=lease).status == 409
    unknown = ask(port_of(running), "GET", f"/v1/groups/nobody/topics/{topic}")
    assert (unknown.status, unknown.json["error_code"]) == (404, 40406)
    first = fetch(running, topic, "lease_seconds=9&max_wait_ms=20000", group="nobody")
    assert first.status == 200, "looking created no group, so that this one decides its terms"
    for query in ("lease_seconds=0", "lease_seconds=1e3", "ordered=yes", "start=never", "max_attempts=0", "group=a"):
        assert fetch(running, topic, query).status == 400, query
    assert fetch(running, topic, group="a%20b").status == 400
    for body in (
        b"",
        b"[]",
        b'{"lease":1}',
        b'{"lease":"AAAA"}',
        b'{"lease":"x","y":1}',
        b"[" * 100_000,
        b'{"lease":""}',
    ):
        answer = ask(port_of(running), "POST", f"/v1/groups/g/topics/{topic}/acknowledge", body)
        assert answer.status == 400, body


def test_a_gateway_without_a_store_says_so(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "group-none")
    with gateway(kafka.bootstrap) as running:
        assert fetch(running, topic).status == 501


def test_a_killed_gateway_loses_and_repeats_nothing_that_is_acknowledged(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka.bootstrap, "group-kill")
    store = f"sqlite:///{tmp_path / 'groups.db'}"
    settings = tmp_path / "gateway.toml"
    settings.write_text(f'[groups]\nstore = "{store}"\nunit_records = 10\n')
    terms = "lease_seconds=2&max_wait_ms=20000"
    with program(kafka.bootstrap, tmp_path, "--config", str(settings)) as running:
        _write(running, topic, 30)
        done = fetch(running, topic, terms)
        assert say(running, topic, "acknowledge", lease=done.json["lease"]).status == 204
        kept = fetch(running, topic, terms)
        lost = fetch(running, topic, terms)
        assert [_values(each)[0] for each in (done, kept, lost)] == [0, 10, 20]
        running.kill()  # between fetch and acknowledge
        running.start()
        answer = say(running, topic, "acknowledge", lease=kept.json["lease"])
        assert answer.status == 204, "the lease outlives the gateway"
        again = fetch(running, topic, terms)
        assert (_values(again), again.json["attempt"]) == (list(range(20, 30)), 2)
        assert say(running, topic, "acknowledge", lease=again.json["lease"]).status == 204
        assert fetch(running, topic, "max_wait_ms=3000").status == 204
        assert running.stop() == 0, running.log
