"""Working until the end: what is left, what is on the error list, and what is not planned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.engines.fleet.goal import Goal
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.units import Charter, Failure, Move, Snapshot
from ottla.errors import FleetError
from ottla.model import OffsetRange, TopicPartition

AT = TopicPartition("t", 0)


@pytest.fixture
def memory(group: str) -> Iterator[Store]:
    """A store with three units of ten offsets, planned by node n1."""
    store = open_store("memory://", group)
    store.found(Charter(max_attempts=1))
    lease = store.lead("n1/planner-1")
    assert lease is not None
    assert store.plan(lease, [Move(AT, None, 30, tuple(OffsetRange(*AT, start, start + 10) for start in (0, 10, 20)))])
    yield store
    store.forget()


def reached(store: Store, end: int = 30, **options: Any) -> bool:
    return Goal(store, "g", {AT: end}, **{"ordered": False, **options}).is_reached(0.0)


def fail_one(store: Store) -> None:
    (grant,) = store.take("n1/1")
    assert store.fail(grant.range, grant.lease, Failure(grant.range, 1, "no"))


def finish_one(store: Store) -> None:
    (grant,) = store.take("n1/1")
    assert store.finish(grant.range, grant.lease, grant.range.stop)


def test_everything_must_be_done(memory: Store) -> None:
    for _ in range(3):
        assert not reached(memory)
        finish_one(memory)
    assert reached(memory)
    assert not reached(memory, 31), "what was not planned yet"


def test_what_comes_after_the_end_need_not_be_done(memory: Store) -> None:
    finish_one(memory)
    assert reached(memory, 10)
    assert not reached(memory, 11)


def test_the_error_list_does_not_hold_it_up_but_all_others_do(memory: Store) -> None:
    fail_one(memory)
    assert not reached(memory)
    assert reached(memory, ordered=True), "the failed one holds up all that follow"
    finish_one(memory)
    (grant,) = memory.take("n2/1")
    assert not reached(memory), "one is out"
    assert memory.finish(grant.range, grant.lease, grant.range.stop)
    assert reached(memory)


def test_a_unit_that_is_taken_while_it_looks_is_not_overlooked(memory: Store) -> None:
    fail_one(memory)
    finish_one(memory)

    class Slow:
        """Between two requests, another node takes the last unit."""

        def __getattr__(self, name: str) -> Any:
            return getattr(memory, name)

        def look(self) -> Snapshot:
            seen = memory.look()
            memory.take("n2/1")
            return seen

    goal = Goal(Slow(), "g", {AT: 30}, ordered=False)
    assert not goal.is_reached(0.0)
    assert not goal.is_reached(0.0)


def test_what_the_planner_does_not_plan_for_long_is_an_error_but_not_what_a_dead_one_said(memory: Store) -> None:
    memory.hello("n0", {"halted": {"t": "said by a planner that is gone"}})
    goal = Goal(memory, "g", {AT: 40}, ordered=False)
    assert not any(goal.is_reached(float(now)) for now in range(0, 200, 10))
    memory.hello("n1", {"halted": {"t/0": "no leader"}})
    assert not goal.is_reached(300.0)
    with pytest.raises(FleetError, match="group g does not plan t/0: no leader"):
        any(goal.is_reached(float(now)) for now in range(310, 400, 10))
