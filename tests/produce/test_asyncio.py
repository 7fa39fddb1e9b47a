"""`aflush`, `aclose`, `async with`: what blocks runs beside the event loop, and cancelling leaves nothing half done."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import aclosing

import pytest
from tests.waiting import eventually

from ottla import Producer
from ottla.errors import ErrorCode, NotDelivered, OttlaError
from ottla.net.awaiting import on_thread
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
