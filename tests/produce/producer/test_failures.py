"""Failures of the network and the brokers: nothing lost, nothing duplicated, nothing out of order."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.waiting import eventually

from ottla import Batching, Producer, RoundRobin
from ottla.config import Retry, Timeouts
from ottla.errors import ErrorCode, NotDelivered
from ottla.events import EpochBumped, Event
from ottla.testing import FakeKafka, When
from ottla.wire.batch import Batch

from .stand import SOON, new, values


def _trouble(kafka: FakeKafka, name: str) -> None:
    faults: dict[str, Callable[[], object]] = {
        "cut before": lambda: kafka.cut("Produce", times=3),
        "cut after": lambda: kafka.cut("Produce", times=3, when=When.AFTER_HANDLING),
        "half a response": lambda: kafka.half_response("Produce", times=3),
        "silence": lambda: kafka.silence("Produce", times=2),
        "not leader": lambda: kafka.fail("Produce", ErrorCode.not_leader_or_follower, times=5),
        "retriable": lambda: kafka.fail("Produce", ErrorCode.not_enough_replicas, times=5),
        "wrong number": lambda: kafka.fail("Produce", ErrorCode.out_of_order_sequence_number, times=2),
        "unknown id": lambda: kafka.fail("Produce", ErrorCode.unknown_producer_id, times=2),
        "old epoch": lambda: kafka.fail("Produce", ErrorCode.invalid_producer_epoch, times=2),
        "leader moved": lambda: kafka.move_leader("t", 0, to=3 - kafka.leader("t", 0)),
        "broker down": lambda: kafka.down(kafka.leader("t", 0)),
        "no producer id": lambda: kafka.fail("InitProducerId", ErrorCode.coordinator_load_in_progress, times=2),
        "no metadata": lambda: kafka.cut("Metadata", times=3),
    }
    faults[name]()


TROUBLES = (
    "cut before",
    "cut after",
    "half a response",
    "silence",
    "not leader",
    "retriable",
    "wrong number",
    "unknown id",
    "old epoch",
    "leader moved",
    "broker down",
    "no producer id",
    "no metadata",
)


@pytest.mark.parametrize("name", TROUBLES)
def test_nothing_is_lost_doubled_or_reordered(kafka: FakeKafka, name: str) -> None:
    expected = [b"%d" % i for i in range(600)]
    with new(kafka, timeouts=Timeouts(connect=2, request=1, total=10), batching=Batching(records=20, linger=0)) as p:
        deliveries = [p.send("t", value) for value in expected[:100]]
        if name not in ("no producer id", "no metadata"):
            deliveries[-1].result(SOON)
        _trouble(kafka, name)
        deliveries += [p.send("t", value) for value in expected[100:]]
        offsets = [delivery.result(SOON).offset for delivery in deliveries]
    assert values(kafka) == expected
    assert offsets == list(range(600))


@pytest.mark.parametrize("name", ["cut after", "not leader", "silence", "leader moved"])
def test_without_numbers_nothing_is_lost_or_reordered(kafka: FakeKafka, name: str) -> None:
    expected = [b"%d" % i for i in range(300)]
    options: dict[str, Any] = {"timeouts": Timeouts(connect=2, request=1, total=10), "idempotent": False, "acks": 1}
    with new(kafka, batching=Batching(records=20, linger=0), **options) as producer:
        producer.send("t", b"first").result(SOON)
        _trouble(kafka, name)
        for delivery in [producer.send("t", value) for value in expected]:
            delivery.result(SOON)
    once = list(dict.fromkeys(values(kafka)[1:]))  # a resend may duplicate a batch, but not reorder it
    assert once == expected


def test_the_first_batches_of_a_producer_keep_their_order_when_the_first_is_refused_for_a_while() -> None:
    # A broker accepts any number from a producer that it does not know: the second must not overtake the first.
    with FakeKafka(topics={"t": 1}) as kafka:
        kafka.fail("Produce", ErrorCode.not_enough_replicas, times=1)
        with new(kafka, batching=Batching(records=1, linger=0)) as producer:
            producer.send_many("t", [b"%d" % i for i in range(10)]).result(SOON)
        assert values(kafka) == [b"%d" % i for i in range(10)]


def test_a_number_that_cannot_come_next_raises_the_epoch(kafka: FakeKafka) -> None:
    happened: list[Event] = []
    with new(kafka, events=[happened.append]) as producer:
        producer.send("t", b"1").result(SOON)
        kafka.fail("Produce", ErrorCode.out_of_order_sequence_number)
        assert producer.send("t", b"2").result(SOON).offset == 1
    bumped = [event for event in happened if isinstance(event, EpochBumped)]
    assert [event.epoch for event in bumped] == [1]
    assert [Batch.parse(stored).header.producer_epoch for stored in kafka.log("t", 0)] == [0, 1]


def test_a_producer_id_that_another_client_uses_is_given_up(kafka: FakeKafka) -> None:
    # With the same id, the broker would take them for batches it has seen: acknowledged, and lost.
    with new(kafka, batching=Batching(records=1, linger=0)) as producer:
        producer.send("t", b"1").result(SOON)
        kafka.fail("Produce", ErrorCode.invalid_producer_epoch)
        assert producer.send("t", b"2").result(SOON).offset == 1
        assert producer.send("t", b"3").result(SOON).offset == 2
    first, second, third = (Batch.parse(stored).header.producer_id for stored in kafka.log("t", 0))
    assert first != second == third
    assert values(kafka) == [b"1", b"2", b"3"]


def _available(producer: Producer, topic: str) -> tuple[int, ...]:
    known = producer._sender.topic(topic)
    assert known is not None
    assert known.partitions is not None
    return known.partitions.available


def test_a_broker_that_comes_back_gets_records_without_key_again() -> None:
    with FakeKafka(brokers=2, auto_create=None) as kafka:
        kafka.create_topic("t", 2, replicas=1)
        with new(kafka, strategy=RoundRobin()) as producer:
            producer.send_many("t", [b"before"] * 4).result(SOON)
            kafka.down(kafka.leader("t", 0))
            eventually(lambda: _available(producer, "t") == (1,), "it is noticed, with nothing to send")
            kafka.all_up()
            eventually(lambda: _available(producer, "t") == (0, 1), "it is noticed again")
            producer.send_many("t", [b"after"] * 4).result(SOON)
        assert len(values(kafka, "t", 0)) == len(values(kafka, "t", 1)) == 4


def test_a_refusal_after_a_lost_answer_says_that_the_records_may_be_written(kafka: FakeKafka) -> None:
    with new(kafka, retry=Retry(initial=0.5, maximum=0.5, jitter=0)) as producer:
        producer.send("t", b"0").result(SOON)
        cut = kafka.cut("Produce", when=When.AFTER_HANDLING)
        delivery = producer.send("t", b"1")
        eventually(lambda: cut.hits == 1, "it is stored, and the answer lost")
        kafka.fail("Produce", ErrorCode.topic_authorization_failed, times=1)
        error = delivery.exception(SOON)
        with pytest.raises(NotDelivered):
            producer.flush(SOON)
    assert error is not None
    assert error.maybe_written


def test_the_error_of_a_flush_says_if_any_of_its_records_may_be_written(kafka: FakeKafka) -> None:
    """Regression: with several reasons it said that none was."""
    with new(kafka, delivery_timeout=0.5) as producer:
        producer.send_table("many", pa.table({"value": [b"1"], "partition": [9]}))
        with pytest.raises(NotDelivered, match="1 record") as certain:
            producer.flush(SOON)
        silent = kafka.silence("Produce", times=None)
        producer.send_table("many", pa.table({"value": [b"1"] * 4, "partition": [0, 1, 2, 9]}))
        with pytest.raises(NotDelivered, match="4 records") as doubtful:
            producer.flush(SOON)
    assert silent.hits
    assert (certain.value.maybe_written, doubtful.value.maybe_written) == (False, True)


def test_records_without_key_pass_over_a_broker_that_is_away() -> None:
    with FakeKafka(brokers=2, auto_create=None) as kafka:
        kafka.create_topic("t", 2, replicas=1)
        with new(kafka, strategy=RoundRobin()) as producer:
            producer.send_many("t", [b"before"] * 4).result(SOON)
            kafka.down(kafka.leader("t", 0))
            producer.send("t", b"probe", partition=0)
            eventually(lambda: _available(producer, "t") == (1,), "it is noticed")
            assert producer.partition_for("t") == 1
            during = producer.send_many("t", [b"during"] * 10).result(SOON)
            assert [offsets.partition for offsets in during.ranges] == [1]
            kafka.all_up()
            producer.flush(SOON)
        assert values(kafka, "t", 0)[-1] == b"probe"


def test_random_faults_while_threads_send(kafka: FakeKafka) -> None:
    chance = random.Random(11)
    stop = threading.Event()

    def disturb() -> None:
        while not stop.wait(0.02):
            _trouble(kafka, chance.choice(["cut before", "cut after", "half a response", "not leader", "leader moved"]))

    def work(thread: int) -> None:
        for i in range(1500):
            producer.send("t", b"%d/%d" % (thread, i))

    disturber = threading.Thread(target=disturb)
    with new(kafka, batching=Batching(records=50, linger=0)) as producer:
        disturber.start()
        threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
        time_up = threading.Timer(2.0, stop.set)
        time_up.start()
        disturber.join(SOON)
        kafka.clear_faults()
        producer.flush(60)
    for number in range(3):
        mine = [v for v in values(kafka) if (v or b"").startswith(b"%d/" % number)]
        assert mine == [b"%d/%d" % (number, i) for i in range(1500)]
