"""Threads that share units record by record: a unit is done only if every record was handled, and nothing is lost."""

from __future__ import annotations

import itertools
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from tests.engines.fleet.crew import new_fleet, settled, write
from tests.waiting import eventually

from ottla.engines.fleet.fleet import Fleet
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.record_sharing import RecordSharing
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.unit import Unit
from ottla.engines.fleet.units import Charter, Failure
from ottla.errors import ErrorCode
from ottla.events.values import UnitEnded
from ottla.fetch.options import Fetching
from ottla.model import OffsetRange, Record
from ottla.produce.producer import Producer
from ottla.testing import FakeKafka

SECONDS = 30.0
TOPIC = "clicks"
PATIENT = Charter(lease_seconds=1.0, max_attempts=1000)
IN_STEPS = Fetching(memory_bytes=1 << 16, request_bytes=1 << 10)
"""With records of 40 kB, the reader is never further ahead than one or two."""


class Hand:
    """A thread that asks for a record when the test says so."""

    def __init__(self, sharing: RecordSharing, name: str) -> None:
        self._sharing = sharing
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    def asks(self) -> Future[Record | None]:
        """What it gets, as soon as there is something."""
        return self._thread.submit(self._sharing.next)

    def gets(self) -> int | None:
        """The offset of what it gets."""
        record = self.asks().result(SECONDS)
        return None if record is None else record.offset

    def dies(self) -> None:
        """It ends, with what it has."""
        self._thread.shutdown()


Hands = Callable[..., tuple[Hand, ...]]
NewNode = Callable[..., Fleet]


@pytest.fixture
def hands() -> Iterator[Hands]:
    """Makes threads that share records; they end after the nodes."""
    made: list[Hand] = []

    def make(sharing: RecordSharing, *names: str) -> tuple[Hand, ...]:
        some = tuple(Hand(sharing, name) for name in names)
        made.extend(some)
        return some

    yield make
    for hand in made:
        hand.dies()


@pytest.fixture
def node(fake_kafka: FakeKafka, group: str, hands: Hands) -> Iterator[NewNode]:
    """Create nodes for a number of records in each partition, in units of a given size, from the first offset on."""
    with ExitStack() as stack:

        def make(records: int = 0, *, each: int = 3, partitions: int = 1, **options: Any) -> Fleet:
            if records:
                fake_kafka.create_topic(TOPIC, partitions)
                write(fake_kafka.bootstrap, TOPIC, records, partitions=partitions)
            given = {"topics": TOPIC, "units": Units(records=each), "charter": PATIENT} | options
            return stack.enter_context(new_fleet(fake_kafka.bootstrap, group, "memory://", **given))

        yield make


@pytest.fixture
def store(group: str) -> Store:
    """What the group stands like."""
    return open_store("memory://", group)


def done(store: Store) -> int:
    """How many units are."""
    return store.look().counts.done


def failures(fleet: Fleet) -> list[str]:
    """Why units of this node failed."""
    return [event.reason for event in fleet.newest if isinstance(event, UnitEnded) and event.status == "failed"]


def unit(start: int, stop: int) -> OffsetRange:
    return OffsetRange(TOPIC, 0, start, stop)


# Done


def test_a_unit_is_done_when_the_thread_with_its_last_record_asks_again(
    node: NewNode, hands: Hands, store: Store
) -> None:
    quick, slow = hands(RecordSharing(node(6).units()), "quick", "slow")
    assert [quick.gets(), quick.gets(), slow.gets()] == [0, 1, 2]
    assert quick.gets() == 3, "of the second unit"
    assert done(store) == 0, "the slow one still has a record of the first"
    assert {out.range for out in store.look().out} == {unit(0, 3), unit(3, 6)}
    assert slow.gets() == 4
    assert done(store) == 1
    assert [out.range for out in store.look().out] == [unit(3, 6)]


def test_a_record_in_the_middle_holds_its_unit_up_as_the_last_one_does(
    node: NewNode, hands: Hands, store: Store
) -> None:
    quick, slow = hands(RecordSharing(node(6).units()), "quick", "slow")
    assert slow.gets() == 0
    assert [quick.gets() for _ in range(5)] == [1, 2, 3, 4, 5]
    waits = quick.asks()
    eventually(lambda: done(store) == 1, "the second unit, which the slow one has nothing of, is done")
    assert [out.range for out in store.look().out] == [unit(0, 3)]
    slow.asks()
    eventually(lambda: done(store) == 2, "the first unit is done")
    assert not waits.done()


def test_a_thread_that_waits_for_units_does_not_hold_up_the_end_of_anothers(
    node: NewNode, hands: Hands, store: Store
) -> None:
    fleet, next_wanted = node(3), threading.Event()

    def units() -> Iterator[Unit]:
        for unit in fleet.units():
            yield unit
            next_wanted.set()

    first, second = hands(RecordSharing(units()), "first", "second")
    assert [first.gets(), first.gets(), second.gets()] == [0, 1, 2]
    waits = first.asks()
    assert next_wanted.wait(SECONDS)
    assert done(store) == 0
    also_waits = second.asks()
    eventually(lambda: done(store) == 1, "the unit is done")
    assert not waits.done()
    assert not also_waits.done()
    fleet.stop()
    assert [waits.result(SECONDS), also_waits.result(SECONDS)] == [None, None]


# Failed


@pytest.mark.parametrize("died_with", [0, 1, 2])
def test_the_records_of_a_thread_that_ended_come_again(
    died_with: int, node: NewNode, hands: Hands, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = node(3)
    sharing = RecordSharing(fleet.units())
    mortal, other = hands(sharing, "mortal", "other")
    assert [other.gets() for _ in range(died_with)] == list(range(died_with))
    assert mortal.gets() == died_with
    mortal.dies()
    assert [other.gets() for _ in range(3)] == [0, 1, 2]
    assert failures(fleet) == [f"RuntimeError: mortal_0 ended while it had offset {died_with}"]
    assert f"clicks-0[0, 3) failed (attempt 1): {failures(fleet)[0]}" in caplog.text
    other.asks()
    eventually(lambda: done(store) == 1, "it is done at the second attempt")
    assert store.look().counts.failed == 1


def test_what_others_have_of_a_unit_that_failed_is_forgotten(node: NewNode, hands: Hands, store: Store) -> None:
    fleet = node(3)
    mortal, slow, other = hands(RecordSharing(fleet.units()), "mortal", "slow", "other")
    assert [mortal.gets(), slow.gets()] == [0, 1]
    mortal.dies()
    assert other.gets() == 0
    assert slow.gets() == 1, "of the second attempt"
    assert other.gets() == 2
    other.asks()
    slow.asks()
    eventually(lambda: done(store) == 1, "it is done")
    counts = store.look().counts
    assert (counts.failed, counts.refused, counts.given_back) == (1, 0, 0)


def test_a_unit_that_two_threads_ended_with_fails_once(
    node: NewNode, hands: Hands, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = node(3)
    *mortals, other = hands(RecordSharing(fleet.units()), "one", "two", "other")
    assert [mortal.gets() for mortal in mortals] == [0, 1]
    for mortal in mortals:
        mortal.dies()
    assert [other.gets() for _ in range(3)] == [0, 1, 2]
    assert store.look().counts.failed == 1
    assert "could not report" not in caplog.text, "nobody says it a second time"


def test_a_thread_that_ended_is_noticed_while_the_others_wait_if_units_let_it(
    node: NewNode, hands: Hands, store: Store
) -> None:
    fleet = node(3)
    taken = fleet.units()
    over = threading.Event()

    def units() -> Iterator[Unit | None]:
        for _ in range(1000):
            yield None if store.look().out else next(taken)
            if over.wait(0.01):
                return

    mortal, other = hands(RecordSharing(units()), "mortal", "other")
    assert [other.gets(), other.gets(), mortal.gets()] == [0, 1, 2]
    waits = other.asks()
    mortal.dies()
    record = waits.result(SECONDS)
    assert record is not None
    assert record.offset == 0
    assert store.look().counts.failed == 1
    over.set()


def test_a_unit_that_cannot_be_read_is_tried_again_and_others_go_on(
    fake_kafka: FakeKafka, node: NewNode, hands: Hands, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    fault = fake_kafka.fail("Fetch", ErrorCode.topic_authorization_failed)
    fleet = node(6)
    (hand,) = hands(RecordSharing(fleet.units()), "hand")
    assert sorted(str(hand.gets()) for _ in range(6)) == list("012345")
    hand.asks()
    eventually(lambda: done(store) == 2, "both units are done")
    assert fault.hits == 1
    assert len(failures(fleet)) == 1
    assert "failed (attempt 1): " in caplog.text
    assert "TOPIC_AUTHORIZATION_FAILED" in caplog.text


def test_a_unit_that_cannot_be_read_to_its_end_is_not_done(
    fake_kafka: FakeKafka, node: NewNode, hands: Hands, store: Store
) -> None:
    fleet = node_of_large_records(fake_kafka, node)
    slow, quick = hands(RecordSharing(fleet.units()), "slow", "quick")
    assert slow.gets() == 0
    fake_kafka.fail("Fetch", ErrorCode.topic_authorization_failed)
    offsets = [quick.gets() for _ in range(12)]
    again = offsets.index(0)
    assert offsets == [*range(1, again + 1), *range(12 - again)]
    slow.gets()
    counts = store.look().counts
    assert (counts.failed, counts.done, counts.given_back) == (1, 0, 0)


def node_of_large_records(kafka: FakeKafka, node: NewNode) -> Fleet:
    """One unit, which is read in many steps."""
    kafka.create_topic(TOPIC, 1)
    with Producer(kafka.bootstrap) as producer:
        for _ in range(20):
            producer.send(TOPIC, bytes(40_000), partition=0)
            producer.flush(SECONDS)
    return node(each=20, fetching=IN_STEPS)


def test_a_unit_that_is_lost_while_it_is_read_is_left(
    fake_kafka: FakeKafka, node: NewNode, hands: Hands, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = node_of_large_records(fake_kafka, node)
    taken: list[Unit] = []

    def units() -> Iterator[Unit]:
        for unit in fleet.units():
            taken.append(unit)
            yield unit

    slow, quick = hands(RecordSharing(units()), "slow", "quick")
    assert slow.gets() == 0

    def is_reclaimed() -> bool:
        (out,) = store.pulse().out
        return store.reclaim(out.range, out.seen, Failure(out.range, out.attempt, "taken away"))

    eventually(is_reclaimed, "it was taken away between two beats")
    eventually(lambda: taken[0].is_lost, "the node knows")
    offsets = [quick.gets() for _ in range(12)]
    assert 0 in offsets, "it begins again"
    assert "was given to another node while this one read it" in caplog.text
    assert store.look().counts.failed == 0
    assert [unit.attempt for unit in taken] == [1, 2]


def test_that_the_end_of_a_unit_cannot_be_said_does_not_end_a_thread(
    node: NewNode, hands: Hands, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    taken: list[Unit] = []

    def units() -> Iterator[Unit]:
        for unit in node(6).units():
            taken.append(unit)
            yield unit

    (hand,) = hands(RecordSharing(units()), "hand")
    assert [hand.gets() for _ in range(3)] == [0, 1, 2]
    taken[0].done()  # so that nobody else can say it
    assert [hand.gets() for _ in range(3)] == [3, 4, 5]
    assert "could not report how clicks-0[0, 3) ended: InputError" in caplog.text


def test_a_unit_whose_reading_is_interrupted_is_given_back(fake_kafka: FakeKafka, node: NewNode, store: Store) -> None:
    fake_kafka.silence("Fetch")
    sharing = RecordSharing(node(3).units())
    main = threading.main_thread().ident
    assert main == threading.get_ident()

    def interrupt() -> None:
        fake_kafka.wait_for_request("Fetch")
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        sharing.next()
    thread.join(SECONDS)
    assert store.look().counts.given_back == 1
    fake_kafka.clear_faults()
    offsets = [record.offset for record in (sharing.next() for _ in range(3)) if record is not None]
    assert offsets == [0, 1, 2]


# Stop


def test_after_a_stop_the_unit_at_hand_is_cut_where_its_records_were_handed_out(
    node: NewNode, hands: Hands, store: Store
) -> None:
    fleet, stopped = node(10, each=10), threading.Event()
    first, second = hands(RecordSharing(fleet.units(), stopped.is_set), "first", "second")
    assert [first.gets(), second.gets()] == [0, 1]
    stopped.set()
    fleet.stop()
    assert first.gets() is None
    assert done(store) == 0, "the second one still has a record"
    assert second.gets() is None
    assert store.look().partitions[0].done == 2
    assert store.waiting() == [unit(2, 10)]
    (other,) = hands(RecordSharing(node(each=10).units()), "other")
    assert [other.gets() for _ in range(8)] == list(range(2, 10))


def test_after_a_stop_a_unit_without_records_in_hand_goes_back_whole(node: NewNode, hands: Hands, store: Store) -> None:
    fleet, stopped = node(3), threading.Event()
    mortal, other = hands(RecordSharing(fleet.units(), stopped.is_set), "mortal", "other")
    assert mortal.gets() == 0
    mortal.dies()
    stopped.set()
    fleet.stop()
    assert other.gets() is None
    assert store.waiting() == [unit(0, 3)]


def test_without_word_of_a_stop_the_unit_at_hand_is_handed_out_to_its_end(
    node: NewNode, hands: Hands, store: Store
) -> None:
    fleet = node(6)
    first, second = hands(RecordSharing(fleet.units()), "first", "second")
    assert first.gets() == 0
    fleet.stop()
    assert [second.gets(), second.gets(), second.gets()] == [1, 2, None]
    assert done(store) == 0, "the first one still has a record"
    assert first.gets() is None
    assert done(store) == 1
    # It may have been taken ahead; then it goes back by itself.
    eventually(lambda: store.waiting() == [unit(3, 6)], "the next unit is not taken")


def test_records_that_were_not_asked_past_before_the_node_was_closed_come_again(
    node: NewNode, hands: Hands, store: Store
) -> None:
    fleet = node(3)
    first, second = hands(RecordSharing(fleet.units()), "first", "second")
    assert [first.gets(), second.gets()] == [0, 1]
    fleet.close()
    assert store.waiting() == [unit(0, 3)]
    assert [first.gets(), second.gets(), first.gets()] == [2, None, None]
    assert done(store) == 0, "whoever asks after that changes nothing"
    (other,) = hands(RecordSharing(node().units()), "other")
    assert [other.gets() for _ in range(3)] == [0, 1, 2]


# Many


Seen = Counter[tuple[int, int]]
"""How often each record of each partition was handled."""
ALL = {(TOPIC, partition): 1250 for partition in range(4)}


def work(sharing: RecordSharing, seen: Seen, life: int = 1_000_000) -> None:
    """Handle records until there are none, or up to a limit: then end with one record that is not handled."""
    for _ in range(life):
        if (record := sharing.next()) is None:
            return
        seen[record.partition, record.offset] += 1
    sharing.next()


def test_many_threads_handle_every_record_exactly_once(node: NewNode, store: Store) -> None:
    fleet = node(1250, each=50, partitions=4)
    sharing, logs = RecordSharing(fleet.units()), [Seen() for _ in range(8)]
    threads = [threading.Thread(target=work, args=(sharing, seen)) for seen in logs]
    for thread in threads:
        thread.start()
    settled(store.look, ALL)
    fleet.stop()
    for thread in threads:
        thread.join(SECONDS)
    assert sum(logs, Seen()) == Seen(itertools.product(range(4), range(1250)))
    assert store.look().counts.done == 100
    assert store.look().counts.failed == 0


def test_many_threads_of_which_some_end_handle_every_record_at_least_once(
    node: NewNode, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = node(1250, each=50, partitions=4)
    sharing, logs = RecordSharing(fleet.units()), [Seen() for _ in range(4)]

    def generations(seen: Seen, lives: list[int]) -> None:
        for life in (*lives, 1_000_000):
            thread = threading.Thread(target=work, args=(sharing, seen, life))
            thread.start()
            thread.join(SECONDS)

    lives = [[100, 50], [130, 10], [170, 1], [210]]
    lines = [threading.Thread(target=generations, args=each) for each in zip(logs, lives, strict=True)]
    for line in lines:
        line.start()
    settled(store.look, ALL)
    fleet.stop()
    for line in lines:
        line.join(SECONDS)
    assert set(sum(logs, Seen())) == set(itertools.product(range(4), range(1250)))
    assert 1 <= store.look().counts.failed <= 7
    assert caplog.text.count("ended while it had offset") == store.look().counts.failed
