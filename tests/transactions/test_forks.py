"""A fork during a transaction: the child cannot affect it, the parent commits it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable

import pytest

from ottla.model import TopicPartition
from ottla.produce.producer import Producer
from ottla.produce.transaction import Transaction

from .conftest import NewProducer
from .reading import Log

pytestmark = [
    pytest.mark.broker,
    # These tests fork while threads are running, on purpose.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]


def _told(use: Callable[[], object]) -> str:
    try:
        use()
    except BaseException as error:
        return type(error).__name__
    return "nothing was raised"


def _child(producer: Producer, tx: Transaction, topic: str) -> list[str]:
    def leave_with(error: BaseException | None) -> None:
        tx.__exit__(None if error is None else type(error), error, None)

    return [
        _told(lambda: producer.send(topic, b"child")),
        _told(lambda: producer.flush()),
        _told(lambda: tx.send_offsets("group", {TopicPartition(topic, 0): 1})),
        _told(lambda: tx.prepare()),
        _told(lambda: tx.abort()),
        _told(lambda: leave_with(None)),
        _told(lambda: leave_with(SystemExit(0))),
        _told(lambda: producer.close()),
    ]


def test_a_forked_child_touches_no_transaction_of_its_parent(
    log: Log, topic: str, new_producer: NewProducer, capfd: pytest.CaptureFixture[str]
) -> None:
    producer = new_producer()
    with producer.transaction() as tx:
        producer.send(topic, b"acknowledged").result(30)
        producer.send(topic, b"on its way")
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.write(writing, pickle.dumps(_child(producer, tx, topic)))
            finally:
                os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            errors = pickle.loads(pipe.read())
        os.waitpid(pid, 0)
        assert errors == ["UsedAfterFork"] * 6 + ["nothing was raised"] * 2
        producer.send(topic, b"after")
    assert tx.committed is True
    assert log.committed(topic) == [b"acknowledged", b"after", b"on its way"]
