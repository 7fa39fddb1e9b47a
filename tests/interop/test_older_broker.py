"""Brokers of the 3.x line: other API versions are negotiated, and the same records arrive."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from ottla import Consumer, Producer, Protocol, Reader
from ottla.admin import Admin, OffsetSpec
from ottla.cluster import LocalCluster
from ottla.cluster.security import Mechanism
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster

from .ours import encoded, fetched, new_producer, read, stamped, write
from .samples import CODECS, UNUSUAL

pytestmark = pytest.mark.broker

AT = TopicPartition("older", 0)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("older")
    with LocalCluster(
        "older", brokers=1, version="3.9.2", secure=True, plaintext=True, dir=folder, topics=["older"]
    ) as cluster:
        yield cluster


def test_records_make_the_round_trip_with_every_codec(older: LocalCluster) -> None:
    with Cluster(older.bootstrap) as cluster, Admin(cluster) as admin:
        producer = new_producer(cluster)
        for i, codec in enumerate(CODECS):
            start = i * len(UNUSUAL)
            batches = [stamped(batch, producer, start) for batch in encoded(UNUSUAL, codec)]
            assert write(cluster, AT, batches) == [start]
            assert read(fetched(cluster, AT, start)) == list(UNUSUAL)
        stop = admin.list_offsets([AT], OffsetSpec.LATEST)[AT].offset
        assert stop == len(CODECS) * len(UNUSUAL)
        assert admin.list_offsets([AT], datetime(1970, 1, 1, tzinfo=UTC))[AT].offset == 0


def test_producer_reader_and_a_classic_group_work_together(older: LocalCluster) -> None:
    topic = "older-together"
    values = [b"value %d" % i for i in range(1000)]
    with Admin(older.bootstrap) as admin:
        admin.create_topic(topic, partitions=3)
    with Producer(older.bootstrap, compression="zstd") as producer:
        producer.send_many(topic, values)
    with Reader(older.bootstrap) as reader:
        read_back = [value for batch in reader.read(topic) for value in batch.column("value").to_pylist()]
        assert sorted(read_back) == sorted(values)
        assert reader.count(topic) == len(values)
    got: list[bytes] = []
    with Consumer(older.bootstrap, group="older", topics=topic) as consumer:
        while len(got) < len(values):
            batch = consumer.poll(20)
            assert batch is not None
            got += batch.column("value").to_pylist()
        consumer.commit()
        assert sum(committed.offset for committed in consumer.committed().values()) == len(values)
        membership = consumer._subscription.membership
        assert membership is not None
        assert membership.protocol is Protocol.CLASSIC
    assert sorted(got) == sorted(values)


def test_topics_come_and_go_over_a_secure_listener(older: LocalCluster) -> None:
    assert older.secure_bootstrap is not None
    with Admin(older.secure_bootstrap, security=older.security("alice")) as admin:
        admin.create_topic("fleeting", partitions=2)
        assert admin.describe_topics("fleeting")[0].partitions[1].leader == 1
        admin.delete_topics("fleeting")
        assert "fleeting" not in admin.topic_names()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN", "OAUTHBEARER"])
def test_every_mechanism_is_let_in(older: LocalCluster, mechanism: Mechanism) -> None:
    assert older.secure_bootstrap is not None
    with Admin(older.secure_bootstrap, security=older.security("alice", mechanism=mechanism)) as admin:
        assert "older" in admin.topic_names()
