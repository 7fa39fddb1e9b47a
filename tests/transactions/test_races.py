"""Threads that begin, send and end at the same time: each record is in one transaction, or its send raised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sized
from functools import partial

import pyarrow as pa
import pytest
from tests.waiting import eventually

from ottla.errors import OttlaError, StreamFailed, TransactionFailed
from ottla.produce.delivery import Delivery
from ottla.produce.intake import Handover
from ottla.produce.options import Oversize
from ottla.produce.producer import Producer

from .conftest import NewProducer, NewTopic
from .reading import Log

pytestmark = pytest.mark.broker


def test_of_threads_that_begin_at_once_one_gets_the_transaction(
    log: Log, topic: str, new_producer: NewProducer
) -> None:
    producer = new_producer()
    start, go_on = threading.Barrier(4), threading.Event()
    refused: list[str] = []

    def begin() -> None:
        start.wait(30)
        try:
            with producer.transaction():
                producer.send(topic, b"value")
                go_on.wait(30)
        except TransactionFailed as error:
            refused.append(str(error))

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(refused) == 3, "the others are refused")
    go_on.set()
    for thread in threads:
        thread.join(30)
    assert all("open already" in text for text in refused)
    assert len(refused) == 3
    assert log.committed(topic) == [b"value"]


def test_a_record_sent_while_the_block_ends_counts_or_its_send_raises(
    log: Log, new_topic: NewTopic, new_producer: NewProducer
) -> None:
    topic = new_topic(2)
    producer = new_producer()
    delivered: list[tuple[bytes, Delivery]] = []
    refused = 0
    stop = threading.Event()

    def send(writer: int) -> None:
        nonlocal refused
        number = 0
        while not stop.is_set():
            value = b"%d-%d" % (writer, number)
            try:
                delivered.append((value, producer.send(topic, value)))
                number += 1
            except TransactionFailed:
                refused += 1
                stop.wait(0.0002)

    threads = [threading.Thread(target=send, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    outcomes: list[OttlaError | None] = []
    for number in range(8):
        try:
            with producer.transaction():
                producer.send(topic, b"mine-%d" % number)
                known = len(delivered)
                eventually(partial(_has_more, delivered, known), "another thread sends into it")
            outcomes.append(None)
        except TransactionFailed as error:
            outcomes.append(error)
    stop.set()
    for thread in threads:
        thread.join(30)
    assert all(outcome is None or "while its transaction was being ended" in str(outcome) for outcome in outcomes)
    producer.close()
    values = log.committed(topic)
    assert len(values) == len(set(values))
    acknowledged = {value for value, delivery in delivered if delivery.exception(0) is None}
    theirs = {value for value in values if not value.startswith(b"mine-")}
    assert {value for value in values if value.startswith(b"mine-")} == {
        b"mine-%d" % number for number, outcome in enumerate(outcomes) if outcome is None
    }
    assert theirs <= acknowledged
    assert refused > 0
    if not any(outcomes):
        assert theirs == acknowledged
    assert len(theirs) >= outcomes.count(None) > 0


def _has_more(values: Sized, known: int) -> bool:
    return len(values) > known


class Paused:
    """A call in another thread that stops halfway until it is let go."""

    def __init__(self, send: Callable[[], object]) -> None:
        self.error: OttlaError | None = None
        self._send = send
        self._is_halfway, self._may_go_on = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()
        assert self._is_halfway.wait(30)

    def wait(self) -> None:
        self._is_halfway.set()
        assert self._may_go_on.wait(30)

    def finish(self) -> None:
        self._may_go_on.set()
        self._thread.join(30)

    def _run(self) -> None:
        try:
            self._send()
        except OttlaError as error:
            self.error = error


def _aborted_halfway(producer: Producer, call: Paused) -> None:
    with producer.transaction() as transaction:
        call.start()
        transaction.abort()


@pytest.mark.parametrize("kind", ["table", "list", "stream"])
@pytest.mark.parametrize("goes_on", ["in the next transaction", "between two transactions"])
def test_a_call_whose_transaction_ends_halfway_puts_nothing_into_the_next_one(
    log: Log, topic: str, new_producer: NewProducer, kind: str, goes_on: str
) -> None:
    """Regression: the rest of a table of an aborted transaction was committed by the next one, or accepted for none."""
    call: Paused

    def wait(record: Oversize) -> None:
        call.wait()

    producer = new_producer(max_record_bytes=10_000, on_oversize=wait)
    rows = [b"old-%d" % number + bytes(20_000 if number == 25_000 else 1000) for number in range(30_000)]
    table = pa.table({"value": rows})
    calls: dict[str, Callable[[], object]] = {
        "table": lambda: producer.send_table(topic, table),
        "list": lambda: producer.send_many(topic, rows),
        "stream": lambda: producer.send_table(topic, table.to_reader(max_chunksize=10_000)),
    }
    call = Paused(calls[kind])
    _aborted_halfway(producer, call)
    if goes_on == "between two transactions":
        call.finish()
    with producer.transaction():
        producer.send(topic, b"new")
        call.finish()
    assert call.error is not None
    cause = call.error.cause if isinstance(call.error, StreamFailed) else call.error
    assert isinstance(cause, TransactionFailed)
    assert 0 < call.error.accepted < 30_000
    assert log.committed(topic) == [b"new"]


def test_rows_handed_over_too_late_fail_and_are_in_no_transaction(
    log: Log, topic: str, new_producer: NewProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last moment: the call has made its last check before its transaction ends."""
    producer = new_producer()
    hand_over = producer._intake.hand_over
    call = Paused(lambda: producer.send_many(topic, [b"old"]))

    def late(*handovers: Handover) -> None:
        call.wait()
        hand_over(*handovers)

    monkeypatch.setattr(producer._intake, "hand_over", late)
    _aborted_halfway(producer, call)

    def send_in_the_next_one() -> None:
        with producer.transaction():
            call.finish()
            producer.send(topic, b"new")

    with pytest.raises(TransactionFailed, match="while its transaction was being ended"):
        send_in_the_next_one()
    monkeypatch.undo()
    with producer.transaction():
        producer.send(topic, b"newer")
    assert log.committed(topic) == [b"newer"]
