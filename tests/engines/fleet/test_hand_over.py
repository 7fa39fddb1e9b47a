"""Between the brokers and those who handle records lies a buffer of bounded size, however it is read from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from tests.waiting import eventually

from ottla import Batching, Fetching, Fleet, Producer, Record, Units
from ottla.testing.fake.kafka import FakeKafka

TOPIC = "clicks"
RECORDS, SIZE = 10_000, 1_000
FETCHING = Fetching(memory_bytes=1 << 20, request_bytes=1 << 18)
FETCHES = RECORDS * SIZE >> 18
"""Of the whole topic, at least."""
FETCHED_AHEAD = (1 << 20 >> 18) + 3
"""That fit into the buffer, and what is under way or being handed out."""


@pytest.fixture
def kafka(fake_kafka: FakeKafka) -> FakeKafka:
    fake_kafka.create_topic(TOPIC)
    with Producer(fake_kafka.bootstrap, compression="none", batching=Batching(bytes=50_000)) as producer:
        producer.send_many(TOPIC, [b"%0*d" % (SIZE, number) for number in range(RECORDS)])
    return fake_kafka


@pytest.fixture
def fleet(kafka: FakeKafka, group: str) -> Iterator[Fleet]:
    """A single unit has all of it."""
    with Fleet(
        kafka.bootstrap,
        group=group,
        topics=TOPIC,
        store="memory://",
        start="earliest",
        fetching=FETCHING,
        units=Units(records=RECORDS, bytes=1 << 30),
    ) as fleet:
        yield fleet


def fetches(kafka: FakeKafka) -> int:
    return sum(1 for request in kafka.requests if request.api == "Fetch")


def settled(kafka: FakeKafka) -> int:
    """How many fetches there were when no more came for a while."""
    seen = [-1] * 100  # a second of looks

    def is_still() -> bool:
        seen.append(fetches(kafka))
        return seen[-100] == seen[-1] > 0

    eventually(is_still, "the fetcher has stopped")
    return seen[-1]


def one_by_one(fleet: Fleet) -> Iterator[Record]:
    while (record := fleet.record()) is not None:
        yield record


def by_unit(fleet: Fleet) -> Iterator[Record]:
    for unit in fleet.units():
        with unit:
            yield from unit.records()


@pytest.mark.parametrize("ways", [one_by_one, Fleet.records, by_unit])
def test_no_more_is_fetched_than_the_buffer_holds(
    kafka: FakeKafka, fleet: Fleet, ways: Callable[[Fleet], Iterator[Record]]
) -> None:
    records = ways(fleet)
    assert next(records).offset == 0
    assert settled(kafka) <= FETCHED_AHEAD < FETCHES // 3
    assert len(fleet.look().out) == 1, "and no unit is taken ahead"
    assert [next(records).offset for _ in range(RECORDS - 1)] == list(range(1, RECORDS))
    assert fetches(kafka) >= FETCHES


def test_threads_share_it_record_by_record(kafka: FakeKafka, fleet: Fleet) -> None:
    """While all of them hold a record, the buffer is as full as it gets; each record goes to one of them."""
    held, go_on = threading.Barrier(5, timeout=60), threading.Event()
    offsets: list[int] = []

    def work() -> None:
        record = fleet.record()
        held.wait()
        go_on.wait(60)
        while record is not None:
            offsets.append(record.offset)
            record = fleet.record()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    held.wait()
    assert settled(kafka) <= FETCHED_AHEAD
    go_on.set()
    eventually(lambda: fleet.look().counts.offsets == RECORDS, lambda: f"all is done: {fleet.look()}", seconds=60)
    fleet.stop()
    for thread in threads:
        thread.join(30)
    assert sorted(offsets) == list(range(RECORDS))
