"""A block commits when it ends and aborts if it raises; a record that fails aborts everything."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest

from ottla.cluster import LocalCluster
from ottla.errors import (
    BrokerError,
    ConfigError,
    ErrorCode,
    InputError,
    NotDelivered,
    OttlaError,
    RecordTooLarge,
    TransactionFailed,
)
from ottla.produce.delivery import Delivery
from ottla.produce.failures import FailedBatch
from ottla.produce.options import Spool, TopicOptions
from ottla.produce.producer import Producer
from ottla.produce.transaction import end_transaction

from .conftest import NewProducer, NewTopic, fail, failing
from .reading import Log

pytestmark = pytest.mark.broker


def test_records_count_when_the_block_ends_and_not_before(log: Log, topic: str, new_producer: NewProducer) -> None:
    producer = new_producer()
    with producer.transaction():
        producer.send(topic, b"one")
        producer.send(topic, b"two")
        producer.flush(30)
        assert log.everything(topic) == [b"one", b"two"]
        assert log.visible(topic) == []
    assert log.committed(topic) == [b"one", b"two"]


def test_an_exception_aborts_and_comes_out_as_it_is(log: Log, topic: str, new_producer: NewProducer) -> None:
    producer = new_producer()
    mine = LookupError("mine")
    with failing(LookupError) as caught, producer.transaction():
        producer.send(topic, b"acknowledged").result(30)
        waiting = producer.send(topic, b"on its way")
        fail(mine)
    assert caught.value is mine
    assert waiting.done
    with producer.transaction():
        producer.send(topic, b"the next one works")
    assert b"acknowledged" in log.everything(topic)
    assert log.committed(topic) == [b"the next one works"]


def test_abort_ends_the_transaction_within_the_block(log: Log, topic: str, new_producer: NewProducer) -> None:
    producer = new_producer()
    with producer.transaction() as tx:
        producer.send(topic, b"aborted").result(30)
        tx.abort()
        with pytest.raises(TransactionFailed, match="no transaction is open"):
            producer.send(topic, b"too late")
        with pytest.raises(TransactionFailed, match="over already"):
            tx.prepare()
        tx.abort()
    assert log.everything(topic) == [b"aborted"]
    assert log.committed(topic) == []


def test_empty_transactions_commit_abort_and_prepare(
    kafka: LocalCluster, log: Log, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer()
    with producer.transaction():
        pass
    with producer.transaction() as tx:
        tx.abort()
    with failing(KeyError), producer.transaction():
        fail(KeyError())
    with producer.transaction() as tx:
        token = tx.prepare()
    end_transaction(kafka.bootstrap, token, commit=True)
    with producer.transaction():
        producer.send(topic, b"full")
    assert log.committed(topic) == [b"full"]


def test_all_ways_in_many_partitions_and_topics_and_threads_are_one_transaction(
    log: Log, new_topic: NewTopic, new_producer: NewProducer
) -> None:
    first, second = new_topic(6), new_topic(3)
    producer = new_producer()

    def fill(kind: bytes) -> None:
        for number in range(300):
            producer.send(first, b"%s send %d" % (kind, number), key=b"%d" % number)
        producer.send_many(second, [(b"%d" % n, b"%s list %d" % (kind, n)) for n in range(300)])
        producer.send_table(first, pa.table({"value": [b"%s table %d" % (kind, n) for n in range(300)]}))

    def together(kind: bytes) -> None:
        threads = [threading.Thread(target=fill, args=(kind + b" %d" % n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    with producer.transaction() as tx:
        together(b"no")
        producer.flush(60)
        tx.abort()
    with producer.transaction():
        together(b"yes")
    for topic, each in ((first, 600), (second, 300)):
        values = log.committed(topic)
        assert len(values) == len(set(values)) == 4 * each
        assert all(value.startswith(b"yes") for value in values)


def test_many_transactions_one_after_another(log: Log, new_topic: NewTopic, new_producer: NewProducer) -> None:
    topic = new_topic(3)
    producer = new_producer()
    for number in range(12):
        with producer.transaction() as tx:
            for _ in range(5):
                producer.send(topic, b"%02d" % number)
            if number % 4 == 3:
                tx.abort()
    kept = [b"%02d" % number for number in range(12) if number % 4 != 3 for _ in range(5)]
    assert log.committed(topic) == kept


def test_a_record_too_large_for_the_broker_aborts_everything(
    log: Log, new_topic: NewTopic, new_producer: NewProducer
) -> None:
    small, other = new_topic(**{"max.message.bytes": "2000"}), new_topic()
    producer = new_producer()
    with failing(TransactionFailed, match=f"{small}-0.*MESSAGE_TOO_LARGE") as caught, producer.transaction():
        producer.send(other, b"innocent")
        producer.send(small, b"x" * 5000)
    assert isinstance(caught.value.__cause__, NotDelivered)
    with producer.transaction():
        producer.send(other, b"next")
        producer.send(small, b"next")
    assert log.committed(other) == log.committed(small) == [b"next"]


@pytest.mark.usefixtures("hasty_about_unknown_topics")
def test_an_unknown_topic_aborts_everything(log: Log, topic: str, new_producer: NewProducer) -> None:
    producer = new_producer()
    with failing(TransactionFailed, match="UNKNOWN_TOPIC_OR_PARTITION") as caught, producer.transaction():
        producer.send(topic, b"innocent")
        producer.send("no-such-topic", b"guilty")
    assert isinstance(caught.value.__cause__, NotDelivered)
    assert isinstance(caught.value.__cause__.cause, BrokerError)
    with producer.transaction():
        producer.send(topic, b"next")
    assert log.committed(topic) == [b"next"]


def _partition_99(producer: Producer, topic: str) -> Delivery:
    return producer.send(topic, b"guilty", partition=99)


def _told_by_flush(producer: Producer, topic: str) -> Delivery:
    delivery = producer.send(topic, b"x" * 5000)
    with pytest.raises(NotDelivered):
        producer.flush(30)
    return delivery


def _told_by_delivery(producer: Producer, topic: str) -> Delivery:
    delivery = producer.send(topic, b"x" * 5000)
    assert delivery.exception(30) is not None
    return delivery


@pytest.mark.parametrize("go_wrong", [_partition_99, _told_by_flush, _told_by_delivery])
def test_a_failure_that_the_program_has_seen_still_aborts(
    log: Log, new_topic: NewTopic, new_producer: NewProducer, go_wrong: Callable[[Producer, str], Delivery]
) -> None:
    topic = new_topic(**{"max.message.bytes": "2000"})
    failed: list[FailedBatch] = []
    producer = new_producer(on_failed=failed.append) if go_wrong is _told_by_delivery else new_producer()
    with failing(TransactionFailed, match="was aborted"), producer.transaction():
        producer.send(topic, b"innocent")
        delivery = go_wrong(producer, topic)
    assert delivery.exception(0) is not None
    assert bool(failed) is (go_wrong is _told_by_delivery)
    with producer.transaction():
        producer.send(topic, b"next")
    assert log.committed(topic) == [b"next"]


def test_a_batch_hook_that_fails_aborts(log: Log, topic: str, new_producer: NewProducer) -> None:
    def hook(topic: str, partition: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.column("value")[0].as_py() == b"guilty":
            raise ArithmeticError("hooked")
        return rows

    producer = new_producer(batch_hook=hook)
    with failing(TransactionFailed, match="hooked"), producer.transaction():
        producer.send(topic, b"guilty")
    with producer.transaction():
        producer.send(topic, b"next")
    assert log.committed(topic) == [b"next"]


def test_a_record_refused_at_the_call_aborts_only_if_the_program_lets_it(
    log: Log, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer(max_record_bytes=1000)
    with producer.transaction():
        with pytest.raises(RecordTooLarge):
            producer.send(topic, b"x" * 5000)
        producer.send(topic, b"kept")
    with failing(RecordTooLarge), producer.transaction():
        producer.send(topic, b"dropped")
        producer.send(topic, b"x" * 5000)
    assert log.committed(topic) == [b"kept"]


def test_sending_outside_a_transaction_is_refused(topic: str, new_producer: NewProducer) -> None:
    producer = new_producer()
    sends: list[Callable[[], object]] = [
        lambda: producer.send(topic, b"value"),
        lambda: producer.send(topic, b"value", key=b"key"),
        lambda: producer.send_many(topic, [b"value"]),
        lambda: producer.send_table(topic, pa.table({"value": [b"value"]})),
    ]
    for number in range(2):
        for send in sends:
            with pytest.raises(TransactionFailed, match=r"no transaction is open.*with producer\.transaction"):
                send()
        if number == 0:
            with producer.transaction():
                sends[0]()


def test_a_transaction_within_a_transaction_is_refused(log: Log, topic: str, new_producer: NewProducer) -> None:
    producer = new_producer()
    with producer.transaction() as tx:
        with failing(TransactionFailed, match="open already"), producer.transaction():
            pass
        with failing(TransactionFailed, match="open already"), tx:
            pass
        producer.send(topic, b"outer")
    assert log.committed(topic) == [b"outer"]


def test_a_transaction_that_is_over_touches_the_next_one_not(log: Log, topic: str, new_producer: NewProducer) -> None:
    producer = new_producer()
    with producer.transaction() as old:
        producer.send(topic, b"first")
    with producer.transaction():
        producer.send(topic, b"second")
        old.abort()
        with pytest.raises(TransactionFailed, match="over already"):
            old.send_offsets("group", {(topic, 0): 1})  # type: ignore[dict-item]
        with pytest.raises(TransactionFailed, match="over already"):
            old.prepare()
    assert log.committed(topic) == [b"first", b"second"]


def test_close_aborts_an_open_transaction(log: Log, topic: str, new_producer: NewProducer) -> None:
    producer = new_producer()
    with failing(OttlaError, match="over already"), producer.transaction():
        producer.send(topic, b"open").result(30)
        producer.close()
    assert log.everything(topic) == [b"open"]
    assert log.committed(topic) == []


def test_a_callback_cannot_end_a_transaction(log: Log, topic: str, new_producer: NewProducer) -> None:
    producer = new_producer()
    seen: list[Exception] = []

    def end(_: Delivery) -> None:
        try:
            tx.abort()
        except OttlaError as error:
            seen.append(error)

    with producer.transaction() as tx:
        producer.send(topic, b"value").add_done_callback(end)
        producer.flush(30)
    assert [type(error) for error in seen] == [TransactionFailed]
    assert log.committed(topic) == [b"value"]


def test_settings_that_exclude_transactions_are_refused(tmp_path: object, new_producer: NewProducer) -> None:
    for options in ({"acks": 1}, {"acks": 0}, {"topics": {"one": TopicOptions(acks=1)}}):
        with pytest.raises(ConfigError, match="acks='all'"):
            new_producer(**options)
    with pytest.raises(ConfigError, match="idempotent=True"):
        new_producer(idempotent=False)
    with pytest.raises(ConfigError, match="spool"):
        new_producer(spool=Spool(str(tmp_path)))
    with pytest.raises(ConfigError, match="transactional_id must be"):
        new_producer(transactional_id="")
    with pytest.raises(ConfigError, match="transaction_timeout must be"):
        new_producer(transaction_timeout=0)
    with pytest.raises(ConfigError, match=r"needs Producer\(..., transactional_id"):
        new_producer(transactional_id=None).transaction()


def test_a_timeout_longer_than_the_brokers_allow_is_said_so(new_producer: NewProducer) -> None:
    producer = new_producer(transaction_timeout=100_000)
    with failing(BrokerError) as caught, producer.transaction():
        pass
    assert isinstance(caught.value, BrokerError)
    assert caught.value.code is ErrorCode.invalid_transaction_timeout


def test_offsets_that_are_none_are_refused_at_the_call(topic: str, new_producer: NewProducer) -> None:
    producer = new_producer()
    with producer.transaction() as tx:
        for wrong in ({(topic, -1): 0}, {(topic, 0): -1}, {topic: 0}, {(topic, 0): "1"}, {(0, topic): 1}):
            with pytest.raises(InputError, match="next offset to read"):
                tx.send_offsets("group", wrong)  # type: ignore[arg-type]
