"""`aflush`, `aclose`, `async with`: what blocks runs beside the event loop, and cancelling leaves nothing half done."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing

import pytest
from tests.waiting import eventually

from ottla import Producer
from ottla.errors import ErrorCode, NotDelivered, OttlaError
from ottla.net.awaiting import on_thread, until_left
from ottla.net.deadline import Deadline
from ottla.testing import FakeKafka

from .producer.stand import new, stuck, values


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    with FakeKafka(topics={"t": 1}, auto_create=None) as cluster:
        yield cluster


def test_the_event_loop_goes_on_while_a_flush_waits(kafka: FakeKafka) -> None:
    async def program(producer: Producer) -> None:
        delivery = producer.send("t", b"one")
        flush = asyncio.ensure_future(producer.aflush())
        await asyncio.sleep(0.05)  # the loop would not come back from this before the flush has ended
        assert not flush.done()
        assert not delivery.done
        kafka.clear_faults()
        await flush
        assert delivery.done

    stuck(kafka)
    with new(kafka) as producer:
        asyncio.run(program(producer))
    assert values(kafka) == [b"one"]


def test_async_with_closes_and_raises_what_was_not_delivered(kafka: FakeKafka) -> None:
    async def program() -> None:
        async with new(kafka) as producer:
            producer.send("t", b"one")
        with pytest.raises(OttlaError, match="was closed"):
            producer.send("t", b"two")
        kafka.fail("Produce", ErrorCode.invalid_record, times=1)
        with pytest.raises(NotDelivered, match="INVALID_RECORD"):
            async with aclosing(new(kafka)) as other:
                other.send("t", b"three")

    asyncio.run(program())
    assert values(kafka) == [b"one"]


def test_a_flush_that_is_cancelled_goes_at_once_and_delivery_continues(kafka: FakeKafka) -> None:
    async def program(producer: Producer) -> None:
        delivery = producer.send("t", b"one")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.aflush(), 0.05)
        assert not delivery.done
        kafka.clear_faults()
        await producer.aflush(30)
        assert delivery.done

    stuck(kafka)
    with new(kafka) as producer:
        asyncio.run(program(producer))


def test_a_close_that_is_cancelled_is_waited_for(kafka: FakeKafka) -> None:
    async def program(producer: Producer) -> None:
        producer.send("t", b"one")
        closing = asyncio.ensure_future(producer.aclose())
        await asyncio.sleep(0.05)
        closing.cancel()
        await asyncio.sleep(0.05)
        assert not closing.done()
        kafka.clear_faults()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert values(kafka) == [b"one"]

    stuck(kafka)
    asyncio.run(program(new(kafka)))


def test_a_call_raises_what_it_raises_and_its_thread_ends() -> None:
    def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        asyncio.run(on_thread(fail))
    eventually(lambda: all(thread.name != "ottla-await" for thread in threading.enumerate()))


def _refused(kafka: FakeKafka) -> None:
    kafka.clear_faults()
    kafka.fail("Produce", ErrorCode.invalid_record, times=None)


def test_a_flush_that_was_left_raises_nothing_that_another_does_not(kafka: FakeKafka) -> None:
    """Regression: the thread of the flush that was left took the failures, and every later flush was happy."""

    async def program(producer: Producer) -> None:
        deliveries = [producer.send("t", b"one") for _ in range(3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(producer.aflush(), 0.05)
        _refused(kafka)
        for delivery in deliveries:
            with pytest.raises(NotDelivered):
                await delivery
        await asyncio.sleep(0.2)
        with pytest.raises(NotDelivered) as raised:
            await producer.aflush()
        assert raised.value.records == 3
        await producer.aflush()
        await producer.aclose()

    stuck(kafka)
    asyncio.run(program(new(kafka)))


def test_each_flush_that_waits_for_records_raises_if_they_fail(kafka: FakeKafka) -> None:
    """Threads and tasks alike. Regression: one of four raised, for all."""

    async def tasks(producer: Producer) -> list[object]:
        producer.send("t", b"one")
        flushes = [asyncio.ensure_future(producer.aflush()) for _ in range(4)]
        await asyncio.sleep(0.1)
        _refused(kafka)
        return await asyncio.gather(*flushes, return_exceptions=True)

    def threads(producer: Producer) -> list[object]:
        producer.send("t", b"one")
        with ThreadPoolExecutor(4) as pool:
            flushes = [pool.submit(producer.flush) for _ in range(4)]
            time.sleep(0.1)
            _refused(kafka)
            return [flush.exception() for flush in flushes]

    for way in (lambda producer: asyncio.run(tasks(producer)), threads):
        stuck(kafka)
        with new(kafka) as producer:
            outcomes = way(producer)
            assert [type(outcome) for outcome in outcomes] == [NotDelivered] * 4
            producer.flush()  # they were raised


def test_a_close_that_was_cancelled_leaves_the_failures_to_the_next(kafka: FakeKafka) -> None:
    async def program(producer: Producer) -> None:
        producer.send("t", b"one")
        closing = asyncio.ensure_future(producer.aclose())
        await asyncio.sleep(0.05)
        closing.cancel()
        _refused(kafka)
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(NotDelivered, match="INVALID_RECORD"):
            await producer.aclose()
        await producer.aclose()

    stuck(kafka)
    asyncio.run(program(new(kafka)))


def test_flushes_that_were_left_leave_no_threads_and_no_watchers(kafka: FakeKafka) -> None:
    """Regression: each waited on a thread until the brokers were back."""

    async def program(producer: Producer) -> None:
        delivery = producer.send("t", b"one")
        for _ in range(30):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.aflush(), 0.02)
        with pytest.raises(TimeoutError, match=r"no outcome after 0\.1 s"):
            await producer.aflush(0.1)
        eventually(lambda: all(thread.name != "ottla-await" for thread in threading.enumerate()))
        assert not delivery._shipment._watchers
        kafka.clear_faults()
        await producer.aflush(30)

    stuck(kafka)
    with new(kafka) as producer:
        asyncio.run(program(producer))


def test_a_thread_ends_soon_after_its_task_has_gone() -> None:
    def wait(deadline: Deadline) -> None:
        while not deadline.expired():
            time.sleep(0.01)

    async def program() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(until_left(wait, Deadline.after(1000.0)), 0.05)

    asyncio.run(program())
    eventually(lambda: all(thread.name != "ottla-await" for thread in threading.enumerate()))
