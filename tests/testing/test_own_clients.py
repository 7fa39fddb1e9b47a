"""Ottla's own network and admin rooms on the fake, with faults that they must survive."""

from __future__ import annotations

import pytest
from tests.waiting import eventually

from ottla import Consumer, Producer, Reader
from ottla.admin import EARLIEST, LATEST, Admin
from ottla.config import Timeouts
from ottla.errors import BrokerError, ErrorCode
from ottla.model import TopicPartition
from ottla.testing import FakeKafka, When

from .raw import RawClient, make_batch, produce

QUICK = Timeouts(connect=5.0, request=2.0, total=30.0)


def test_topics_are_created_described_measured_and_deleted() -> None:
    with FakeKafka(brokers=3, auto_create=None) as kafka, Admin(kafka.bootstrap, timeouts=QUICK) as admin:
        admin.create_topic("t", partitions=2, replicas=3, settings={"retention.ms": "1000"})
        with RawClient(kafka.addresses[kafka.leader("t", 1)]) as client:
            produce(client, make_batch(3), partition=1)
        assert admin.topic_names() == ["t"]
        assert admin.describe_topics("t")[0].replicas == 3
        ends = admin.list_offsets("t", LATEST)
        assert [ends[TopicPartition("t", p)].offset for p in (0, 1)] == [0, 3]
        admin.delete_topics("t")
        assert kafka.topics == {}


def test_calls_survive_errors_cuts_silence_and_a_leader_move() -> None:
    with FakeKafka(brokers=3, topics={"t": 1}) as kafka, Admin(kafka.bootstrap, timeouts=QUICK) as admin:
        faults = [
            kafka.fail("ListOffsets", ErrorCode.leader_not_available),
            kafka.cut("ListOffsets", when=When.AFTER_HANDLING),
            kafka.half_response("ListOffsets"),
            kafka.silence("ListOffsets"),
        ]
        for _ in faults:
            assert admin.list_offsets("t", EARLIEST)[TopicPartition("t", 0)].offset == 0
        assert [fault.hits for fault in faults] == [1, 1, 1, 1]
        kafka.move_leader("t", 0, to=kafka.leader("t", 0) % 3 + 1)
        assert admin.list_offsets("t", LATEST)[TopicPartition("t", 0)].offset == 0


def test_a_refusal_of_the_fake_is_a_broker_error() -> None:
    refused = pytest.raises(BrokerError, match="INVALID_REPLICATION_FACTOR")
    with FakeKafka(auto_create=None) as kafka, Admin(kafka.bootstrap, timeouts=QUICK) as admin, refused:
        admin.create_topic("t", replicas=2)


def test_topics_are_created_for_every_client(fake_kafka: FakeKafka) -> None:
    """Ottla's own clients decline automatic creation, and the fixture creates topics nevertheless."""
    with Producer(fake_kafka.bootstrap) as producer:
        producer.send("written", b"value").result(60)
    assert [record.value for record in fake_kafka.records("written", 0)] == [b"value"]
    with Reader(fake_kafka.bootstrap) as reader:
        assert reader.count("read") == 0
    with Consumer(fake_kafka.bootstrap, group="g", topics="consumed") as consumer:
        eventually(lambda: consumer.poll(0.1) is None and consumer.assignment)
    assert set(fake_kafka.topics) == {"written", "read", "consumed"}
