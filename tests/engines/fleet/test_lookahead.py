"""The next unit is taken and fetched while the current one is worked on, and given back if it is not claimed."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import eventually

from ottla import Batching, Fetching, Fleet, Producer, Units
from ottla.engines.fleet.unit import Unit, _Rest
from ottla.errors import ConfigError, InputError
from ottla.events import Event, RangeLost
from ottla.fetch.reader import Prefetch, Reader
from ottla.model import OffsetRange
from ottla.testing.fake.kafka import FakeKafka

TOPIC = "clicks"
RECORDS, UNIT = 1_000, 100


@pytest.fixture
def kafka(fake_kafka: FakeKafka) -> FakeKafka:
    fake_kafka.create_topic(TOPIC)
    with Producer(fake_kafka.bootstrap, batching=Batching(bytes=5_000)) as producer:
        producer.send_many(TOPIC, [b"%0100d" % number for number in range(RECORDS)])
    return fake_kafka


def new_fleet(kafka: FakeKafka, group: str, store: str = "memory://") -> Fleet:
    return Fleet(
        kafka.bootstrap,
        group=group,
        topics=TOPIC,
        store=store,
        start="earliest",
        units=Units(records=UNIT),
    )


@pytest.fixture
def fleet(kafka: FakeKafka, group: str) -> Iterator[Fleet]:
    with new_fleet(kafka, group) as fleet:
        yield fleet


def no_thread_is_left() -> bool:
    return not any(thread.name.startswith(("ottla-fleet-ahead", "ottla-read")) for thread in threading.enumerate())


def is_fetched(unit: Unit) -> bool:
    prefetch = unit._prefetch
    assert prefetch is not None, "it was taken ahead"
    return is_ready(prefetch)


def is_ready(prefetch: Prefetch) -> bool:
    assert prefetch._fetcher is not None, "nobody reads it yet"
    return prefetch._fetcher.buffer.is_ready()


def test_while_a_unit_is_read_the_next_one_is_taken_and_its_records_come(kafka: FakeKafka, fleet: Fleet) -> None:
    units = fleet.units()
    with next(units) as first:
        assert sum(batch.num_rows for batch in first.read()) == UNIT
    second = next(units)
    assert second.range == OffsetRange(TOPIC, 0, UNIT, 2 * UNIT)
    eventually(lambda: is_fetched(second), "its records are here before anybody reads them")
    kafka.silence("Fetch", times=None)
    assert next(second.read()).num_rows == UNIT
    kafka.clear_faults()
    units.close()  # type: ignore[attr-defined]


class Reading:
    """A unit that is being read, as `_Rest` sees it."""

    def __init__(self, records: int) -> None:
        self.range = OffsetRange(TOPIC, 0, 0, records)
        self.reached = 0


@pytest.mark.parametrize("fetched_at", [0, 5, 9])
def test_nothing_is_taken_before_the_brokers_have_sent_everything_and_little_is_left(
    fetched_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("ottla.engines.fleet.unit.time.monotonic", lambda: now)
    taken_at: list[int] = []
    unit = Reading(1_000)
    rest = _Rest(unit, lambda: taken_at.append(unit.reached))  # type: ignore[arg-type]
    for step in range(10):
        if step == fetched_at:
            rest.all_fetched()
        now += 0.1  # a tenth of the unit takes as long as `NEAR_END_SECONDS`
        unit.reached += 100
        rest.look()
    assert taken_at == [900], "once, when a tenth is left"


def test_a_unit_whose_rest_is_still_to_come_takes_nothing() -> None:
    taken: list[bool] = []
    unit = Reading(1_000)
    rest = _Rest(unit, lambda: taken.append(True))  # type: ignore[arg-type]
    unit.reached = 999
    rest.look()
    assert not taken, "the brokers are still sending"
    rest.all_fetched()
    assert taken == [True]
    rest.look()
    assert taken == [True]


def test_every_record_is_read_once(fleet: Fleet) -> None:
    seen: list[int] = []
    for unit in fleet.units(until_end=True):
        with unit:
            seen += [offset for batch in unit.read(["offset"]) for offset in batch.column("offset").to_pylist()]
    assert seen == list(range(RECORDS))
    eventually(no_thread_is_left, "all threads have ended")


def test_a_unit_that_is_not_claimed_soon_goes_to_an_idle_node(kafka: FakeKafka, group: str, tmp_path: Path) -> None:
    """A program that first reads its unit and then computes for long holds up no other unit."""
    store = f"sqlite:///{tmp_path}/fleet.db"
    with new_fleet(kafka, group, store) as slow, new_fleet(kafka, group, store) as quick:
        unit = next(slow.units())
        with unit:
            assert unit.table().num_rows == UNIT
            others: list[Unit] = []
            for other in quick.units():
                with other:
                    others.append(other)
                if len(others) == RECORDS // UNIT - 1:
                    break
            starts = sorted(other.range.start for other in others)
            assert starts == list(range(UNIT, RECORDS, UNIT))
        assert slow.look().counts.reclaimed == 0


def test_a_program_that_takes_its_time_stops_taking_ahead(fleet: Fleet) -> None:
    """Units that are taken and given back again and again are work for the store, and keep others from them."""
    most = 0
    for number, unit in enumerate(fleet.units(until_end=True)):
        with unit:
            assert unit.table().num_rows == UNIT
            if number in (0, 1, 2):
                eventually(lambda: len(fleet.look().out) == 1, "what was taken ahead went back")
            out = len(fleet.look().out)
            most = max(most, out if number in (1, 2) else 0)
    assert most == 1


def test_what_was_taken_ahead_goes_back_when_the_program_stops(fleet: Fleet) -> None:
    units = fleet.units()
    unit = next(units)
    with unit:
        batches = unit.read()
        next(batches)
        eventually(lambda: len(fleet.look().out) == 2, "the next unit was taken")
        batches.close()  # type: ignore[attr-defined]
    units.close()  # type: ignore[attr-defined]
    eventually(lambda: len(fleet.look().out) == 0, "it went back")
    eventually(no_thread_is_left, "all threads have ended")


def test_closing_the_fleet_gives_back_what_was_taken_ahead_and_leaves_no_thread(kafka: FakeKafka, group: str) -> None:
    with new_fleet(kafka, group) as fleet:
        unit = next(units := fleet.units())
        next(unit.read())
        eventually(lambda: len(fleet.look().out) == 2, "the next unit was taken")
        fleet.close()
        assert no_thread_is_left()
        assert list(units) == []


def test_a_unit_that_outlives_its_iterator_takes_nothing_ahead(fleet: Fleet) -> None:
    unit = next(fleet.units())
    assert unit.table().num_rows == UNIT
    assert len(fleet.look().out) == 1
    assert no_thread_is_left()


def test_a_prefetch_holds_one_answer_until_it_is_read(kafka: FakeKafka) -> None:
    fetching = Fetching(request_bytes=1 << 14)

    def fetches() -> int:
        return sum(1 for request in kafka.requests if request.api == "Fetch")

    with Reader(kafka.bootstrap, fetching=fetching) as reader:
        prefetch = reader.prefetch(OffsetRange(TOPIC, 0, 0, RECORDS))
        eventually(lambda: is_ready(prefetch), "its first answer is here")
        assert fetches() == 1
        rows = sum(stretch.rows for stretch in reader.decoded(prefetch))
        assert rows == RECORDS
        with pytest.raises(InputError, match="read only once"):
            next(reader.decoded(prefetch))
        unread = reader.prefetch(OffsetRange(TOPIC, 0, 0, RECORDS))
        unread.close()
        with pytest.raises(InputError, match="read or closed"):
            next(reader.decoded(unread))
    eventually(no_thread_is_left, "all threads have ended")


def test_a_system_without_another_thread_takes_nothing_ahead(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: units failed that needed no other thread."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "ottla-fleet-ahead":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    rows = 0
    for unit in fleet.units(until_end=True):
        with unit:
            rows += sum(batch.num_rows for batch in unit.read())
    assert rows == RECORDS


def test_a_unit_whose_prefetch_gets_no_thread_is_still_claimed(
    kafka: FakeKafka, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it stayed taken until its lease expired."""

    def refuse(_: OffsetRange) -> Prefetch:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(fleet._lookahead, "_prefetch", refuse)
    seen: list[int] = []
    for unit in fleet.units(until_end=True):
        with unit:
            seen += [offset for batch in unit.read(["offset"]) for offset in batch.column("offset").to_pylist()]
    assert seen == list(range(RECORDS))


def test_a_wrong_argument_leaves_the_prefetch_to_the_next_read(fleet: Fleet) -> None:
    """Regression: its thread, connections and records stayed until the fleet was closed."""
    units = fleet.units()
    with next(units) as first:
        assert first.table().num_rows == UNIT
    second = next(units)
    prefetch = second._prefetch
    assert prefetch is not None
    with pytest.raises(ConfigError, match="unknown columns"):
        next(second.read(["vaule"]))
    assert second._prefetch is prefetch
    assert second.table().num_rows == UNIT
    with pytest.raises(InputError, match="already read"):
        prefetch.taken()
    units.close()  # type: ignore[attr-defined]


def test_a_prefetch_that_is_dropped_ends(kafka: FakeKafka) -> None:
    """Regression: its thread, connections and records stayed until the reader was closed."""
    with Reader(kafka.bootstrap) as reader:
        prefetches = [reader.prefetch(OffsetRange(TOPIC, 0, 0, RECORDS))]
        eventually(lambda: is_ready(prefetches[0]), "its first answer is here")
        prefetches.clear()
        gc.collect()
        eventually(no_thread_is_left, "its thread has ended")
        assert not reader._fetchers
        assert sum(stretch.rows for stretch in reader.decoded(OffsetRange(TOPIC, 0, 0, RECORDS))) == RECORDS


def test_a_range_that_was_prefetched_as_a_whole_is_told_once(kafka: FakeKafka) -> None:
    """Regression: the reader was often at the end before the fetching thread came to it."""
    with Reader(kafka.bootstrap) as reader:
        for _ in range(20):
            told: list[bool] = []
            prefetch = reader.prefetch(OffsetRange(TOPIC, 0, 0, UNIT))
            eventually(lambda prefetch=prefetch: is_ready(prefetch), "its records are here")  # type: ignore[misc]
            stretches = reader.decoded(prefetch, all_fetched=lambda told=told: told.append(True))  # type: ignore[misc]
            assert next(stretches).rows == UNIT
            assert told == [True], "with the first records"
            assert list(stretches) == []
            assert told == [True]


def test_losses_of_a_prefetch_are_logged_when_it_is_read(kafka: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    """Regression: those of a prefetch that was never read were logged, too."""
    with kafka._dispatcher.changed:
        kafka._partition(TOPIC, 0).log.delete_before(UNIT)
    lost: list[RangeLost] = []

    def note(event: Event) -> None:
        if isinstance(event, RangeLost):
            lost.append(event)

    with Reader(kafka.bootstrap, on_lost="earliest", events=[note]) as reader:
        unread = reader.prefetch(OffsetRange(TOPIC, 0, 0, RECORDS))
        eventually(lambda: is_ready(unread), "it has found what is left")
        unread.close()
        assert (lost, caplog.messages) == ([], [])
        rows = sum(stretch.rows for stretch in reader.decoded(reader.prefetch(OffsetRange(TOPIC, 0, 0, RECORDS))))
    assert rows < RECORDS
    assert [(loss.start, loss.resume) for loss in lost] == [(0, RECORDS - rows)]
    assert len(caplog.messages) == 1
    assert f"offsets [0, {RECORDS - rows}) are lost" in caplog.messages[0]
