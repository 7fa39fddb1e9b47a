"""What a program may do to its producer without harm: interrupt it, exit in a callback, pass damaged columns."""

from __future__ import annotations

import contextlib
import sys
import threading
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.interrupting import interrupted

from ottla import Batching, BufferFull, Buffering, ConnectionLost, InputError, NotDelivered, Producer, TopicOptions
from ottla.events import Events
from ottla.net.connection import Connection
from ottla.produce.intake import Budget, Intake
from ottla.testing import FakeKafka

SOON = 20.0


def _intake() -> Intake:
    return Intake(Budget(Buffering(), holding=lambda: "", events=Events()), wake=lambda: None)


def _fine() -> None:
    return None


def _ctrl_c() -> None:
    raise KeyboardInterrupt


def test_a_chunk_whose_closing_is_interrupted_anywhere_is_handed_over_once() -> None:
    for step in range(1, 1000):
        intake = _intake()
        intake.put("t", b"1", key=None, extras=None, usable=_fine)
        close = partial(intake._accepted, intake.open.chunks["t"], 0)
        reached = True
        with contextlib.suppress(KeyboardInterrupt):
            reached = interrupted(lambda close=close: close(), step, _ctrl_c, files=("produce/intake.py",))  # type: ignore[misc]
        handed, _ = intake.take(float("inf"), lambda _: 0.0)
        again, _ = intake.take(float("inf"), lambda _: 0.0)
        assert [handover.columns.count for handover in [*handed, *again]] == [1], f"interrupted at instruction {step}"
        if not reached:
            assert step > 20, "it was interrupted in many places"
            return
    pytest.fail("closing a chunk has no end")


def test_a_callback_that_exits_stops_neither_the_sender_nor_those_who_wait() -> None:
    with FakeKafka(topics={"t": 1}) as kafka, Producer(kafka.bootstrap) as producer:
        delivery = producer.send("t", b"1")
        delivery.add_done_callback(lambda _: sys.exit(3))
        assert delivery.result(SOON).offset == 0
        assert producer.send("t", b"2").result(SOON).offset == 1


def test_a_callback_that_would_wait_for_itself_raises() -> None:
    errors: list[BaseException] = []
    done = threading.Event()
    with FakeKafka(topics={"t": 1}) as kafka, Producer(kafka.bootstrap) as producer:

        def callback(_: object) -> None:
            for wait in (producer.flush, producer.close):
                try:
                    wait()
                except RuntimeError as error:
                    errors.append(error)
            done.set()

        producer.send("t", b"1").add_done_callback(callback)
        assert done.wait(SOON)
    assert len(errors) == 2
    assert all("must not wait" in str(error) for error in errors)


@pytest.mark.parametrize("ends", [[0, 200_000, 5, 10], [0, 5, 4, 10]])
def test_offsets_that_lead_outside_the_data_are_refused(ends: list[int]) -> None:
    buffers = [None, pa.py_buffer(np.array(ends, np.int32)), pa.py_buffer(b"0123456789")]
    damaged = pa.Array.from_buffers(pa.binary(), 3, buffers)
    with FakeKafka(topics={"t": 1}) as kafka, Producer(kafka.bootstrap) as producer:
        with pytest.raises(InputError, match="column value is damaged"):
            producer.send_table("t", pa.table({"value": damaged}))
        assert kafka.records("t", 0) == []


def test_batches_too_large_for_a_small_limit_are_halved_until_they_fit() -> None:
    with FakeKafka(topics={"t": 1}, max_message_bytes=300) as kafka, Producer(kafka.bootstrap) as producer:
        sent = producer.send_many("t", [b"%03d" % i + bytes(50) for i in range(40)]).result(SOON)
        assert sent.records == 40
        assert [record.value for record in kafka.records("t", 0)] == [b"%03d" % i + bytes(50) for i in range(40)]


def test_what_is_delivered_is_not_remembered_behind_a_record_that_is_stuck() -> None:
    with FakeKafka(topics={"fine": 1}) as kafka:
        producer = Producer(kafka.bootstrap, batching=Batching(linger=0), delivery_timeout=3)
        producer.send("unknown-for-a-while", b"stuck")
        for _ in range(400):
            producer.send_many("fine", [b"x"])
        producer.send("fine", b"last").result(SOON)
        kept: list[int] = []
        for _ in range(100):
            kept.append(len(producer._sender._shipments))
            if kept[-1] < 200:
                break
            threading.Event().wait(0.05)
        assert kept[-1] < 200
        with pytest.raises(NotDelivered):
            producer.close()


def test_a_table_that_is_taken_over_in_part_says_how_far() -> None:
    with FakeKafka(topics={"t": 1}) as kafka:
        kafka.silence("Produce", times=None)
        producer = Producer(kafka.bootstrap, buffering=Buffering(bytes=1 << 20, wait=0.5), delivery_timeout=2)
        table = pa.table({"value": [bytes(1000)] * 40_000})
        with pytest.raises(BufferFull) as caught:
            producer.send_table("t", table)
        assert 0 < caught.value.accepted < 40_000
        with pytest.raises(NotDelivered, match=f"{caught.value.accepted:,} records"):
            producer.close(5)


def test_a_table_for_several_topics_that_is_taken_over_in_part_says_which_rows() -> None:
    """Found: only the rows of the topic that did not fit were counted, 1,045 of 3,045."""
    topics = ["a", "b", "c"]
    with FakeKafka(topics=dict.fromkeys(topics, 1)) as kafka:
        kafka.silence("Produce", times=None)
        producer = Producer(kafka.bootstrap, buffering=Buffering(bytes=1 << 20, wait=0.5), delivery_timeout=2)
        rows = [(topics[number % 3 if number < 30_000 else 2], b"%d" % number + bytes(900)) for number in range(40_000)]
        table = pa.table({"topic": [topic for topic, _ in rows], "value": [value for _, value in rows]})
        with pytest.raises(BufferFull) as caught:
            producer.send_table(None, table)
        assert 0 < caught.value.accepted < 40_000
        with pytest.raises(NotDelivered, match=f"{caught.value.accepted:,} records"):
            producer.close(5)
        kafka.clear_faults()
        with Producer(kafka.bootstrap) as another:
            another.send_table(None, table.slice(caught.value.accepted))
        arrived = [(topic, record.value) for topic in topics for record in kafka.records(topic, 0)]
        assert sorted(arrived) == sorted(rows[caught.value.accepted :])


def test_outcomes_name_the_rows_of_the_table_also_of_one_for_several_topics() -> None:
    topics = ["b", "a", "b", "gone", "a"]
    with (
        FakeKafka(topics={"a": 1, "b": 1}, auto_create=None) as kafka,
        Producer(kafka.bootstrap, max_record_bytes=100, on_oversize=lambda _: None) as producer,
    ):
        values = [b"0", bytes(200), b"2", b"3", b"4"]
        sent = producer.send_table(None, pa.table({"topic": topics, "value": values}))
        outcomes = {
            (outcome.at.topic, row): outcome.offset + number if outcome.error is None else type(outcome.error)
            for outcome in sent.outcomes(SOON)
            for number, row in enumerate(outcome.rows.tolist())
        }
        assert outcomes == {("b", 0): 0, ("b", 2): 1, ("a", 4): 0, ("gone", 3): NotDelivered}
        with pytest.raises(NotDelivered):
            producer.flush(SOON)


def test_a_connection_lost_between_two_requests_of_one_turn_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Connection.start
    refused: list[int] = []

    def start(connection: Connection, api_key: int, *rest: Any, **options: Any) -> Any:
        if api_key == 0 and len(refused) < 1 and armed.is_set():
            refused.append(api_key)
            connection.close()
            raise ConnectionLost(connection.address, "planted")
        return real(connection, api_key, *rest, **options)

    armed = threading.Event()
    monkeypatch.setattr(Connection, "start", start)
    topics = {"quick": TopicOptions(acks=1)}
    with (
        FakeKafka(topics={"safe": 1, "quick": 1}) as kafka,
        Producer(kafka.bootstrap, batching=Batching(linger=0.3), topics=topics) as producer,
    ):
        for topic in ("safe", "quick"):
            producer.send(topic, b"before").result(SOON)
        armed.set()
        deliveries = [producer.send(topic, b"after") for topic in ("safe", "quick")]
        producer._sender.hurry()  # both are due in the same turn
        assert [delivery.result(SOON).offset for delivery in deliveries] == [1, 1]
    assert refused
