"""Transactions of asyncio programs: consume, transform and produce, exactly once; a cancelled task leaves none open."""

from __future__ import annotations

import asyncio
import threading
import uuid

import pytest

from ottla import Consumer
from ottla.cluster import LocalCluster
from ottla.produce.coordinator import PreparedTransaction
from ottla.produce.producer import Producer
from ottla.produce.transaction import Transaction
from ottla.produce.transactions import State

from .conftest import NewProducer, NewTopic
from .reading import Log

pytestmark = pytest.mark.broker


def test_an_async_block_commits_and_one_that_raises_aborts(log: Log, topic: str, new_producer: NewProducer) -> None:
    async def program(producer: Producer) -> None:
        async with producer.transaction() as transaction:
            await producer.send(topic, b"one")
        assert transaction.committed
        with pytest.raises(LookupError):  # noqa: PT012
            async with producer.transaction() as transaction:
                await producer.send(topic, b"two")
                raise LookupError
        assert transaction.committed is False

    asyncio.run(program(new_producer()))
    assert log.committed(topic) == [b"one"]


def test_records_are_moved_exactly_once(
    kafka: LocalCluster, log: Log, new_topic: NewTopic, new_producer: NewProducer
) -> None:
    source, target, group = new_topic(), new_topic(), f"upper-{uuid.uuid4().hex[:8]}"

    async def program(producer: Producer) -> None:
        async with Consumer(kafka.bootstrap, group=group, topics=source, commit_every=None) as consumer:
            moved = 0
            async for records in consumer:
                async with producer.transaction() as transaction:
                    producer.send_many(target, [value.upper() for value in records.column("value").to_pylist()])
                    await transaction.asend_offsets(consumer.member, consumer.positions())
                moved += len(records)
                if moved == 3:
                    return

    with Producer(kafka.bootstrap) as producer:
        producer.send_many(source, [b"a", b"b", b"c"])
    asyncio.run(program(new_producer()))
    assert log.committed(target) == [b"A", b"B", b"C"]
    with Consumer(kafka.bootstrap, group=group, topics=source) as consumer:
        assert [committed.offset for committed in consumer.committed([(source, 0)]).values()] == [3]  # type: ignore[list-item]


def test_a_task_that_is_cancelled_while_its_transaction_begins_leaves_none_open(
    log: Log, topic: str, new_producer: NewProducer
) -> None:
    async def block(producer: Producer, value: bytes) -> None:
        async with producer.transaction():
            await producer.send(topic, value)

    async def program(producer: Producer) -> None:
        for _ in range(3):
            task = asyncio.ensure_future(block(producer, b"never"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await block(producer, b"the next one works")

    asyncio.run(program(new_producer()))
    assert log.committed(topic) == [b"the next one works"]


def test_a_task_that_is_cancelled_while_it_prepares_leaves_no_transaction_open(
    kafka: LocalCluster, log: Log, topic: str, new_producer: NewProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: nobody had the token, and readers stood still until the transaction's timeout."""

    is_prepared, may_return = threading.Event(), threading.Event()
    prepare = Transaction.prepare

    def prepare_and_wait(self: Transaction) -> PreparedTransaction:
        prepared = prepare(self)
        is_prepared.set()
        assert may_return.wait(60)
        return prepared

    monkeypatch.setattr(Transaction, "prepare", prepare_and_wait)

    async def block(producer: Producer) -> None:
        async with producer.transaction() as transaction:
            await producer.send(topic, b"never")
            await transaction.aprepare()

    async def program(producer: Producer) -> None:
        transactions = producer._transactions
        assert transactions is not None
        for _ in range(3):
            is_prepared.clear()
            may_return.clear()
            task = asyncio.ensure_future(block(producer))
            assert await asyncio.to_thread(is_prepared.wait, 60)
            task.cancel()
            may_return.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert transactions.state not in (State.OPEN, State.PREPARED)

    asyncio.run(program(new_producer()))
    with Producer(kafka.bootstrap) as producer:
        producer.send(topic, b"read at once")
    assert log.committed(topic) == [b"read at once"]
