"""The events of a producer, with the values of what really happened."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from tests.waiting import eventually

from ottla import Batching, Buffering, Spool, errors
from ottla.errors import BrokerError, ErrorCode, NotDelivered
from ottla.events import (
    BufferFull,
    ConnectionDown,
    ConnectionUp,
    DowntimeReplayed,
    DowntimeSaved,
    Event,
    FlushAcknowledged,
    Flushed,
    FlushFailed,
    FlushRetried,
    SpoolFailed,
    SpoolFull,
    StillDown,
    TimeDown,
)
from ottla.testing import FakeKafka, When

from .stand import SOON, new, stuck, values

E = TypeVar("E", bound=Event)


class Recorder:
    """A sink that keeps all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """The events of exactly this kind."""
        return [event for event in self.events if type(event) is kind]

    def wait_for(self, kind: type[E], count: int = 1) -> list[E]:
        """Wait for `count` events of this kind, and return them all."""
        eventually(lambda: len(self.of(kind)) >= count, lambda: f"{count} {kind.__name__} among {self._counts()}")
        return self.of(kind)

    def _counts(self) -> dict[str, int]:
        return Counter(event.kind for event in self.events)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A cluster of one broker, which leads everything."""
    with FakeKafka(topics={"t": 1}) as kafka:
        yield kafka


def test_a_batch_is_reported_when_it_is_sent_and_when_it_is_acknowledged(kafka: FakeKafka, recorder: Recorder) -> None:
    with new(kafka, events=[recorder], compression="zstd") as producer:
        for _ in range(2):
            producer.send_many("t", [b"x" * 100] * 50).result(SOON)
    sizes = [len(batch) for batch in kafka.log("t", 0)]
    assert len(sizes) == 2
    flushed = recorder.of(Flushed)
    assert [(e.topic, e.partition, e.records, e.size_bytes) for e in flushed] == [("t", 0, 50, n) for n in sizes]
    assert all(5_000 < event.raw_bytes < 6_000 > 10 * event.size_bytes for event in flushed)
    acknowledged = recorder.of(FlushAcknowledged)
    assert [(e.topic, e.partition, e.records, e.size_bytes, e.base_offset, e.attempts) for e in acknowledged] == [
        ("t", 0, 50, sizes[0], 0, 1),
        ("t", 0, 50, sizes[1], 50, 1),
    ]
    assert all(0 < event.seconds < SOON for event in acknowledged)
    assert not recorder.of(FlushRetried) + recorder.of(FlushFailed)


def test_records_that_their_callers_send_are_reported_with_the_time_they_took(
    kafka: FakeKafka, recorder: Recorder
) -> None:
    with new(kafka, events=[recorder], batching=Batching(linger=0)) as producer:
        for _ in range(20):
            producer.send("t", b"x").result(SOON)
    assert [type(event) for event in recorder.events if isinstance(event, Flushed | FlushAcknowledged)] == [
        Flushed,
        FlushAcknowledged,
    ] * 20
    assert all(0 < event.seconds < SOON for event in recorder.of(FlushAcknowledged))


def test_a_connection_that_is_lost_under_a_record_that_its_caller_sent_is_reported(
    kafka: FakeKafka, recorder: Recorder
) -> None:
    with new(kafka, events=[recorder], batching=Batching(linger=0)) as producer:
        for count in range(1, 6):
            for _ in range(3):
                producer.send("t", b"x").result(SOON)
            kafka.cut("Produce", when=When.AFTER_HANDLING)
            producer.send("t", b"x").result(SOON)
            assert len(recorder.wait_for(TimeDown, count)) == count
    assert [type(event) for event in recorder.events if isinstance(event, ConnectionDown | TimeDown)] == [
        ConnectionDown,
        TimeDown,
    ] * 5
    assert len(values(kafka)) == 20


def test_each_further_attempt_is_reported_with_its_reason(kafka: FakeKafka, recorder: Recorder) -> None:
    with new(kafka, events=[recorder]) as producer:
        producer.send("t", b"first").result(SOON)
        kafka.fail("Produce", ErrorCode.not_enough_replicas, times=2)
        producer.send("t", b"x").result(SOON)
    retried = recorder.of(FlushRetried)
    assert [(event.topic, event.partition, event.records, event.attempt) for event in retried] == [
        ("t", 0, 1, 2),
        ("t", 0, 1, 3),
    ]
    assert all(isinstance(e.error, BrokerError) and e.error.code is ErrorCode.not_enough_replicas for e in retried)
    assert [event.attempts for event in recorder.of(FlushAcknowledged)] == [1, 3]
    assert len(recorder.of(Flushed)) == 2, "once for each batch"


def test_a_batch_that_will_not_be_delivered_is_reported_with_its_reason(kafka: FakeKafka, recorder: Recorder) -> None:
    with new(kafka, events=[recorder]) as producer:
        kafka.fail("Produce", ErrorCode.invalid_record)
        producer.send_many("t", [b"x"] * 3)
        with pytest.raises(NotDelivered):
            producer.flush(SOON)
    (failed,) = recorder.of(FlushFailed)
    (flushed,) = recorder.of(Flushed)
    assert (failed.topic, failed.partition, failed.records, failed.size_bytes) == ("t", 0, 3, flushed.size_bytes)
    assert isinstance(failed.error, NotDelivered)
    assert isinstance(failed.error.cause, BrokerError)
    assert failed.error.cause.code is ErrorCode.invalid_record
    assert not recorder.of(FlushAcknowledged)


def test_a_broker_that_goes_and_comes_back(
    kafka: FakeKafka, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.net.links.STILL_DOWN_EVERY", 0.1)
    broker = (1, str(kafka.addresses[1]))
    with new(kafka, events=[recorder]) as producer:
        producer.send("t", b"x").result(SOON)
        (up,) = recorder.of(ConnectionUp)
        assert (up.broker_id, up.address) == broker
        assert 0 < up.seconds < SOON
        kafka.all_down()
        producer.send("t", b"y")
        (down,) = recorder.wait_for(ConnectionDown)
        assert (down.broker_id, down.address) == broker
        assert down.reason
        first, second = recorder.wait_for(StillDown, 2)[:2]
        assert (first.broker_id, first.address) == broker
        assert 0.1 <= first.seconds < second.seconds
        assert "refused" in second.reason
        assert not recorder.of(TimeDown)
        kafka.all_up()
        producer.flush(SOON)
        (back,) = recorder.wait_for(TimeDown)
        assert (back.broker_id, back.address) == broker
        assert back.seconds > recorder.of(StillDown)[-1].seconds
        assert len(recorder.of(ConnectionUp)) == 2
        assert len(recorder.of(ConnectionDown)) == 1, "once, however often it is retried"


def test_addresses_at_which_no_broker_was_ever_found(
    kafka: FakeKafka, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.net.lookups.STILL_DOWN_EVERY", 0.1)
    kafka.all_down()
    with new(kafka, events=[recorder]) as producer:
        sent = producer.send("t", b"x")
        (down,) = recorder.wait_for(ConnectionDown)
        assert (down.broker_id, down.address) == (None, kafka.bootstrap)
        still = recorder.wait_for(StillDown)[0]
        assert (still.broker_id, still.address) == (None, kafka.bootstrap)
        assert still.seconds >= 0.1
        kafka.all_up()
        sent.result(SOON)
        (back,) = recorder.wait_for(TimeDown)
        assert (back.broker_id, back.address) == (None, kafka.bootstrap)
        assert back.seconds >= still.seconds
        assert recorder.wait_for(ConnectionUp)[0].broker_id == 1


@pytest.mark.parametrize("leave", [False, True], ids=["the same producer", "the next one"])
def test_what_went_to_the_spool_and_what_was_delivered_from_it(
    kafka: FakeKafka, recorder: Recorder, tmp_path: Path, leave: bool
) -> None:
    first = new(kafka, events=[recorder], spool=Spool(tmp_path, after=0.05))
    first.send("t", b"before").result(SOON)
    assert not recorder.of(DowntimeSaved)
    stuck(kafka)
    for number in range(3):
        first.send("t", b"x" * 100)
        first.persist(SOON)
        saved = recorder.of(DowntimeSaved)
        assert sum(event.records for event in saved) == number + 1
    assert {(event.topic, event.partition) for event in saved} == {("t", 0)}
    assert not recorder.of(DowntimeReplayed)
    if leave:
        first.close(0.05)
    kafka.clear_faults()
    second = new(kafka, events=[recorder], spool=Spool(tmp_path)) if leave else first
    second.flush(SOON)
    second.close()
    assert values(kafka) == [b"before", *[b"x" * 100] * 3]
    replayed = recorder.of(DowntimeReplayed)
    sizes = [len(batch) for batch in kafka.log("t", 0)][1:]
    assert [(event.topic, event.partition, event.size_bytes) for event in replayed] == [("t", 0, n) for n in sizes]
    assert sum(event.records for event in replayed) == 3
    assert [event.size_bytes for event in saved] == sizes


def test_a_full_spool_is_reported_once(kafka: FakeKafka, recorder: Recorder, tmp_path: Path) -> None:
    limit = 1 << 20
    buffering = Buffering(bytes=1 << 20, wait=0.5)
    spool = Spool(tmp_path, after=0.05, max_bytes=limit)
    with new(kafka, events=[recorder], spool=spool, buffering=buffering, batching=Batching(bytes=50_000)) as producer:
        producer.send("t", b"before").result(SOON)
        stuck(kafka)
        sent = 0
        until = time.monotonic() + SOON
        while not {SpoolFull, BufferFull} <= set(map(type, recorder.events)) and time.monotonic() < until:
            with contextlib.suppress(errors.BufferFull):
                producer.send("t", b"x" * 1000)
                sent += 1
        (full,) = recorder.of(SpoolFull)
        assert (full.path, full.max_bytes) == (str(tmp_path), limit)
        assert 0.8 * limit < full.used_bytes <= limit
        assert "is full" in full.reason
        waiting = recorder.of(BufferFull)[0]
        assert waiting.limit_bytes == 1 << 20 <= waiting.waiting_bytes
        kafka.clear_faults()
        producer.flush(SOON)
        assert not recorder.of(SpoolFailed)
    assert len(values(kafka)) == sent + 1
