"""Ctrl-C in the middle of a poll: wherever it comes, nothing is skipped, and nothing is committed unseen."""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest
from tests.interrupting import CtrlC

from ottla.consume.consumer import Consumer
from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.testing import FakeKafka

from .consuming import SMALL, committed, filled, joined, new_consumer, read, rows

pytestmark = pytest.mark.usefixtures("no_thread_is_left")
FILES = tuple(
    f"ottla/{name}.py"
    for name in (
        "consume/consumer",
        "consume/handing",
        "consume/positions",
        "consume/share",
        "consume/beginnings",
        "fetch/buffer",
        "wire/decode",
    )
)
LOOP_FILES = tuple(
    f"ottla/{name}.py"
    for name in (
        "fetch/cursor",
        "fetch/fetcher",
        "fetch/leaders",
        "fetch/buffer",
        "fetch/recovery",
        "net/wakeup",
        "net/connection",
        "net/background",
        "net/frames",
        "net/pipeline",
        "net/links",
        "net/lookups",
        "net/loop",
        "net/outbox",
        "net/pending",
        "net/traffic",
        "net/refresh",
    )
)
"""A waiting program runs the loop on its own thread."""
RECORDS = 400
AT = TopicPartition("t", 0)


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """`t` has 40 batches of ten records."""
    with FakeKafka(topics={"t": 1}, auto_create=None) as cluster:
        filled(cluster, "t", 1, batches=RECORDS // 10)
        yield cluster


def test_an_interrupted_poll_passes_nothing_over_and_commits_nothing_unseen(kafka: FakeKafka) -> None:
    """Interrupt at every possible place, one after the other; the program continues each time."""
    interrupter = CtrlC(FILES)
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL, commit_every=0.001) as consumer:
        joined(consumer, 1)
        consumer.seek(AT, 0)
        seen, interruptions, place = list[int](), 0, 1
        while True:
            batch, was_interrupted = interrupter.ends(lambda: consumer.poll(0.2), place)
            assert committed(kafka).get(AT, 0) <= len(seen)
            if batch is not None:
                offsets = [offset for _, offset in rows(batch)]
                assert offsets == list(range(len(seen), len(seen) + len(offsets)))
                seen += offsets
            if not was_interrupted and place > interrupter.seen + 50:
                break
            interruptions += was_interrupted
            place += 1
            if len(seen) == RECORDS:
                consumer.seek(AT, 0)
                consumer.commit()
                seen.clear()
    assert interruptions > 100


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_a_turn_of_the_loop_that_was_interrupted_passes_nothing_over(kafka: FakeKafka, seed: int) -> None:
    """Interrupt at some of the many places in a program that runs the loop; what was under way comes again."""
    chance = random.Random(seed)
    interrupter = CtrlC(LOOP_FILES)
    seen, interruptions, most = list[int](), 0, 1
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL, commit_every=None) as consumer:
        joined(consumer, 1)
        consumer.seek(AT, 0)
        while interruptions < 60:
            batch, was_interrupted = interrupter.ends(lambda: consumer.poll(1.0), chance.randint(1, most))
            interruptions += was_interrupted
            most = max(most, min(interrupter.seen * 2, 4000))
            if batch is not None:
                offsets = [offset for _, offset in rows(batch)]
                assert offsets == list(range(len(seen), len(seen) + len(offsets)))
                seen += offsets
            if len(seen) == RECORDS:
                consumer.seek(AT, 0)
                seen.clear()
        seen += [offset for _, offset in read(consumer, RECORDS - len(seen))]
    assert seen == list(range(RECORDS))


def test_an_interrupted_iteration_of_records_passes_nothing_over(kafka: FakeKafka) -> None:
    interrupter = CtrlC(FILES)
    with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL, commit_every=None) as consumer:
        joined(consumer, 1)
        consumer.seek(AT, 0)
        count = 0
        records = consumer.records()
        for place in range(1, 600):
            record, was_interrupted = interrupter.ends(lambda: next(records), place)  # noqa: B023
            if was_interrupted:
                records = consumer.records()
            else:
                assert record.offset == count
                count += 1
            assert consumer.position(AT) == count
            if count == RECORDS:
                break
    assert count > 100


class Alarm(Exception):
    """What a program raises in its own signal handler."""


@pytest.mark.parametrize("kind", [KeyboardInterrupt, Alarm])
def test_real_signals_at_any_time_lose_nothing(kafka: FakeKafka, kind: type[BaseException]) -> None:
    """A timer interrupts polls at random. The handler raises only inside our files: the program's own code cannot tell
    whether it received what was being returned, and other libraries do not expect it everywhere."""

    def alarm(_: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename.endswith((*FILES, *LOOP_FILES)):
            raise kind

    before = signal.signal(signal.SIGALRM, alarm)
    seen, interruptions = list[int](), 0
    try:
        with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL, commit_every=0.001) as consumer:
            joined(consumer, 1)
            while interruptions < 30:
                consumer.seek(AT, 0)
                seen.clear()
                signal.setitimer(signal.ITIMER_REAL, 0.0007, 0.011)
                while len(seen) < RECORDS:
                    try:
                        batch = consumer.poll(0.2)
                    except kind:
                        interruptions += 1
                        continue
                    except BaseException:
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        raise
                    if batch is not None:
                        seen += [offset for _, offset in rows(batch)]
                signal.setitimer(signal.ITIMER_REAL, 0)
                assert seen == list(range(RECORDS))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_that_polls_in_the_middle_of_a_poll_gets_an_error(kafka: FakeKafka) -> None:
    errors: list[OttlaError] = []

    def handler(*_: object) -> None:
        try:
            consumer.poll(60.0)
        except OttlaError as error:
            errors.append(error)
        consumer.stop()

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
            joined(consumer, 1)
            consumer.seek(AT, RECORDS)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            assert list(consumer) == []
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "already waiting for records" in str(errors[0])


def test_after_an_interruption_a_block_commits_only_what_was_done(kafka: FakeKafka) -> None:
    def program() -> None:
        with new_consumer(kafka.bootstrap, topics="t", fetching=SMALL) as consumer:
            for _ in consumer:
                done.append(consumer.position(AT))
                if len(done) == 3:
                    raise KeyboardInterrupt

    done: list[Any] = []
    with pytest.raises(KeyboardInterrupt):
        program()
    assert committed(kafka) == {AT: done[1]}


def test_places_being_found_out_survive_an_interruption(kafka: FakeKafka) -> None:
    """An interrupt while partitions are assigned: they are read nevertheless."""
    interrupter = CtrlC(FILES)
    for place in range(1, 200, 41):
        with new_consumer(kafka.bootstrap, f"g-{place}", topics="t") as consumer:
            interrupted = False
            while not interrupted and not consumer.positions():
                _, interrupted = interrupter.ends(lambda: consumer.poll(0.05), place)
            consumer.poll(0.5)
            consumer.seek(AT, 390) if _has(consumer) else None
            assert read(consumer, 10)[-1] == (0, RECORDS - 1)


def _has(consumer: Consumer) -> bool:
    joined(consumer, 1)
    return True
