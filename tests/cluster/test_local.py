"""Real brokers: started, killed, frozen, restarted, kept, orphaned; and nothing remains of them afterwards."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla.admin import Admin
from ottla.cluster import Condition, Data, LocalCluster, lifecycle
from ottla.cluster.ports import free_ports
from ottla.cluster.process import Life, wait_until
from ottla.cluster.readiness import known_brokers
from ottla.cluster.security import Mechanism
from ottla.cluster.state import ClusterFolder, NodeState, Ports
from ottla.cluster.tools import run_tool
from ottla.config import Address, Security
from ottla.engines.fleet.store import open_store
from ottla.engines.fleet.units import Charter
from ottla.errors import LocalClusterError
from ottla.net import Cluster, Deadline

from .conftest import processes_of

pytestmark = pytest.mark.broker


def _brokers(bootstrap: str, security: Security | None = None) -> set[int]:
    with Cluster(bootstrap, security=security or Security()) as client:
        return set(client.metadata(deadline=Deadline.after(20)).brokers)


def _lives(cluster: LocalCluster) -> list[Life]:
    return [broker.life for broker in cluster.status().brokers]


def test_three_brokers_run_as_controllers_and_know_each_other(kafka: LocalCluster) -> None:
    status = kafka.status()
    assert status.condition is Condition.RUNNING
    assert [broker.roles for broker in status.brokers] == ["broker+controller"] * 3
    assert all((broker.memory_bytes or 0) > 1 << 20 for broker in status.brokers)
    for address in kafka.bootstrap.split(","):
        host, port = address.split(":")
        assert known_brokers(Address(host, int(port)), timeout=10) == {1, 2, 3}


def test_a_killed_broker_is_gone_and_comes_back(kafka: LocalCluster) -> None:
    kafka.kill(2)
    assert _lives(kafka) == [Life.RUNNING, Life.DEAD, Life.RUNNING]
    assert kafka.status().condition is Condition.DEGRADED
    kafka.restart(2)
    assert kafka.status().condition is Condition.RUNNING
    assert _brokers(kafka.bootstrap) == {1, 2, 3}


def test_a_stopped_broker_leaves_the_cluster_at_once_and_comes_back(kafka: LocalCluster) -> None:
    kafka.stop(3)
    assert wait_until(lambda: _brokers(kafka.bootstrap) == {1, 2}, timeout=20)
    assert "shut down completed" in kafka.logs(3).read_text()
    kafka.restart(3)
    assert _brokers(kafka.bootstrap) == {1, 2, 3}


def test_a_frozen_broker_accepts_and_does_not_answer_until_it_is_thawed(kafka: LocalCluster) -> None:
    host, port = kafka.bootstrap.split(",")[0].split(":")
    kafka.freeze(1)
    try:
        assert _lives(kafka)[0] is Life.FROZEN
        assert known_brokers(Address(host, int(port)), timeout=0.5) == frozenset()
    finally:
        kafka.thaw(1)
    assert _lives(kafka)[0] is Life.RUNNING
    assert wait_until(lambda: known_brokers(Address(host, int(port)), timeout=2) == {1, 2, 3}, timeout=20)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"])
def test_the_secure_listener_takes_every_mechanism(kafka: LocalCluster, mechanism: Mechanism) -> None:
    assert kafka.secure_bootstrap is not None
    assert _brokers(kafka.secure_bootstrap, kafka.security("alice", mechanism=mechanism)) == {1, 2, 3}


def test_the_tls_listener_takes_the_client_certificate(kafka: LocalCluster) -> None:
    assert kafka.ssl_bootstrap is not None
    assert _brokers(kafka.ssl_bootstrap, kafka.mutual_tls()) == {1, 2, 3}


def test_an_unknown_broker_is_refused_with_the_known_ones(kafka: LocalCluster) -> None:
    with pytest.raises(LocalClusterError, match=r"has no broker 9: its brokers are 1, 2, 3"):
        kafka.kill(9)


def test_a_second_object_finds_the_running_cluster_and_leaves_it_alone(kafka: LocalCluster) -> None:
    directory = Path(kafka.status().directory).parent
    with LocalCluster("tests", dir=directory) as same:
        assert same.bootstrap == kafka.bootstrap
    assert LocalCluster.attach("tests", directory).bootstrap == kafka.bootstrap
    assert kafka.status().condition is Condition.RUNNING
    with pytest.raises(LocalClusterError, match="brokers: 3, not 5"):
        LocalCluster("tests", brokers=5, dir=directory).up()


def test_kafkas_own_tools_run_from_the_same_jars(kafka: LocalCluster) -> None:
    with Admin(kafka.bootstrap) as admin:
        admin.create_topic("tools", partitions=1, replicas=3)
    run_tool(
        "org.apache.kafka.tools.ConsoleProducer",
        "--bootstrap-server",
        kafka.bootstrap,
        "--topic",
        "tools",
        stdin=b"hello\n",
    )
    segment = kafka.data(1) / "tools-0" / "00000000000000000000.log"
    assert wait_until(lambda: segment.stat().st_size > 0, timeout=10)
    dump = run_tool("org.apache.kafka.tools.DumpLogSegments", "--files", str(segment), "--print-data-log").decode()
    assert "payload: hello" in dump


def test_data_is_kept_on_request(folder: Path, kafka: LocalCluster) -> None:
    port = free_ports(1, random.Random())[0]
    cluster = LocalCluster("kept", topics=["clicks:2", "users:1:1:compact"], redis=True, dir=folder, port=port)
    assert cluster.up() is True
    assert cluster.bootstrap == f"127.0.0.1:{port}"
    assert cluster.up() is False
    assert cluster.bootstrap != kafka.bootstrap  # two clusters side by side
    assert cluster.redis_url is not None
    with closing(open_store(cluster.redis_url, "etl")) as store:
        store.found(Charter(max_attempts=7))
    before = cluster.bootstrap

    assert cluster.down(Data.KEEP) is True
    assert processes_of(folder) == []
    assert cluster.status().condition is Condition.STOPPED
    with socket.create_server(("127.0.0.1", port)), pytest.raises(LocalClusterError, match=f"listens on port {port}"):
        cluster.up()
    with LocalCluster("kept", dir=folder) as resumed:
        assert resumed.bootstrap == before
        with Admin(resumed.bootstrap) as admin:
            assert {"clicks", "users"} <= set(admin.topic_names())
        assert resumed.redis_url is not None
        with closing(open_store(resumed.redis_url, "etl")) as store:
            assert store.found(Charter()).max_attempts == 7
    # The block did not create the data, so it did not remove it.
    assert cluster.status().condition is Condition.STOPPED
    assert cluster.down() is True
    assert cluster.status().condition is Condition.ABSENT
    assert processes_of(folder) == []


_OWNER = """
import sys, time
from ottla.cluster import LocalCluster
with LocalCluster("owned", dir=sys.argv[1]):
    print("up", flush=True)
    time.sleep(600)
"""


def test_the_cluster_of_a_killed_program_is_removed(folder: Path) -> None:
    cluster = LocalCluster("owned", dir=folder)
    with subprocess.Popen([sys.executable, "-c", _OWNER, str(folder)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"up\n"
        assert cluster.status().condition is Condition.RUNNING
        owner.kill()
    assert cluster.status().condition in (Condition.ORPHANED, Condition.ABSENT)
    assert wait_until(lambda: cluster.status().condition is Condition.ABSENT, timeout=20)
    assert wait_until(lambda: processes_of(folder) == [], timeout=20)


def test_a_broker_that_ends_while_starting_is_explained_by_its_log(folder: Path) -> None:
    cluster = LocalCluster("broken", settings={"metric.reporters": "no.such.Reporter"}, dir=folder)
    with pytest.raises(LocalClusterError, match=r"(?s)broker 1 ended during startup.*no\.such\.Reporter"):
        cluster.up()
    assert cluster.status().condition is Condition.ABSENT
    assert processes_of(folder) == []


def test_a_port_that_another_process_takes_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        choose = lifecycle.fresh_nodes

        def unlucky(count: int, **arguments: Any) -> tuple[NodeState, ...]:
            first, *rest = choose(count, **arguments)
            return (replace(first, ports=Ports(taken, first.ports.controller)), *rest)

        monkeypatch.setattr(lifecycle, "fresh_nodes", unlucky)
        monkeypatch.setattr(lifecycle, "is_free", lambda port: True)
        with LocalCluster("unlucky", dir=folder) as cluster:
            assert str(taken) not in cluster.bootstrap
            assert _brokers(cluster.bootstrap) == {1}
            assert "Address already in use" in cluster.logs(1).read_text()


def test_a_missing_java_is_an_error_before_anything_is_started(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(LocalClusterError, match="no suitable Java found"):
        LocalCluster("c", dir=folder).up()
    assert not ClusterFolder(folder, "c").path.exists()
