"""Offsets of a consumer group are part of the transaction: they move only when it is committed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import confluent_kafka
import pytest
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.errors import BrokerError, ErrorCode, TransactionFailed
from ottla.model import GroupMember, TopicPartition

from .conftest import NewProducer, NewTopic, failing
from .reading import Log

pytestmark = pytest.mark.broker

NONE = -1001
"""confluent-kafka's value for no offset."""


def test_offsets_move_when_the_transaction_is_committed_and_not_when_it_is_aborted(
    log: Log, new_topic: NewTopic, new_producer: NewProducer, tid: str
) -> None:
    source, sink, group = new_topic(2), new_topic(), f"group-{tid}"
    producer = new_producer()
    with producer.transaction() as tx:
        producer.send(sink, b"aborted")
        tx.send_offsets(group, {TopicPartition(source, 0): 5})
        tx.abort()
    assert log.group_offsets(group, source, [0, 1]) == [NONE, NONE]
    with producer.transaction() as tx:
        producer.send(sink, b"committed")
        tx.send_offsets(group, {TopicPartition(source, 0): 7})
        tx.send_offsets(group, {TopicPartition(source, 1): 3, TopicPartition(source, 0): 8})
    assert log.group_offsets(group, source, [0, 1]) == [8, 3]
    with producer.transaction() as tx:
        tx.send_offsets(group, {})
    with producer.transaction() as tx:  # offsets alone
        tx.send_offsets(group, {TopicPartition(source, 0): 9})
    assert log.group_offsets(group, source, [0, 1]) == [9, 3]
    assert log.committed(sink) == [b"committed"]


@contextmanager
def _member(bootstrap: str, group: str, topic: str) -> Iterator[confluent_kafka.Consumer]:
    """A live member of a group that has its partitions."""
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
    with closing(confluent_kafka.Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        eventually(lambda: consumer.poll(0.1) is not None or bool(consumer.assignment()), "the group has formed")
        yield consumer


def test_an_outdated_member_is_refused_and_everything_aborted(
    kafka: LocalCluster, log: Log, new_topic: NewTopic, new_producer: NewProducer, tid: str
) -> None:
    source, sink, group = new_topic(), new_topic(), f"group-{tid}"
    producer = new_producer()
    tp = TopicPartition(source, 0)
    with _member(kafka.bootstrap, group, source) as consumer:
        member_id = consumer.memberid()
        assert member_id is not None
        with failing(BrokerError) as caught, producer.transaction() as tx:
            producer.send(sink, b"outdated")
            tx.send_offsets(GroupMember(group, member_id=member_id, generation=77), {tp: 4})
        assert isinstance(caught.value, BrokerError)
        assert caught.value.code is ErrorCode.illegal_generation
        assert f"{source}-0 for group {group}" in str(caught.value)
        with failing(BrokerError, match="UNKNOWN_MEMBER_ID"), producer.transaction() as tx:
            tx.send_offsets(GroupMember(group, member_id="nobody", generation=1), {tp: 4})
        with producer.transaction() as tx:
            producer.send(sink, b"current")
            tx.send_offsets(GroupMember(group, member_id=member_id, generation=1), {tp: 6})
        assert log.group_offsets(group, source, [0]) == [6]
    assert log.committed(sink) == [b"current"]


def test_refused_offsets_abort_also_when_the_program_looks_away(
    log: Log, topic: str, new_producer: NewProducer, tid: str
) -> None:
    producer = new_producer()
    nobody = GroupMember(f"group-{tid}", member_id="nobody", generation=1)
    with failing(TransactionFailed, match="was aborted.*ILLEGAL_GENERATION"), producer.transaction() as tx:
        producer.send(topic, b"value")
        with pytest.raises(BrokerError):
            tx.send_offsets(nobody, {TopicPartition(topic, 0): 4})
        # What joins an open batch is aborted with it; the next batch is refused.
        with pytest.raises(TransactionFailed, match=r"can only be aborted.*ILLEGAL_GENERATION"):
            eventually(lambda: producer.send(topic, b"more") is None)
    assert log.committed(topic) == []
