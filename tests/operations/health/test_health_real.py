"""Health on real brokers that nothing breaks: transactions, disks, quorum, versions, groups; and the server."""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from tests.admin.members import fill
from tests.waiting import eventually

from ottla.admin import Admin
from ottla.cluster import LocalCluster
from ottla.errors import ConfigError
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.operations.health import Limits, Prober, State, judge, look, probe_topic
from ottla.operations.health.findings import Finding


@pytest.fixture
def cluster(kafka: LocalCluster) -> Iterator[Cluster]:
    with Cluster(kafka.bootstrap) as opened:
        yield opened


@pytest.mark.broker
def test_a_look_sees_every_part_of_a_cluster(kafka: LocalCluster, cluster: Cluster) -> None:
    with Admin(cluster) as admin:
        admin.create_topic("health-parts", assignments=[[2]])
        fill(kafka.bootstrap, "health-parts", {0: 100})
        seen = look(cluster)
        admin.delete_topics("health-parts")
    assert seen.error is None
    assert not seen.unseen
    assert sorted(seen.brokers) == sorted(seen.versions) == sorted(seen.registered or {}) == [1, 2, 3]
    assert seen.quorum is not None
    assert [voter.id for voter in seen.quorum.voters] == [1, 2, 3]
    assert seen.quorum.leader in (1, 2, 3)
    assert abs((seen.quorum.now or 0) - time.time()) < 60
    assert seen.reassignments == ()
    assert seen.settings["health-parts"]["min.insync.replicas"] == "1"
    [directory] = seen.log_dirs.dirs[2]
    disk = shutil.disk_usage(directory.path)
    assert directory.total_bytes == disk.total
    assert directory.usable_bytes == pytest.approx(disk.free, rel=0.2)
    assert directory.used is not None
    partition = TopicPartition("health-parts", 0)
    assert directory.replicas[partition] > 0
    # All of its records are of the last hour.
    assert seen.growth[partition].rate == pytest.approx(directory.replicas[partition] / 3600)
    assert {spoken.finalized["metadata.version"] for spoken in seen.versions.values()} != {0}


@pytest.mark.broker
def test_an_open_transaction_is_named_while_it_is_open(kafka: LocalCluster, cluster: Cluster) -> None:
    with Admin(cluster) as admin:
        admin.create_topic("health-open", replicas=1)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": "health-hangs"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("health-open", b"x")
    producer.flush(60)

    def findings() -> list[Finding]:
        verdict, _ = judge(look(cluster), limits=Limits(transaction_seconds=0.2))
        return [each for each in verdict.findings if each.subject == "health-hangs"]

    eventually(findings)
    [finding] = findings()
    assert finding.affects == ("health-open-0",)
    assert finding.since is not None
    assert abs(finding.since - time.time()) < 60
    assert finding.command.startswith("ottla consume health-open --partition 0")
    producer.commit_transaction(60)
    eventually(lambda: not findings())


def test_a_cluster_that_is_away_is_a_verdict_too() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        with Cluster(f"127.0.0.1:{bound.getsockname()[1]}") as nothing:
            verdict, _ = judge(look(nothing, timeout=2.0))
    assert verdict.state is State.UNHEALTHY
    [finding] = verdict.findings
    assert finding.check == "unreachable"
    assert "connection refused" in finding.reason


@pytest.mark.broker
def test_a_probe_refuses_a_topic_that_is_not_its_own(kafka: LocalCluster, cluster: Cluster) -> None:
    with Admin(cluster) as admin:
        admin.create_topic("health-foreign", partitions=2, replicas=1)
        with pytest.raises(ConfigError, match="topic health-foreign exists and is not the probe's"):
            Prober(cluster, topic="health-foreign").start()
        assert {each.stop for each in admin.log_ranges("health-foreign").values()} == {0}
        assert len(admin.describe_topics("health-foreign")[0].partitions) == 2
        admin.delete_topics("health-foreign")


@pytest.mark.broker
def test_a_topic_that_a_probe_created_is_removed_when_asked(kafka: LocalCluster, cluster: Cluster) -> None:
    with Prober(cluster, every=0.2, topic="health-removed") as prober:
        eventually(lambda: prober.reports() and min(each.received for each in prober.reports()) >= 2)
        assert [each.partition for each in prober.reports()] == [0, 1, 2]
    probe_topic.remove(cluster, topic="health-removed", deadline=cluster.deadline())
    probe_topic.remove(cluster, topic="health-removed", deadline=cluster.deadline())
    with Admin(cluster) as admin:
        assert "health-removed" not in admin.topic_names()
