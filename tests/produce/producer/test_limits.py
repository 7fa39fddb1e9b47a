"""The producer's limits in memory and time, and what it reports about records that did not arrive."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import pytest
from tests.waiting import eventually

from ottla import Batching, Buffering, Producer, WhenFull
from ottla.config import Timeouts
from ottla.errors import BufferFull, ErrorCode, NotDelivered
from ottla.events import Dropped, Event
from ottla.produce.failures import FailedBatch
from ottla.testing import FakeKafka

from .stand import SOON, new, stuck, values

# Memory


def _fill(producer: Producer, size: int) -> list[Any]:
    return [producer.send_many("t", [bytes(100_000)] * 5) for _ in range(size // 500_000)]


@pytest.mark.parametrize(("policy", "wait"), [(WhenFull.WAIT, 0.3), (WhenFull.REFUSE, 60.0)])
def test_a_full_buffer_says_what_holds_things_up(kafka: FakeKafka, policy: WhenFull, wait: float) -> None:
    stuck(kafka)
    producer = new(kafka, buffering=Buffering(bytes=1 << 20, when_full=policy, wait=wait))
    started = time.monotonic()
    with pytest.raises(BufferFull) as caught:
        _fill(producer, 5_000_000)
    assert time.monotonic() - started < SOON
    assert "bytes wait to be delivered, the buffer holds 1,048,576" in str(caught.value)
    eventually(lambda: "NOT_ENOUGH" in producer._sender.holding(), "an error is known")
    with pytest.raises(BufferFull, match=r"wait for t-0, led by .*127.0.0.1:\d+.*NOT_ENOUGH_REPLICAS"):
        producer.send_many("t", [b"x"])
    kafka.clear_faults()
    producer.close(SOON)


def test_a_waiting_caller_continues_when_there_is_room(kafka: FakeKafka) -> None:
    stuck(kafka)
    with new(kafka, buffering=Buffering(bytes=1 << 20, wait=SOON)) as producer:
        timer = threading.Timer(0.3, kafka.clear_faults)
        timer.start()
        sent = _fill(producer, 5_000_000)
        assert sum(delivery.result(SOON).records for delivery in sent) == 50
        timer.join()
    assert len(values(kafka)) == 50


def test_the_oldest_unsent_records_are_dropped_where_that_is_configured(kafka: FakeKafka) -> None:
    happened: list[Event] = []
    kafka.all_down()
    producer = new(
        kafka, buffering=Buffering(bytes=1 << 20, when_full=WhenFull.DROP_OLDEST, wait=SOON), events=[happened.append]
    )
    kafka.all_up()
    producer.send("t", b"first").result(SOON)
    kafka.all_down()
    sent = _fill(producer, 5_000_000)
    kafka.all_up()
    outcomes = [delivery.exception(SOON) for delivery in sent]
    with pytest.raises(NotDelivered, match="dropped to make room"):
        producer.close(SOON)
    assert outcomes[-1] is None
    dropped = [event for event in happened if isinstance(event, Dropped)]
    lost = sum(event.records for event in dropped)
    assert lost
    assert len(values(kafka)) == 1 + 50 - lost
    assert all(event.topic == "t" and event.first_timestamp <= event.last_timestamp for event in dropped)


# Time


def test_what_is_not_acknowledged_in_time_fails_with_the_last_error(kafka: FakeKafka) -> None:
    stuck(kafka)
    producer = new(kafka, delivery_timeout=0.5)
    started = time.monotonic()
    with pytest.raises(
        NotDelivered, match=r"not acknowledged within 0.5 s, \d+ attempts; .*NOT_ENOUGH_REPLICAS"
    ) as caught:
        producer.send("t", b"1").result(SOON)
    assert 0.4 < time.monotonic() - started < 5
    assert caught.value.maybe_written
    kafka.clear_faults()
    assert producer.send("t", b"2").result(SOON).offset >= 0
    with pytest.raises(NotDelivered):
        producer.close()


def test_with_no_broker_the_error_names_every_address(kafka: FakeKafka) -> None:
    kafka.all_down()
    producer = new(kafka, delivery_timeout=2.0, timeouts=Timeouts(connect=0.2, request=1, total=0.3))
    with pytest.raises(NotDelivered) as caught:
        producer.send("t", b"1").result(SOON)
    for address in kafka.addresses.values():
        assert str(address) in str(caught.value)
    with pytest.raises(NotDelivered):
        producer.close(SOON)


def test_flush_waits_for_everything_and_raises_unchecked_failures(kafka: FakeKafka) -> None:
    producer = new(kafka, batching=Batching(linger=30.0))
    producer.send("t", b"1")
    producer.flush(SOON)
    assert values(kafka) == [b"1"]
    kafka.fail("Produce", ErrorCode.invalid_record)
    producer.send("t", b"2")
    with pytest.raises(NotDelivered, match="INVALID_RECORD"):
        producer.flush(SOON)
    producer.flush(SOON)  # the failure was raised already
    producer.send("t", b"3")
    producer.close(SOON)
    assert values(kafka) == [b"1", b"3"]


def test_flush_runs_out_of_time(kafka: FakeKafka) -> None:
    stuck(kafka)
    producer = new(kafka)
    producer.send("t", b"1")
    with pytest.raises(TimeoutError):
        producer.flush(0.2)
    kafka.clear_faults()
    producer.close(SOON)
    assert values(kafka) == [b"1"]


def test_close_gives_up_after_its_timeout_and_says_how_many(kafka: FakeKafka) -> None:
    stuck(kafka)
    producer = new(kafka)
    deliveries = [producer.send("t", b"1") for _ in range(3)]
    started = time.monotonic()
    with pytest.raises(NotDelivered, match=r"3 records were not delivered: the producer was closed"):
        producer.close(0.2)
    assert time.monotonic() - started < 5
    assert all(isinstance(delivery.exception(0), NotDelivered) for delivery in deliveries)


def test_failed_batches_are_handed_out_as_values_with_their_records(kafka: FakeKafka) -> None:
    failed: list[FailedBatch] = []
    kafka.fail("Produce", ErrorCode.invalid_record)
    with new(kafka, on_failed=failed.append, compression="zstd") as producer:
        producer.send_many("t", [(b"k", b"1"), b"2"]).exception(SOON)
        producer.flush(SOON)  # handed to the program, so nothing is left to raise
    (batch,) = failed
    assert (batch.topic, batch.partition, batch.count) == ("t", 0, 2)
    assert "INVALID_RECORD" in str(batch.cause)
    assert [(row["key"], row["value"]) for row in batch.records.to_pylist()] == [(b"k", b"1"), (None, b"2")]


def test_on_failed_that_raises_is_logged_and_the_failure_still_raised(
    kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_: FailedBatch) -> None:
        raise ValueError("of the program")

    kafka.fail("Produce", ErrorCode.invalid_record)
    producer = new(kafka, on_failed=fails)
    producer.send("t", b"1")
    with pytest.raises(NotDelivered):
        producer.close(SOON)
    assert "on_failed raised for 1 records of t-0" in caplog.text


def test_leaving_the_block_with_an_error_shows_that_error(kafka: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    kafka.fail("Produce", ErrorCode.invalid_record)

    def work() -> None:
        with new(kafka) as producer:
            producer.send("t", b"1")
            raise KeyError("of the program")

    with pytest.raises(KeyError), caplog.at_level(logging.ERROR):
        work()
    assert "INVALID_RECORD" in caplog.text


def test_the_error_of_a_delivery_that_leaves_the_block_is_not_logged_too(
    kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.fail("Produce", ErrorCode.invalid_record)

    def work() -> None:
        with new(kafka) as producer:
            producer.send("t", b"1").result()

    with pytest.raises(NotDelivered, match="INVALID_RECORD"), caplog.at_level(logging.ERROR):
        work()
    assert not caplog.records
