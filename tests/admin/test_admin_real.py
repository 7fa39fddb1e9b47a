"""Admin against three real brokers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import confluent_kafka
import pytest

from ottla.admin import EARLIEST, LATEST, MAX_TIMESTAMP, Admin, NewTopic, OffsetAt
from ottla.cluster import LocalCluster
from ottla.errors import BrokerError, ErrorCode
from ottla.model import TopicPartition

pytestmark = pytest.mark.broker

T0 = TopicPartition("admin-offsets", 0)


@pytest.fixture(scope="module")
def admin(kafka: LocalCluster) -> Iterator[Admin]:
    with Admin(kafka.bootstrap) as opened:
        yield opened


def test_a_new_topic_can_be_written_to_at_once(kafka: LocalCluster, admin: Admin) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "retries": 0})
    failed: list[object] = []
    for number in range(3):
        name = f"admin-new-{number}"
        admin.create_topic(name, partitions=6, replicas=3, settings={"retention.ms": "3600000"})
        for partition in range(6):
            producer.produce(name, b"x", partition=partition, on_delivery=lambda error, _: failed.append(error))
        assert producer.flush(20) == 0
        assert failed == [None] * 6 * (number + 1)
        admin.delete_topics(name)


def test_a_deleted_topic_can_be_created_again_at_once(admin: Admin) -> None:
    for partitions in (1, 2, 3):
        admin.create_topic("admin-again", partitions=partitions, replicas=3)
        [described] = admin.describe_topics(["admin-again"])
        assert len(described.partitions) == partitions
        assert described.replicas == 3
        admin.delete_topics("admin-again")
    assert "admin-again" not in admin.topic_names()


def test_replicas_can_be_assigned_by_hand(admin: Admin) -> None:
    admin.create_topic("admin-assigned", assignments=[[2, 3], [3, 1]])
    [described] = admin.describe_topics("admin-assigned")
    assert [partition.replicas for partition in described.partitions] == [(2, 3), (3, 1)]
    assert [partition.leader for partition in described.partitions] == [2, 3]
    admin.delete_topics("admin-assigned")


@pytest.mark.parametrize(
    ("topic", "code", "text"),
    [
        (NewTopic(name="admin-many", replicas=9), ErrorCode.invalid_replication_factor, "between 1 and the number of"),
        (NewTopic(name="admin-set", settings={"no.such": "1"}), ErrorCode.invalid_config, "no.such"),
        (NewTopic(name="admin-set", settings={"retention.ms": "soon"}), ErrorCode.invalid_config, "soon"),
    ],
)
def test_what_the_broker_refuses_is_reported_in_its_words(
    admin: Admin, topic: NewTopic, code: ErrorCode, text: str
) -> None:
    with pytest.raises(BrokerError) as caught:
        admin.create_topics([topic])
    assert caught.value.code is code
    assert text in str(caught.value)
    assert topic.name in caught.value.context


def test_an_existing_topic_is_refused(admin: Admin) -> None:
    admin.create_topic("admin-twice")
    with pytest.raises(BrokerError, match="admin-twice: TOPIC_ALREADY_EXISTS"):
        admin.create_topic("admin-twice")
    admin.delete_topics("admin-twice")


def test_offsets_are_found_by_place_and_by_time(kafka: LocalCluster, admin: Admin) -> None:
    admin.create_topic(T0.topic, partitions=3, replicas=3)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(10):
        producer.produce(T0.topic, b"x", partition=0, timestamp=1_000_000 + 1000 * number)
    assert producer.flush(20) == 0

    assert [result.offset for result in admin.list_offsets(T0.topic, EARLIEST).values()] == [0, 0, 0]
    assert [result.offset for result in admin.list_offsets(T0.topic, LATEST).values()] == [10, 0, 0]
    at_time = admin.list_offsets([T0], datetime.fromtimestamp(1004.5, UTC))
    assert at_time == {T0: OffsetAt(5, 1_005_000, 0)}
    assert admin.list_offsets([T0], 1_004_000)[T0].offset == 4
    assert admin.list_offsets([T0], MAX_TIMESTAMP)[T0] == OffsetAt(9, 1_009_000, 0)
    assert admin.list_offsets([T0], datetime.now(UTC))[T0].offset == -1
    admin.delete_topics(T0.topic)


@pytest.mark.usefixtures("hasty_about_unknown_topics")
def test_offsets_of_a_missing_topic_are_an_error(admin: Admin) -> None:
    with pytest.raises(BrokerError, match="admin-missing: UNKNOWN_TOPIC_OR_PARTITION"):
        admin.list_offsets("admin-missing", timeout=10)


def test_it_works_through_tls_and_scram(kafka: LocalCluster) -> None:
    assert kafka.secure_bootstrap is not None
    with Admin(kafka.secure_bootstrap, security=kafka.security("alice")) as admin:
        admin.create_topic("admin-secure", partitions=3, replicas=3)
        assert len(admin.list_offsets("admin-secure")) == 3
        admin.delete_topics("admin-secure")
