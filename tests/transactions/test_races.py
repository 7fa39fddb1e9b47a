"""Threads that begin, send and end at the same time: each record is in one transaction, or its send raised."""

from __future__ import annotations

import threading
from collections.abc import Sized
from functools import partial

import pytest
from tests.waiting import eventually

from ottla.errors import OttlaError, TransactionFailed
from ottla.produce.delivery import Delivery

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
