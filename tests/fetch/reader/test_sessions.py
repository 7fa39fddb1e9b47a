"""Reading with fetch sessions: all records come once and in order, whatever the brokers remember."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from random import Random

import pytest
from tests.fetch.logs import fill
from tests.fetch.watching import by_partition, names, new_reader

from ottla.errors import DeadlineExceeded
from ottla.fetch.options import Fetching
from ottla.fetch.reader import Reader
from ottla.model import OffsetRange, TopicPartition
from ottla.testing import FakeKafka

from .stand import SHORT

PARTITIONS = 40
SMALL = Fetching(request_bytes=1 << 12, max_wait=0.05)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """`wide` has 20 records in each of forty partitions."""
    with FakeKafka(brokers=2, topics={"wide": PARTITIONS}, auto_create=None) as cluster:
        for number in range(PARTITIONS):
            fill(cluster, 2, at=TopicPartition("wide", number))
        yield cluster


def sessions(kafka: FakeKafka) -> list[int]:
    """Return the number of partitions in each session of the brokers."""
    with kafka._dispatcher.changed:
        return [len(session.parts) for session in kafka._dispatcher.state.fetch_sessions.values()]


def forget(kafka: FakeKafka) -> None:
    with kafka._dispatcher.changed:
        kafka._dispatcher.state.fetch_sessions.clear()


def test_many_partitions_are_read_within_sessions(kafka: FakeKafka) -> None:
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        assert by_partition(reader.read("wide")) == {number: list(range(20)) for number in range(PARTITIONS)}
    assert sessions(kafka)


def test_a_reader_that_follows_gets_what_is_new_and_brokers_remember_all_partitions(kafka: FakeKafka) -> None:
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        coming = names(reader.read("wide", stop=None))
        before = list(itertools.islice(coming, PARTITIONS * 20))
        assert len(set(before)) == len(before)
        for number in (3, 17, 3, 39):
            fill(kafka, 1, at=TopicPartition("wide", number))
            assert {record.partition for record in itertools.islice(coming, 10)} == {number}
        assert sum(sessions(kafka)) == PARTITIONS


def test_a_range_whose_end_does_not_come_is_given_up_although_no_answer_speaks_of_it(kafka: FakeKafka) -> None:
    ranges = [OffsetRange("wide", number, 0, 25 if number == 39 else 20) for number in range(PARTITIONS)]
    with (
        new_reader(kafka.bootstrap, fetching=SMALL, timeouts=SHORT) as reader,
        pytest.raises(DeadlineExceeded, match="wide-39 at offset 20"),
    ):
        list(reader.read(ranges))


def test_few_partitions_are_asked_for_without_a_session(kafka: FakeKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        assert len(list(names(reader.read("wide", partitions=range(4))))) == 80
    assert not sessions(kafka)


@pytest.mark.parametrize("seed", range(3))
def test_brokers_that_forget_and_go_away_lose_nothing(kafka: FakeKafka, seed: int) -> None:
    chance = Random(seed)
    is_over = threading.Event()

    def disturb() -> None:
        while not is_over.wait(0.02):
            if chance.random() < 0.7:
                forget(kafka)
            else:
                broker = chance.choice((1, 2))
                kafka.down(broker)
                is_over.wait(0.05)
                kafka.up(broker)

    thread = threading.Thread(target=disturb)
    with new_reader(kafka.bootstrap, fetching=SMALL) as reader:
        thread.start()
        try:
            read = _follow(kafka, reader, chance)
        finally:
            is_over.set()
            thread.join()
    assert read == {number: list(range(len(offsets))) for number, offsets in read.items()}


def _follow(kafka: FakeKafka, reader: Reader, chance: Random) -> dict[int, list[int]]:
    offsets: dict[int, list[int]] = {}
    coming = names(reader.read("wide", stop=None))
    left = PARTITIONS * 20
    for turn in range(30):
        for partition, offset in itertools.islice(coming, left):
            offsets.setdefault(partition, []).append(offset)
        left = 0
        if turn < 29:
            for number in chance.sample(range(PARTITIONS), 3):
                fill(kafka, 1, at=TopicPartition("wide", number))
                left += 10
    return offsets
