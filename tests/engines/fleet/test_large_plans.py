"""Plans of any size reach every store in steps of bounded size. What cannot be planned is an event and in `look`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import eventually

from ottla import Charter, Fleet, Producer, Units
from ottla.engines.fleet import jobs
from ottla.engines.fleet.planning import PORTION, Log, plan, portions
from ottla.engines.fleet.rules import Rules
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.units import Lease, Move
from ottla.errors import StoreUnavailable
from ottla.events.values import PlanningFailed, UnitsPlanned
from ottla.fetch.options import OnLost
from ottla.model import OffsetRange, TopicPartition
from ottla.testing.fake.kafka import FakeKafka

from .job_play import Play, Slow

TOPIC = "clicks"


def moves_of(counts: Sequence[int]) -> list[Move]:
    """One move per partition, with this number of units."""
    return [
        Move(
            TopicPartition(TOPIC, partition),
            None,
            10 * count,
            tuple(OffsetRange(TOPIC, partition, 10 * number, 10 * number + 10) for number in range(count)),
        )
        for partition, count in enumerate(counts)
    ]


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(1, 12))
def test_all_portions_together_are_the_plan(counts: list[int], most: int) -> None:
    moves = moves_of(counts)
    at_once, in_steps = Rules(Charter()), Rules(Charter())
    lease, same = at_once.lead("a"), in_steps.lead("a")
    assert lease is not None
    assert lease == same
    assert at_once.plan(lease, moves)
    for portion in portions(moves, most):
        assert sum(len(move.units) for move in portion) <= most
        assert in_steps.plan(lease, portion)
    assert in_steps.look() == at_once.look()
    assert in_steps.waiting() == at_once.waiting()


class Weighing:
    """A store that notes the largest step of planning."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.largest = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def plan(self, lease: Lease, moves: Sequence[Move]) -> bool:
        self.largest = max(self.largest, sum(1 + len(move.units) for move in moves))
        return self._inner.plan(lease, moves)


@pytest.fixture
def weighing(group: str) -> Iterator[Weighing]:
    store = open_store("memory://", group)
    yield Weighing(store)
    store.forget()


@pytest.fixture
def brokers() -> Iterator[str]:
    with FakeKafka(topics={TOPIC: 1}, auto_create=None) as kafka:
        with Producer(kafka.bootstrap) as producer:
            producer.send_many(TOPIC, [b""] * 25_000)
        yield kafka.bootstrap


def test_a_planner_tells_a_store_no_more_than_it_takes(brokers: str, weighing: Weighing, group: str) -> None:
    store: Any = weighing
    units = Units(records=1, backlog=100_000)
    with Fleet(brokers, group=group, topics=TOPIC, store=store, start="earliest", units=units) as fleet:
        fleet.start()
        eventually(lambda: [state.waiting for state in fleet.look().partitions] == [25_000], "all is planned")
        assert 0 < weighing.largest <= PORTION + 1
        eventually(lambda: any(isinstance(event, UnitsPlanned) for event in list(fleet.newest)), "it is reported")
        (event,) = [event for event in fleet.newest if isinstance(event, UnitsPlanned)]
        assert (event.units, event.planned_records) == (25_000, 25_000)


def test_a_job_tells_a_store_no_more_than_it_takes(weighing: Weighing, tmp_path: Any) -> None:
    store: Any = weighing
    ranges = [OffsetRange(TOPIC, number % 3, number, number + 1) for number in reversed(range(25_000))]
    results = jobs.run(Slow(str(tmp_path)), ranges, kind=Play(), store=store)
    next(results)
    assert 0 < weighing.largest <= PORTION + 1
    assert sum(state.waiting + state.out for state in store.look().partitions) >= 24_000
    results.close()


@pytest.mark.long
@pytest.mark.parametrize("url", ["memory", "sqlite", "redis", "redis+cluster"], indirect=True)
def test_more_than_a_million_units_come_into_a_store(store: Store) -> None:
    logs = {TopicPartition(TOPIC, partition): Log(0, 600_000) for partition in range(2)}
    due = plan(logs, {}, lambda _: 0, units=Units(records=1, backlog=2_000_000), on_lost=OnLost.ERROR)
    store.found(Charter())
    lease = store.lead("a/planner")
    assert lease is not None
    for portion in portions(due.moves):
        assert store.plan(lease, portion)
        assert store.stay(lease)
    assert [state.waiting for state in store.look().partitions] == [600_000] * 2
    assert len(store.take("a/1", 100)) == 100


class Broken:
    """A store to which nothing can be planned."""

    def __init__(self, inner: Store, error: Exception) -> None:
        self._inner = inner
        self.error: Exception | None = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def plan(self, lease: Lease, moves: Sequence[Move]) -> bool:
        if self.error is not None:
            raise self.error
        return self._inner.plan(lease, moves)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            StoreUnavailable("redis://r", "it ended the connection"),
            "redis://r does not answer: it ended the connection",
        ),
        (ValueError("too much"), "ValueError: too much"),
    ],
)
def test_what_cannot_be_planned_is_reported_and_shown(brokers: str, group: str, error: Exception, text: str) -> None:
    inner = open_store("memory://", group)
    store: Any = Broken(inner, error)
    with Fleet(brokers, group=group, topics=TOPIC, store=store, start="earliest") as fleet:
        fleet.start()

        def failures() -> list[PlanningFailed]:
            return [event for event in list(fleet.newest) if isinstance(event, PlanningFailed)]

        eventually(failures, "it is reported")
        assert failures()[0].group == group
        assert text in failures()[0].reason
        eventually(lambda: text in fleet.look().halted.get(TOPIC, ""), lambda: f"it is shown: {fleet.look()}")
        assert len(failures()) == 1, "once"
        store.error = None
        eventually(lambda: not fleet.look().halted, "and not any longer than it is so")
        assert [state.planned for state in fleet.look().partitions] == [25_000]
    inner.forget()


def test_a_topic_that_is_not_there_is_an_event_and_holds_up_no_other(brokers: str, group: str) -> None:
    with Fleet(brokers, group=group, topics=[TOPIC, "missing"], store="memory://", start="earliest") as fleet:
        fleet.start()
        eventually(lambda: [state.planned for state in fleet.look().partitions] == [25_000], "the other one is planned")
        events = [event for event in list(fleet.newest) if isinstance(event, PlanningFailed)]
        assert [(event.group, event.what) for event in events] == [(group, "missing")]
        assert "UNKNOWN_TOPIC" in events[0].reason
    open_store("memory://", group).forget()
