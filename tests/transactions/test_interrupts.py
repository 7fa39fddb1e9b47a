"""Ctrl-C in transactions: when the exception leaves, the outcome is decided, and `committed` has it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from ottla.cluster import LocalCluster
from ottla.errors import ConnectionLost, TransactionFailed
from ottla.model import TopicPartition
from ottla.produce import coordinator
from ottla.produce.producer import Producer
from ottla.produce.transaction import Transaction, end_transaction
from ottla.produce.transactions import Transactions

from .conftest import NewProducer, failing
from .reading import Log

pytestmark = pytest.mark.broker


def _interrupting(monkeypatch: pytest.MonkeyPatch, name: str, *, before: bool, times: int = 1) -> list[Any]:
    """Ctrl-C comes in a call to the coordinator: before its request is sent, or before its answer is seen."""
    real: Callable[..., Any] = getattr(coordinator, name)
    calls: list[Any] = []

    def call(*args: Any, **options: Any) -> Any:
        calls.append(options)
        if len(calls) > times:
            return real(*args, **options)
        if not before:
            real(*args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(coordinator, name, call)
    return calls


@pytest.mark.parametrize("before", [True, False])
def test_a_commit_that_was_begun_is_brought_to_its_end(
    log: Log, topic: str, new_producer: NewProducer, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """Found: the block raised KeyboardInterrupt, and the transaction was committed afterwards."""
    producer = new_producer()
    _interrupting(monkeypatch, "end", before=before)
    with failing(KeyboardInterrupt) as caught, producer.transaction() as tx:
        producer.send(topic, b"one")
    assert tx.committed is True
    assert "committed all the same" in caught.value.__notes__[0]
    assert log.committed(topic) == [b"one"]
    with producer.transaction() as following:
        producer.send(topic, b"two")
        within = following.committed
    assert (within, following.committed) == (None, True)
    assert log.committed(topic) == [b"one", b"two"]


def test_a_commit_with_an_unknown_outcome_is_reported_as_such(
    log: Log, topic: str, new_producer: NewProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = new_producer()
    real = coordinator.end
    calls: list[bool] = []

    def end(*args: Any, commit: bool, **options: Any) -> bool:
        calls.append(commit)
        if len(calls) == 1:
            raise KeyboardInterrupt
        if len(calls) == 2:
            raise ConnectionLost("broker:9092", "planted")
        return real(*args, commit=commit, **options)

    monkeypatch.setattr(coordinator, "end", end)
    with failing(KeyboardInterrupt) as caught, producer.transaction() as tx:
        producer.send(topic, b"one")
    assert tx.committed is None
    assert "it is not known whether the transaction was committed" in caught.value.__notes__[0]
    with producer.transaction():
        producer.send(topic, b"two")
    assert log.committed(topic) == [b"two"]


@pytest.mark.parametrize("before", [True, False])
def test_an_abort_that_is_interrupted_is_made_up_for(
    log: Log, topic: str, new_producer: NewProducer, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    producer = new_producer()
    _interrupting(monkeypatch, "end", before=before)
    with failing(KeyboardInterrupt), producer.transaction() as tx:
        producer.send(topic, b"aborted").result(30)
        tx.abort()
    assert tx.committed is False
    with producer.transaction():
        producer.send(topic, b"next")
    assert log.committed(topic) == [b"next"]


def test_offsets_whose_sending_was_interrupted_take_the_transaction_with_them(
    log: Log, topic: str, tid: str, new_producer: NewProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = new_producer()
    _interrupting(monkeypatch, "commit_offsets", before=False)
    with failing(TransactionFailed, match="was interrupted"), producer.transaction() as tx:
        producer.send(topic, b"aborted").result(30)
        with pytest.raises(KeyboardInterrupt) as caught:
            tx.send_offsets(tid, {TopicPartition(topic, 0): 5})
        assert "can only be aborted" in caught.value.__notes__[0]
    assert tx.committed is False
    assert log.committed(topic) == []
    assert log.group_offsets(tid, topic, [0]) == [-1001]


def test_a_token_that_was_never_returned_is_withdrawn(
    kafka: LocalCluster, log: Log, topic: str, new_producer: NewProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = new_producer()
    real = Transactions.prepare

    def prepare(*args: Any) -> Any:
        real(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Transactions, "prepare", prepare)
        with failing(KeyboardInterrupt), producer.transaction() as tx:
            producer.send(topic, b"prepared")
            tx.prepare()
    assert tx.committed is False
    assert log.committed(topic) == []
    with producer.transaction() as tx:
        producer.send(topic, b"next")
        token = tx.prepare()
    assert tx.committed is None
    end_transaction(kafka.bootstrap, token, commit=True)
    assert log.committed(topic) == [b"next"]


@contextmanager
def _ctrl_c_after(seconds: float) -> Iterator[None]:
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _one_transaction(producer: Producer, topic: str, value: bytes, seconds: float) -> Transaction:
    """Send one record in a transaction that Ctrl-C may interrupt anywhere, and leave none open."""
    tx = producer.transaction()
    try:
        with _ctrl_c_after(seconds), tx:
            producer.send(topic, value)
    except KeyboardInterrupt:
        pass
    tx.abort()  # has an effect only if the block was left before its end began
    return tx


# If Ctrl-C comes right after a socket is opened, the interpreter closes it and warns about that.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("rounds", [40, pytest.param(1000, marks=pytest.mark.long)])
def test_ctrl_c_at_any_moment_leaves_no_doubt(log: Log, topic: str, new_producer: NewProducer, rounds: int) -> None:
    producer = new_producer()
    chance = random.Random(rounds)
    committed: list[bytes] = []
    aborted: list[bytes] = []
    longest = 0.0
    for number in range(rounds):
        value = b"%d" % number
        started = time.monotonic()
        undisturbed = number % 4 == 0  # these measure how long it takes on this machine now
        tx = _one_transaction(producer, topic, value, 60.0 if undisturbed else chance.uniform(0.0001, longest))
        longest = time.monotonic() - started if undisturbed else longest
        (committed if tx.committed else aborted).append(value)
        assert tx.committed is not None or tx._decision.number < 0, "the outcome is known, or it was never begun"
    assert log.committed(topic) == sorted(committed)
    assert aborted
    assert len(committed) >= rounds // 4
