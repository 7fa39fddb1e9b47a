"""Health and probe on real brokers that are killed, frozen and mended."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import confluent_kafka.admin
import pytest
from tests.cli.commands import run
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.net import Cluster
from ottla.operations.health import Finding, History, Limits, Prober, State, Verdict, judge, look
from ottla.operations.health.monitor import Monitor
from ottla.operations.health.probe_tally import BrokerReport
from ottla.operations.serving import Server, routed

pytestmark = pytest.mark.broker
EVERY = 0.5
confluent_admin: Any = confluent_kafka.admin  # its names are not exported as mypy sees it


@pytest.fixture
def cluster(kafka: LocalCluster) -> Iterator[Cluster]:
    with Cluster(kafka.bootstrap) as opened:
        yield opened


def _verdict(cluster: Cluster, limits: Limits | None = None) -> Verdict:
    return judge(look(cluster, timeout=15.0), limits=limits)[0]


def _about(verdict: Verdict, check: str, name: str) -> list[Finding]:
    return [each for each in verdict.findings if each.check == check and any(name in one for one in each.affects)]


def test_a_killed_broker_is_named_with_what_it_takes_away_and_all_is_well_when_it_is_back(
    kafka: LocalCluster, cluster: Cluster
) -> None:
    with Admin(cluster) as admin:
        admin.create_topic("health-alone", assignments=[[3]])
        admin.create_topic("health-tight", assignments=[[3, 1]], settings={"min.insync.replicas": "2"})
        admin.create_topic("health-spare", assignments=[[3, 1, 2]], settings={"min.insync.replicas": "1"})
    assert not [each for each in _verdict(cluster).findings if each.severity.name == "CRITICAL"]
    before = time.time()
    kafka.kill(3)
    eventually(lambda: _about(_verdict(cluster), "broker-away", "broker 3"), "broker 3 is away", seconds=30)
    eventually(lambda: _about(_verdict(cluster), "under-replicated", "health-spare-0"), seconds=30)
    verdict = _verdict(cluster)
    assert verdict.state is State.UNHEALTHY
    assert _about(verdict, "offline-partitions", "health-alone-0")
    assert _about(verdict, "under-min-isr", "health-tight-0")
    [away] = _about(verdict, "broker-away", "broker 3")
    # A controller that was elected since does not know when the broker last fetched metadata.
    assert away.since is None or abs(away.since - before) < 10
    result = run("health", "--json", "--bootstrap", kafka.bootstrap)
    assert result.exit_code == 3
    assert json.loads(result.stdout)["state"] == "unhealthy"
    kafka.restart(3)
    waited = run("health", "--exit-when-healthy", "--for", "60s", "--every", "300ms", "--bootstrap", kafka.bootstrap)
    assert waited.exit_code == 0, waited.stdout
    verdict = _verdict(cluster)
    assert not {"broker-away", "offline-partitions", "under-min-isr"} & {each.check for each in verdict.findings}
    moved = _about(verdict, "leaders-not-preferred", "health-spare-0")
    assert moved, "the leader moved, and the preferred one is back"
    with Admin(cluster) as admin:
        admin.delete_topics(["health-alone", "health-tight", "health-spare"])
    assert not _about(_verdict(cluster), "leaders-not-preferred", "health-spare-0")


def _down(reports: list[BrokerReport]) -> list[int]:
    return [each.broker for each in reports if not each.is_up]


def test_the_probe_notices_a_frozen_broker_within_its_interval_and_says_which(
    kafka: LocalCluster, cluster: Cluster
) -> None:
    with Prober(cluster, every=EVERY, topic="health-frozen") as prober:
        eventually(lambda: len(prober.reports()) == 3 and min(each.received for each in prober.reports()) >= 2)
        monitor = Monitor(cluster, every=60.0, prober=prober)
        with Server(routed(monitor.routes)) as server, contextlib.closing(_Client(server.url)) as client:
            kafka.freeze(2)
            frozen_at = time.monotonic()
            eventually(lambda: _down(prober.reports()) == [2], seconds=10)
            # One interval until the next record goes out, one for its answer; the rest is for a busy machine.
            assert time.monotonic() - frozen_at < 2 * EVERY + 1.0
            assert 'ottla_health_probe_up{broker="2",partition_id="1"} 0' in client.text("/metrics")
            assert client.status("/health") == 503, "not looked at yet"
            monitor.look()
            page = client.json("/health")
            assert page["state"] == "unhealthy"
            about = {each["check"] for each in page["findings"] if each["subject"] == "broker 2"}
            # The controller gives it up after a few seconds: then it is away.
            assert about & {"broker-silent", "broker-away"}
            assert "probe" in about
            assert client.status("/nothing") == 404
            kafka.thaw(2)
            eventually(lambda: _down(prober.reports()) == [], seconds=30)
            eventually(lambda: monitor.look().state is not State.UNHEALTHY, seconds=30)
            assert client.status("/health") == 200
            text = client.text("/metrics")
            assert "kafka_brokers 3" in text
            assert "kminion_end_to_end_roundtrip_latency_seconds_count" in text
        reports = prober.reports()
    assert [each.lost for each in reports] == [0, 0, 0]
    assert [each.duplicates for each in reports] == [0, 0, 0]
    assert [each.failed > 0 for each in reports] == [False, True, False]


class _Client:
    def __init__(self, url: str) -> None:
        self._url = url

    def close(self) -> None:
        pass

    def status(self, path: str) -> int:
        return self._get(path)[0]

    def text(self, path: str) -> str:
        return self._get(path)[1]

    def json(self, path: str) -> Any:
        return json.loads(self.text(path))

    def _get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self._url + path, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()


def test_a_broker_that_is_killed_under_the_probe_comes_back_with_nothing_lost(
    kafka: LocalCluster, cluster: Cluster
) -> None:
    with Prober(cluster, every=0.2, topic="health-killed") as prober:
        eventually(lambda: len(prober.reports()) == 3 and min(each.received for each in prober.reports()) >= 3)
        kafka.kill(1)
        eventually(lambda: _down(prober.reports()) == [1])
        kafka.restart(1)
        eventually(lambda: _down(prober.reports()) == [], seconds=30)
        received = prober.reports()[0].received
        eventually(lambda: prober.reports()[0].received >= received + 3)
        assert [each.lost for each in prober.reports()] == [0, 0, 0]


def test_without_a_majority_of_controllers_the_verdict_says_so(kafka: LocalCluster, cluster: Cluster) -> None:
    assert _verdict(cluster).state is not State.UNHEALTHY
    history = History()
    kafka.kill(2, 3)

    def is_said() -> bool:
        nonlocal history
        verdict, history = judge(look(cluster, timeout=8.0), history)
        checks = {each.check for each in verdict.findings}
        return "broker-silent" in checks and bool({"no-controller", "controller-lag"} & checks)

    eventually(is_said, "a lost majority is noticed", seconds=60)
    kafka.restart(2, 3)
    eventually(lambda: _verdict(cluster).state is not State.UNHEALTHY, seconds=60)


def test_a_leftover_throttle_is_named_until_it_is_gone(kafka: LocalCluster, cluster: Cluster) -> None:
    admin = confluent_admin.AdminClient({"bootstrap.servers": kafka.bootstrap})

    def set_rate(operation: Any) -> None:
        entry = confluent_admin.ConfigEntry(
            "leader.replication.throttled.rate", "1000000", incremental_operation=operation
        )
        [done] = admin.incremental_alter_configs(
            [confluent_admin.ConfigResource("BROKER", "2", incremental_configs=[entry])]
        ).values()
        done.result(30)

    with Admin(cluster) as ours:
        ours.create_topic("health-throttled", replicas=2, settings={"leader.replication.throttled.replicas": "0:1,0:2"})
        set_rate(confluent_admin.AlterConfigOpType.SET)
        eventually(lambda: _about(_verdict(cluster), "throttle-left", "broker 2"))
        assert _about(_verdict(cluster), "throttle-left", "health-throttled")
        set_rate(confluent_admin.AlterConfigOpType.DELETE)
        ours.alter_settings("health-throttled", {"leader.replication.throttled.replicas": None})
        eventually(lambda: not _about(_verdict(cluster), "throttle-left", "broker 2"))
        ours.delete_topics("health-throttled")
