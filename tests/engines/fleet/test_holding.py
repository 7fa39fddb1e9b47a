"""What a node holds: told once, in time, and never under a number that a forgetful store gives out a second time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.engines.fleet.holding import Ending, Holdings, failure
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.units import LEAP, Charter, Failure, Move
from ottla.model import OffsetRange, TopicPartition

AT = TopicPartition("t", 0)


@pytest.fixture
def memory(group: str) -> Iterator[Store]:
    """A store with ten units of ten offsets."""
    store = open_store("memory://", group)
    fill(store)
    yield store
    store.forget()


def fill(store: Store) -> None:
    """Plans them."""
    store.found(Charter(max_attempts=3))
    lease = store.lead("planner")
    assert lease is not None
    units = tuple(OffsetRange(*AT, start, start + 10) for start in range(0, 100, 10))
    assert store.plan(lease, [Move(AT, None, 100, units)])


def test_units_are_taken_and_told(memory: Store) -> None:
    holdings = Holdings(memory, "node")
    one, two, three = holdings.take(3)
    assert len(holdings) == 3
    assert holdings.finish(one, 10) is Ending.DONE
    assert holdings.finish(two, 15) is Ending.PART
    assert holdings.fail(three, failure(three.grant, "no", host="h")) is Ending.FAILED
    assert len(holdings) == 0
    assert memory.look().counts[:3] == (2, 15, 1)


def test_what_was_lost_is_told_once_and_refused_then(memory: Store) -> None:
    holdings = Holdings(memory, "node")
    kept, lost = holdings.take(2)
    out = next(out for out in memory.pulse().out if out.range == lost.grant.range)
    assert memory.reclaim(out.range, out.seen, Failure(out.range, 1, "still"))
    assert holdings.renew() == [lost]
    assert holdings.renew() == []
    assert lost.lost.is_set()
    assert not kept.lost.is_set()
    assert holdings.finish(lost, lost.grant.range.stop) is Ending.LOST


def test_a_number_that_was_given_out_before_is_refused_and_all_further_ones_are_higher(memory: Store) -> None:
    told: list[str] = []
    holdings = Holdings(memory, "node", went_back=told.append)
    before = [held.grant.lease.number for held in holdings.take(5)]
    memory.forget()
    fill(memory)
    assert holdings.take(1) == []
    assert told == [f"it gave out number 2 after number {before[-1]}"]
    assert memory.look().lanes[0].waiting == 10
    after = [held.grant.lease.number for held in holdings.take(3)]
    assert min(after) > before[-1] + LEAP - 1


def test_numbers_of_others_that_were_seen_count_too(memory: Store) -> None:
    holdings = Holdings(memory, "node")
    holdings.saw([50, 7])
    assert holdings.take(1) == []
    (held,) = holdings.take(1)
    assert held.grant.lease.number > 50
    assert held.grant.attempt == 1
