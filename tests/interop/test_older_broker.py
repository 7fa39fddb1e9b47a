"""Brokers of the 3.x line: other API versions are negotiated, and the same records arrive."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from ottla.admin import Admin, OffsetSpec
from ottla.cluster import LocalCluster
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster

from .ours import encoded, fetched, new_producer, read, stamped, write
from .samples import CODECS, UNUSUAL

pytestmark = pytest.mark.broker

AT = TopicPartition("older", 0)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("older")
    with LocalCluster("older", brokers=1, version="3.9.2", secure=True, dir=folder, topics=["older"]) as cluster:
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


def test_topics_come_and_go_over_a_secure_listener(older: LocalCluster) -> None:
    assert older.secure_bootstrap is not None
    with Admin(older.secure_bootstrap, security=older.security("alice")) as admin:
        admin.create_topic("fleeting", partitions=2)
        assert admin.describe_topics("fleeting")[0].partitions[1].leader == 1
        admin.delete_topics("fleeting")
        assert admin.topic_names() == ["older"]
