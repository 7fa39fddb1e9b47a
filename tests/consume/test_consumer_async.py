"""The consumer in asyncio: `async for`, and cancelled waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from tests.fetch.logs import fill
from tests.waiting import eventually

from ottla.consume.consumer import Consumer
from ottla.errors import CorruptBatch, OttlaError
from ottla.model import TopicPartition
from ottla.testing import FakeKafka

from .consuming import SMALL, committed, filled, joined, new_consumer, offsets, our_threads, read, rows

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
AT = TopicPartition("t", 0)
RECORDS = 400


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """`t` has 40 batches of ten records."""
    with FakeKafka(topics={"t": 1, "none": 1}, auto_create=None) as cluster:
        filled(cluster, "t", 1, batches=RECORDS // 10)
        yield cluster


def test_records_come_in_an_async_for(kafka: FakeKafka) -> None:
    async def program(consumer: Consumer) -> list[int]:
        offsets_read: list[int] = []
        async for batch in consumer:
            offsets_read += [offset for _, offset in rows(batch)]
            if len(offsets_read) == RECORDS // 2 + 50:
                await consumer.acommit()
            if len(offsets_read) >= RECORDS:
                break
        return offsets_read

    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        assert asyncio.run(program(consumer)) == list(range(RECORDS))
    assert committed(kafka) == {AT: RECORDS}


def test_a_cancelled_wait_loses_nothing(kafka: FakeKafka) -> None:
    """Waits of many lengths, cancelled anywhere; the next one gets their records."""

    async def program(consumer: Consumer) -> None:
        cancelled = 0
        while cancelled < 100:
            offsets_read: list[int] = []
            while len(offsets_read) < RECORDS:
                try:
                    batch = await asyncio.wait_for(anext(consumer), 0.0001 * (cancelled % 23))
                except TimeoutError:
                    cancelled += 1
                    assert committed(kafka).get(AT, 0) <= len(offsets_read)
                    continue
                offsets_read += [offset for _, offset in rows(batch)]
            assert offsets_read == list(range(RECORDS))
            consumer.seek(AT, 0)
            consumer.commit()

    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL, commit_every=0.001) as consumer:
        asyncio.run(program(consumer))


def test_what_a_cancelled_wait_got_is_not_committed(kafka: FakeKafka) -> None:
    """Regression: a cancelled batch counted as finished when the block ended."""

    async def program(consumer: Consumer) -> None:
        await anext(consumer)
        waiting = asyncio.ensure_future(anext(consumer))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        asyncio.run(program(consumer))
        eventually(lambda: consumer._async_poll._future is None or consumer._async_poll._future.done())
        got = consumer.position(AT)
    assert committed(kafka) == {AT: got}
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        assert read(consumer, 1)[0] == (0, got)


def test_other_calls_take_their_turn_after_a_cancelled_wait(kafka: FakeKafka) -> None:
    """Regression: for a second, other calls failed because "another thread" was using the consumer."""

    async def program(consumer: Consumer) -> None:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(consumer), 0.1)
            began = time.monotonic()
            consumer.commit()
            consumer.pause(*consumer.assignment)
            consumer.resume(*consumer.assignment)
            assert time.monotonic() - began < 0.5

    with new_consumer(kafka.bootstrap, topics="none") as consumer:
        joined(consumer, 1)
        asyncio.run(program(consumer))


def test_a_seek_after_a_cancelled_wait_counts(kafka: FakeKafka) -> None:
    async def program(consumer: Consumer) -> list[int]:
        first = await anext(consumer)
        waiting = asyncio.ensure_future(anext(consumer))
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        consumer.seek(AT, 300)
        return [offsets([first])[0], offsets([await anext(consumer)])[0]]

    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        offsets_read = asyncio.run(program(consumer))
    assert offsets_read == [0, 300]


def test_programs_may_change_between_the_ways_of_reading(kafka: FakeKafka) -> None:
    async def next_batch(consumer: Consumer) -> list[int]:
        return offsets([await anext(consumer)])

    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        offsets_read = asyncio.run(next_batch(consumer))
        offsets_read += [next(consumer.records()).offset]
        offsets_read += asyncio.run(next_batch(consumer))  # another loop
        offsets_read += offsets([next(iter(consumer))])
        offsets_read += [offset for _, offset in read(consumer, RECORDS - len(offsets_read))]
    assert offsets_read == list(range(RECORDS))


def test_an_error_is_raised_once_and_the_program_may_continue(kafka: FakeKafka) -> None:
    """Regression: the error of a poll came back forever."""

    async def program(consumer: Consumer) -> None:
        with pytest.raises(CorruptBatch):
            async for _ in consumer:
                pass
        consumer.seek(AT, RECORDS + 10)
        assert offsets([await anext(consumer)]) == list(range(RECORDS + 10, RECORDS + 20))

    with kafka._dispatcher.changed:
        log = kafka._partition("t", 0).log
        stored = log.batches[20]
        log.batches[20] = type(stored)(stored.data[:-1] + bytes([stored.data[-1] ^ 1]), stored.header)
    fill(kafka, 2)
    with new_consumer(kafka.bootstrap, topics="t") as consumer:
        asyncio.run(program(consumer))


def test_stop_ends_an_async_for(kafka: FakeKafka) -> None:
    async def program(consumer: Consumer) -> list[object]:
        async def iterate() -> list[object]:
            return [batch async for batch in consumer]

        reading = asyncio.ensure_future(iterate())
        await asyncio.sleep(0.2)
        consumer.stop()
        return await asyncio.wait_for(reading, 0.5)

    with new_consumer(kafka.bootstrap, topics="none") as consumer:
        assert asyncio.run(program(consumer)) == []
        with pytest.raises(StopAsyncIteration):
            asyncio.run(_next(consumer))
    eventually(lambda: not our_threads(), "no thread is left")


async def _next(consumer: Consumer) -> object:
    return await anext(consumer)


def test_two_tasks_share_without_getting_the_same(kafka: FakeKafka) -> None:
    async def program(consumer: Consumer) -> list[int]:
        offsets_read: list[int] = []

        async def iterate() -> None:
            async for batch in consumer:
                offsets_read.extend(offset for _, offset in rows(batch))
                if len(offsets_read) >= RECORDS:
                    consumer.stop()

        await asyncio.gather(iterate(), iterate())
        return offsets_read

    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        assert asyncio.run(program(consumer)) == list(range(RECORDS))


def test_a_closed_consumer_says_so(kafka: FakeKafka) -> None:
    consumer = new_consumer(kafka.bootstrap, topics="t")
    consumer.close()
    with pytest.raises(StopAsyncIteration):
        asyncio.run(_next(consumer))
    with pytest.raises(OttlaError, match="closed"):
        consumer.poll()


def test_async_with_commits_and_closes(kafka: FakeKafka) -> None:
    async def program() -> None:
        async with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
            while consumer.positions().get(AT) != RECORDS:
                await anext(consumer)
        with pytest.raises(OttlaError, match="closed"):
            await consumer.acommit()

    asyncio.run(program())
    assert committed(kafka) == {AT: RECORDS}


async def _iterate(consumer: Consumer) -> list[object]:
    return [batch async for batch in consumer]


def test_an_iteration_ends_quietly_when_another_task_closes(kafka: FakeKafka) -> None:
    """Regression: one of the two tasks failed, of "another thread" or of a thread pool that was shut down."""

    async def program() -> None:
        for topic in ("none", "t"):
            for seconds in (0.0, 0.001, 0.02, 0.1, 0.2, 0.3):
                consumer = new_consumer(kafka.bootstrap, topics=topic)
                reading = asyncio.ensure_future(_iterate(consumer))
                await asyncio.sleep(seconds)
                await consumer.aclose()
                await asyncio.wait_for(reading, 5.0)
        async with new_consumer(kafka.bootstrap, topics="none") as consumer:
            iterations = [asyncio.ensure_future(_iterate(consumer)) for _ in range(3)]
            await asyncio.sleep(0.1)
        await asyncio.wait_for(asyncio.gather(*iterations), 5.0)

    asyncio.run(program())


def test_tasks_iterate_and_commit_side_by_side(kafka: FakeKafka) -> None:
    async def program(consumer: Consumer) -> list[int]:
        offsets_read: list[int] = []

        async def iterate() -> None:
            async for batch in consumer:
                offsets_read.extend(offset for _, offset in rows(batch))
                await asyncio.sleep(0)

        async def commit() -> None:
            while len(offsets_read) < RECORDS:
                before = len(offsets_read)
                await consumer.acommit()
                assert before <= committed(kafka).get(AT, 0) <= len(offsets_read)
            await asyncio.gather(*(consumer.acommit() for _ in range(5)))

        reading = asyncio.ensure_future(iterate())
        await asyncio.gather(commit(), commit())
        await consumer.acommit()  # while a poll waits for records
        await consumer.aclose()
        await reading
        return offsets_read

    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL, commit_every=None) as consumer:
        assert asyncio.run(program(consumer)) == list(range(RECORDS))
    assert committed(kafka) == {AT: RECORDS}


def test_an_error_reaches_the_iteration_although_another_task_commits(kafka: FakeKafka) -> None:
    async def program(consumer: Consumer) -> None:
        async def commit() -> None:
            while not reading.done():
                await consumer.acommit({})

        reading = asyncio.ensure_future(_iterate(consumer))
        with pytest.raises(CorruptBatch):
            await asyncio.wait_for(asyncio.gather(reading, commit()), 20.0)

    with kafka._dispatcher.changed:
        log = kafka._partition("t", 0).log
        stored = log.batches[20]
        log.batches[20] = type(stored)(stored.data[:-1] + bytes([stored.data[-1] ^ 1]), stored.header)
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        asyncio.run(program(consumer))


def test_a_call_beside_a_wait_that_has_just_ended_counts(kafka: FakeKafka) -> None:
    """Regression: the waiting task got what was before a seek, and what was paused, which came once more after it."""

    async def polled(consumer: Consumer) -> asyncio.Future[object]:
        """Return a wait whose poll has its records, which the task does not know yet."""
        waiting = asyncio.ensure_future(_next(consumer))
        await asyncio.sleep(0)
        while consumer._async_poll._future is None or not consumer._async_poll._future.done():
            time.sleep(0.001)
        return waiting

    async def program(consumer: Consumer) -> None:
        await anext(consumer)
        waiting = await polled(consumer)
        consumer.seek(AT, 300)
        assert offsets([await waiting])[0] == 300
        consumer.seek(AT, 200)
        waiting = await polled(consumer)
        consumer.pause(AT)
        await asyncio.sleep(0.2)
        assert not waiting.done()
        consumer.resume(AT)
        assert offsets([await waiting])[0] == 200
        waiting = await polled(consumer)
        consumer.close()
        with pytest.raises(StopAsyncIteration):
            await waiting

    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        asyncio.run(program(consumer))


def test_a_task_that_its_loop_left_behind_holds_up_no_other_loop(kafka: FakeKafka) -> None:
    """Regression: each later wait, and `aclose`, waited for the turn of a task that never went on."""
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
        loop = asyncio.new_event_loop()
        left = loop.create_task(_next(consumer))
        loop.run_until_complete(asyncio.sleep(0.01))
        loop.close()

        async def program() -> None:
            await asyncio.wait_for(anext(consumer), 10.0)
            await asyncio.wait_for(consumer.aclose(), 10.0)

        asyncio.run(program())
        left._log_destroy_pending = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("cancels", [1, 3])
@pytest.mark.parametrize("leaves", [True, False])
def test_a_close_that_is_cancelled_before_its_turn_closes(kafka: FakeKafka, cancels: int, leaves: bool) -> None:
    """Regression: the member stayed in its group, with its heartbeats, until the process ended."""

    async def leave(consumer: Consumer) -> None:
        async with consumer:
            pass

    async def program(consumer: Consumer) -> None:
        reading = asyncio.ensure_future(_iterate(consumer))
        await asyncio.sleep(0.05)
        closing = asyncio.ensure_future(leave(consumer) if leaves else consumer.aclose())
        for _ in range(cancels):
            await asyncio.sleep(0)
            closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        with pytest.raises(OttlaError, match="closed"):
            consumer.commit()
        consumer.stop()
        await asyncio.wait_for(reading, 5.0)

    with new_consumer(kafka.bootstrap, topics="none") as consumer:
        asyncio.run(program(consumer))
