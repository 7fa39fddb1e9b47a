"""The low-level producer: one partition, one broker, answers read with a timeout (row P8)."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from ottla import PartitionProducer, Timeouts
from ottla.errors import ConnectionLost, ErrorCode, InputError, RequestTimedOut
from ottla.testing import FakeKafka
from ottla.wire.columns import from_list
from ottla.wire.encode import encode

PRODUCE = 0


@pytest.fixture
def fake() -> Iterator[FakeKafka]:
    with FakeKafka(brokers=1, topics={"clicks": 2}) as kafka:
        yield kafka


def test_answers_come_in_order_with_the_offsets_of_each_batch(fake: FakeKafka) -> None:
    with PartitionProducer(fake.bootstrap, ("clicks", 1)) as producer:
        numbers = [producer.send([b"a", (b"k", b"b")]), producer.send([b"c"])]
        answers = [producer.read(5.0), producer.read(5.0)]
    assert [answer.number for answer in answers if answer] == numbers
    assert [str(answer.range) for answer in answers if answer] == ["clicks-1[0, 2)", "clicks-1[2, 3)"]
    assert [record.value for record in fake.records("clicks", 1)] == [b"a", b"b", b"c"]


def test_a_table_and_a_finished_batch_can_be_sent(fake: FakeKafka) -> None:
    batch = next(encode(from_list([b"x", b"y"]), now_ms=1, codec="zstd"))
    with PartitionProducer(fake.bootstrap, ("clicks", 0), compression="lz4") as producer:
        producer.send(pa.table({"value": ["a"], "key": [b"k"]}))
        producer.send(batch)
        assert [str(producer.read(5.0).range) for _ in range(2)] == ["clicks-0[0, 1)", "clicks-0[1, 3)"]  # type: ignore[union-attr]


def test_when_the_timeout_passes_the_answer_is_none_and_can_be_read_later(fake: FakeKafka) -> None:
    fake.delay(PRODUCE, seconds=0.5)
    with PartitionProducer(fake.bootstrap, ("clicks", 0)) as producer:
        producer.send([b"a"])
        assert producer.read(0.01) is None
        assert producer.waiting == 1
        answer = producer.read(5.0)
    assert answer is not None
    assert answer.range is not None


def test_a_refusal_is_a_value(fake: FakeKafka) -> None:
    with PartitionProducer(fake.bootstrap, ("clicks", 7)) as producer:
        producer.send([b"a"])
        answer = producer.read(5.0)
    assert answer is not None
    assert answer.range is None
    assert answer.error is not None
    assert answer.error.code is ErrorCode.unknown_topic_or_partition


def test_a_broker_that_never_answers_times_out(fake: FakeKafka) -> None:
    fake.silence(PRODUCE)
    with PartitionProducer(fake.bootstrap, ("clicks", 0), timeouts=Timeouts(request=0.3)) as producer:
        producer.send([b"a"])
        with pytest.raises(RequestTimedOut):
            producer.read(5.0)


def test_a_connection_that_ends_is_an_error(fake: FakeKafka) -> None:
    fake.cut(PRODUCE)
    with PartitionProducer(fake.bootstrap, ("clicks", 0)) as producer:
        producer.send([b"a"])
        with pytest.raises(ConnectionLost):
            producer.read(5.0)


def test_without_acks_there_is_nothing_to_read(fake: FakeKafka) -> None:
    with PartitionProducer(fake.bootstrap, ("clicks", 0), acks=0) as producer:
        producer.send([b"a"])
        with pytest.raises(InputError, match="no answer is due"):
            producer.read(0.1)
        fake.wait_for_request(PRODUCE)


def test_nothing_to_send_is_said(fake: FakeKafka) -> None:
    with PartitionProducer(fake.bootstrap, ("clicks", 0)) as producer, pytest.raises(InputError, match="at least one"):
        producer.send([])
