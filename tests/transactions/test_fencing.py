"""A second producer with the same transactional id takes over: the first gets `Fenced` in any state, and nothing of its
transaction is ever committed."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

import pytest
from tests.waiting import eventually

from ottla.cluster import LocalCluster
from ottla.errors import Fenced, OttlaError, TransactionFailed
from ottla.model import TopicPartition
from ottla.produce.options import Buffering
from ottla.produce.producer import Producer
from ottla.produce.transaction import Transaction, end_transaction

from .conftest import NewProducer, fail, failing
from .reading import Log

pytestmark = pytest.mark.broker

TAKEN_OVER = "has taken over"
TakeOver = Callable[[], None]


def _commits(old: Producer, topic: str, take_over: TakeOver) -> None:
    with failing(Fenced, TAKEN_OVER), old.transaction():
        old.send(topic, b"old")
        old.flush(30)
        take_over()


def _commits_while_records_wait(old: Producer, topic: str, take_over: TakeOver) -> None:
    with failing(Fenced, TAKEN_OVER), old.transaction():
        old.send(topic, b"old").result(30)
        take_over()
        old.send(topic, b"old, too")


def _prepares(old: Producer, topic: str, take_over: TakeOver) -> None:
    with failing(Fenced, TAKEN_OVER), old.transaction() as tx:
        old.send(topic, b"old").result(30)
        take_over()
        old.send(topic, b"old, too")
        tx.prepare()


def _aborts(old: Producer, topic: str, take_over: TakeOver) -> None:
    with failing(Fenced, TAKEN_OVER), old.transaction() as tx:
        old.send(topic, b"old").result(30)
        take_over()
        tx.abort()


def _raises(old: Producer, topic: str, take_over: TakeOver) -> None:
    with failing(LookupError, "mine"), old.transaction():
        old.send(topic, b"old").result(30)
        take_over()
        fail(LookupError("mine"))


def _sends_on(old: Producer, topic: str, take_over: TakeOver) -> None:
    def refused() -> bool:
        try:
            old.send(topic, b"old, too").exception(30)
        except Fenced:
            return True
        return False

    with failing(Fenced, TAKEN_OVER), old.transaction():
        old.send(topic, b"old").result(30)
        take_over()
        assert isinstance(old.send(topic, b"old, too").exception(30), Fenced)
        eventually(refused, "sending is refused at the call")
        # The program ignores the failure; the end of the block does not.


def _sends_offsets(old: Producer, topic: str, take_over: TakeOver) -> None:
    with failing(Fenced, TAKEN_OVER), old.transaction() as tx:
        old.send(topic, b"old").result(30)
        take_over()
        with pytest.raises(Fenced, match=TAKEN_OVER):
            tx.send_offsets("group-of-the-fenced", {TopicPartition(topic, 0): 1})


def _is_idle(old: Producer, topic: str, take_over: TakeOver) -> None:
    with old.transaction() as tx:
        old.send(topic, b"old").result(30)
        tx.abort()
    take_over()


def _has_committed(old: Producer, topic: str, take_over: TakeOver) -> None:
    with old.transaction():
        pass
    take_over()
    with failing(Fenced, TAKEN_OVER), old.transaction():
        assert isinstance(old.send(topic, b"old").exception(30), Fenced)


@pytest.mark.parametrize(
    "stand",
    [
        _commits,
        _commits_while_records_wait,
        _prepares,
        _aborts,
        _raises,
        _sends_on,
        _sends_offsets,
        _is_idle,
        _has_committed,
    ],
)
def test_a_producer_is_fenced_wherever_it_stands(
    log: Log, topic: str, new_producer: NewProducer, stand: Callable[[Producer, str, TakeOver], None]
) -> None:
    old, new = new_producer(), new_producer()

    def take_over() -> None:
        with new.transaction():
            new.send(topic, b"new")

    stand(old, topic, take_over)
    with failing(Fenced, TAKEN_OVER), old.transaction():
        pass
    with new.transaction():
        new.send(topic, b"newer")
    assert log.committed(topic) == [b"new", b"newer"]
    old.close(10)


def test_a_prepared_transaction_is_aborted_by_who_takes_over(
    kafka: LocalCluster, log: Log, topic: str, new_producer: NewProducer
) -> None:
    old, new = new_producer(), new_producer()
    with old.transaction() as tx:
        old.send(topic, b"old")
        token = tx.prepare()
    with new.transaction():
        new.send(topic, b"new")
    with pytest.raises(Fenced, match=r"cannot be ended any more.*another producer"):
        end_transaction(kafka.bootstrap, token, commit=True)
    with failing(Fenced, TAKEN_OVER), old.transaction():
        pass
    assert log.committed(topic) == [b"new"]


def test_a_fenced_producer_stays_so_and_closes_in_peace(topic: str, new_producer: NewProducer) -> None:
    old, new = new_producer(), new_producer()
    with failing(Fenced), old.transaction():
        old.send(topic, b"old").result(30)
        with new.transaction() as tx:
            tx.abort()
    for _ in range(2):
        with failing(Fenced), old.transaction():
            pass
        with pytest.raises(Fenced):
            old.send(topic, b"old")
    old.close(10)
    with pytest.raises(OttlaError, match="closed"):
        old.send(topic, b"old")
    assert not issubclass(Fenced, TransactionFailed)
    assert not isinstance(Transaction, Fenced)


def test_each_error_of_a_fenced_producer_is_a_new_one(topic: str, new_producer: NewProducer) -> None:
    """Found: one object was raised again and again, and its traceback grew to 151 MB after 1,885 refused sends."""
    old, new = new_producer(), new_producer()
    with failing(Fenced), old.transaction():
        old.send(topic, b"old").result(30)
        with new.transaction() as tx:
            tx.abort()
    errors: list[BaseException] = []
    for _ in range(50):
        with pytest.raises(Fenced, match=TAKEN_OVER) as caught:
            old.send(topic, b"old")
        errors.append(caught.value)
        with failing(Fenced, TAKEN_OVER) as caught_at_begin, old.transaction():
            pass
        errors.append(caught_at_begin.value)
    assert len({id(error) for error in errors}) == len(errors)
    assert max(len(list(traceback.walk_tb(error.__traceback__))) for error in errors) < 20


def test_a_producer_that_is_fenced_while_its_buffer_is_full_raises_fenced(
    topic: str, new_producer: NewProducer
) -> None:
    """Found: the sends waited forever, each for room that the sender could not free without a lock."""
    old, new = new_producer(buffering=Buffering(bytes=1 << 20)), new_producer()
    errors: list[BaseException] = []

    def send() -> None:
        try:
            while True:
                old.send(topic, bytes(20_000), b"key")
        except OttlaError as error:
            errors.append(error)

    with failing(Fenced, TAKEN_OVER), old.transaction():
        threads = [threading.Thread(target=send, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: old._budget.full, "the buffer is full")
        with new.transaction():
            new.send(topic, b"new")
        for thread in threads:
            thread.join(60)
        assert [type(error) for error in errors] == [Fenced] * 4
    eventually(lambda: old._budget.used == 0, lambda: f"nothing is kept of {old._budget.used:,} bytes")
