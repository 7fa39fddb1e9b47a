"""How a real broker answers our batches: resends, its own clock, damage, and forwarding."""

from __future__ import annotations

import time

import pytest

from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.wire.batch import Batch, TimestampType
from ottla.wire.encode import NewBatch
from ottla.wire.restamp import restamp

from .conftest import MakeTopic
from .ours import encoded, fetched, new_producer, read, send, stamped, write
from .samples import CODECS, TIME, UNUSUAL, Sent

pytestmark = pytest.mark.broker


def test_a_batch_sent_again_gets_its_first_offset(cluster: Cluster, new_topic: MakeTopic) -> None:
    tp = TopicPartition(new_topic(), 0)
    producer = new_producer(cluster)
    batches = [stamped(batch, producer, 10 * i) for i, batch in enumerate(encoded(UNUSUAL[:50], in_one_batch=10))]
    assert write(cluster, tp, batches) == [0, 10, 20, 30, 40]
    assert write(cluster, tp, batches) == [0, 10, 20, 30, 40]
    assert read(fetched(cluster, tp)) == list(UNUSUAL[:50])


def test_a_gap_in_the_sequence_is_refused(cluster: Cluster, new_topic: MakeTopic) -> None:
    tp = TopicPartition(new_topic(), 0)
    producer = new_producer(cluster)
    (batch,) = encoded(UNUSUAL[:3])
    assert write(cluster, tp, [stamped(batch, producer, 0)]) == [0]
    assert send(cluster, tp, stamped(batch, producer, 4)).error_code == ErrorCode.out_of_order_sequence_number
    assert write(cluster, tp, [stamped(batch, producer, 3)]) == [3]


@pytest.mark.parametrize("codec", CODECS)
def test_a_damaged_batch_is_refused_also_after_restamping(cluster: Cluster, new_topic: MakeTopic, codec: str) -> None:
    tp = TopicPartition(new_topic(), 0)
    (batch,) = encoded(UNUSUAL[:3], codec)
    damaged = bytearray(batch.records)
    damaged[-1] ^= 1
    broken = NewBatch(batch.header, memoryview(damaged))
    assert send(cluster, tp, broken).error_code == ErrorCode.corrupt_message
    assert send(cluster, tp, stamped(broken, new_producer(cluster), 0)).error_code == ErrorCode.corrupt_message


@pytest.mark.parametrize("codec", CODECS)
def test_the_brokers_clock_is_read_where_the_topic_asks_for_it(
    cluster: Cluster, new_topic: MakeTopic, codec: str
) -> None:
    tp = TopicPartition(new_topic(settings={"message.timestamp.type": "LogAppendTime"}), 0)
    before = time.time() * 1000
    (batch,) = encoded(UNUSUAL, codec)
    answer = send(cluster, tp, batch)
    assert answer.error_code == 0
    assert before - 1000 <= answer.append_time <= time.time() * 1000 + 1000
    stored = list(fetched(cluster, tp))
    assert {batch.header.timestamp_type for batch in stored} == {TimestampType.LOG_APPEND}
    assert read(stored) == [record._replace(time=answer.append_time) for record in UNUSUAL]


@pytest.mark.parametrize("codec", CODECS)
def test_a_stored_batch_is_passed_on_as_it_is(cluster: Cluster, new_topic: MakeTopic, codec: str) -> None:
    home, mirror = (TopicPartition(new_topic(), 0) for _ in range(2))
    first = Sent(None, b"not at the same offset", (), TIME)
    write(cluster, mirror, encoded([first]))
    write(cluster, home, encoded(UNUSUAL, codec, in_one_batch=200))
    stored = list(fetched(cluster, home))
    passed_on = [NewBatch(restamp(batch.header, base_offset=0, leader_epoch=-1), batch.records) for batch in stored]
    assert write(cluster, mirror, passed_on) == [1, 201]
    copies: list[Batch] = list(fetched(cluster, mirror))
    assert read(copies) == [first, *UNUSUAL]
    assert [batch.records for batch in copies[1:]] == [batch.records for batch in stored]
    assert [batch.header.crc for batch in copies[1:]] == [batch.header.crc for batch in stored]
