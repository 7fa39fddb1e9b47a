"""Brokers and gateways that are killed: every answer is held against the log afterwards."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.gateway.running import gateway, new_topic, post, program, records_of
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.gateway.http.limits import Limits
from ottla.gateway.running import Gateway

pytestmark = pytest.mark.broker


class Load:
    """Clients that write numbered records, and remember each answer."""

    def __init__(self, send: Callable[[int], tuple[int, Any]], *, clients: int = 4, repeats: bool = False) -> None:
        self.answers: dict[int, list[int]] = {}
        self.errors: list[str] = []
        self._send = send
        self._numbers = itertools.count()
        self._repeats = repeats
        self._is_stopped = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def with_status(self, *statuses: int) -> set[int]:
        """Numbers that were answered with one of these."""
        return {number for number, found in self.answers.copy().items() if found and found[-1] in statuses}

    def goes_on(self, more: int) -> None:
        """Wait until that many more records are written."""
        before = len(self.with_status(200))
        eventually(lambda: len(self.with_status(200)) > before + more, f"{more} more are written", seconds=90)

    def stop(self) -> None:
        """End it."""
        self._is_stopped.set()
        for thread in self._threads:
            thread.join(90)
            assert not thread.is_alive()

    def _run(self) -> None:
        while not self._is_stopped.is_set():
            number = next(self._numbers)
            found = self.answers.setdefault(number, [])
            while True:
                try:
                    found.append(self._send(number)[0])
                except OSError as error:  # the gateway is gone
                    self.errors.append(repr(error))
                    found.append(0)
                    time.sleep(0.02)
                if not self._repeats or found[-1] == 200 or len(found) > 500:
                    break
                time.sleep(0.01)
            time.sleep(0.01)  # a few hundred records a second are enough to be caught by every fault


def _numbers(kafka: LocalCluster, topic: str) -> list[int]:
    return sorted(int(row["value"]) for row in records_of(kafka.bootstrap, topic))


def _leader(kafka: LocalCluster, topic: str) -> int:
    with Admin(kafka.bootstrap) as admin:
        (described,) = admin.describe_topics(topic)
        return described.partitions[0].leader


def _poster(port: int, topic: str, path: str = "", **headers: str) -> Callable[[int], tuple[int, Any]]:
    def send(number: int) -> tuple[int, Any]:
        named = {name: value.format(number) for name, value in headers.items()}
        answer = post(port, f"/v1/topics/{topic}/records{path}", str(number).encode(), **named)
        return answer.status, answer

    return send


def _port(running: Gateway) -> int:
    assert running.http_address is not None
    return running.http_address.port


def test_no_acknowledged_record_is_missing_after_a_broker_was_killed(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "killed", replicas=3, min_insync_replicas="2")
    with gateway(kafka.bootstrap, keeps_keys=False, limits=Limits(ack_seconds=15)) as running:
        load = Load(_poster(_port(running), topic))
        eventually(lambda: len(load.with_status(200)) > 100, "records are written")
        victim = _leader(kafka, topic)
        before = len(load.with_status(200))
        kafka.kill(victim)
        eventually(lambda: len(load.with_status(200)) > before + 200, "records are written again")
        kafka.restart(victim)
        load.stop()
    written = _numbers(kafka, topic)
    assert set(load.with_status(200)) <= set(written)
    assert len(written) == len(set(written))
    # What was refused without doubt is not there.
    assert not set(written) & load.with_status(503, 404, 413, 422)
    assert not load.errors


def test_a_repeated_key_writes_once_although_brokers_are_killed(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "keyed", replicas=3, min_insync_replicas="2")
    with gateway(kafka.bootstrap, name=topic, limits=Limits(ack_seconds=10)) as running:
        load = Load(_poster(_port(running), topic, Idempotency_Key="number {}"), repeats=True)
        eventually(lambda: len(load.with_status(200)) > 50, "records are written")
        victim = _leader(kafka, topic)
        before = len(load.with_status(200))
        kafka.kill(victim)
        eventually(lambda: len(load.with_status(200)) > before + 50, "records are written again", seconds=90)
        kafka.restart(victim)
        load.stop()
    eventually(lambda: set(_numbers(kafka, topic)) >= load.with_status(200), "all are visible")
    assert len(_numbers(kafka, topic)) == len(set(_numbers(kafka, topic)))


def test_a_repeated_key_writes_once_although_the_gateway_is_killed(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka.bootstrap, "killed-keys", replicas=3)
    with program(kafka.bootstrap, tmp_path, "--name", topic) as running:
        load = Load(_poster(running.port, topic, Idempotency_Key="number {}"), repeats=True)
        for _ in range(3):
            load.goes_on(30)
            running.kill()
            running.start()
        load.goes_on(30)
        load.stop()
        done = load.with_status(200)
        assert running.stop() == 0
    assert load.errors  # some were in flight when it died
    eventually(lambda: set(_numbers(kafka, topic)) >= done, "all are visible")
    written = _numbers(kafka, topic)
    assert len(written) == len(set(written))


def test_a_full_spool_survives_kill_9(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka.bootstrap, "spooled", replicas=3)
    spool = tmp_path / "spool"
    with program(kafka.bootstrap, tmp_path, "--spool", str(spool), "--name", topic) as running:
        assert post(running.port, f"/v1/topics/{topic}/records", b"0").status == 200
        brokers = [broker.id for broker in kafka.status().brokers]
        kafka.freeze(*brokers)
        try:
            load = Load(_poster(running.port, topic, "?ack=spool"))
            eventually(lambda: len(load.with_status(202)) > 300, "records are in the spool")
            running.kill()
            load.stop()
        finally:
            kafka.thaw(*brokers)
        running.start()
        accepted = load.with_status(202)
        eventually(
            lambda: set(_numbers(kafka, topic)) >= accepted,
            lambda: f"{len(accepted - set(_numbers(kafka, topic)))} of {len(accepted)} are missing",
        )
        assert running.stop() == 0


def test_a_stop_finishes_what_was_taken(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka.bootstrap, "stopped", replicas=3)
    with program(kafka.bootstrap, tmp_path) as running:
        load = Load(_poster(running.port, topic))
        without_waiting = Load(_poster(running.port, topic, "?ack=none"), clients=1)
        eventually(lambda: len(load.with_status(200)) > 100, "records are written")
        assert running.stop() == 0
        load.stop()
        without_waiting.stop()
    counts: dict[int, int] = {}
    for number in _numbers(kafka, topic):
        counts[number] = counts.get(number, 0) + 1
    missing = [
        number
        for number in load.with_status(200) | without_waiting.with_status(204)
        if counts.get(number, 0) < (number in load.with_status(200)) + (number in without_waiting.with_status(204))
    ]
    assert not missing


def test_a_restart_refuses_no_connection(kafka: LocalCluster, tmp_path: Path) -> None:
    topic = new_topic(kafka.bootstrap, "restarted", replicas=3)
    with program(kafka.bootstrap, tmp_path, "--spool", str(tmp_path / "spool"), "--name", topic) as running:
        load = Load(_poster(running.port, topic))
        eventually(lambda: len(load.with_status(200)) > 50, "records are written")
        pid = running.process.pid
        for _ in range(2):
            starts = running.log.count("/v1/topics")
            running.process.send_signal(signal.SIGUSR2)
            running.await_start(starts)
            load.goes_on(50)
        load.stop()
        assert running.process.pid == pid
        assert running.stop() == 0
    assert load.errors == []
    assert load.with_status(200) == set(load.answers)
    assert set(_numbers(kafka, topic)) == set(load.answers)


def test_a_second_gateway_with_the_same_name_shuts_the_first_one_out(kafka: LocalCluster) -> None:
    topic = new_topic(kafka.bootstrap, "fenced", replicas=3)
    path = f"/v1/topics/{topic}/records"
    with gateway(kafka.bootstrap, name=topic) as first, gateway(kafka.bootstrap, name=topic) as second:
        assert post(first, path, b"1", Idempotency_Key="a").status == 200
        assert post(second, path, b"1", Idempotency_Key="a").status == 200
        assert post(second, path, b"2", Idempotency_Key="b").status == 200
        assert post(first, path, b"2", Idempotency_Key="b").status == 503
        assert post(first, path, b"3").status == 200  # without a key it goes on
    eventually(lambda: len(_numbers(kafka, topic)) >= 3, "all are visible")
    assert _numbers(kafka, topic) == [1, 2, 3]
