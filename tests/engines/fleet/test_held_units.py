"""Held units: ends are reported once and in time, and lease numbers that a store issues a second time are refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from ottla.engines.fleet import held_units as module
from ottla.engines.fleet.held_units import Ending, HeldUnits, failure
from ottla.engines.fleet.store import Store, open_store
from ottla.engines.fleet.unit import reason_of, trace_of
from ottla.engines.fleet.units import LEAP, Charter, Failure, Move
from ottla.errors import ConfigError, StoreIncompatible, StoreUnavailable
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


def test_units_are_taken_and_ended(memory: Store) -> None:
    held_units = HeldUnits(memory, "node")
    first, second, third = held_units.take(3)
    assert len(held_units) == 3
    assert held_units.finish(first, 10) is Ending.DONE
    assert held_units.finish(second, 15) is Ending.PART
    assert held_units.fail(third, failure(third.grant, "no", host="h")) is Ending.FAILED
    assert len(held_units) == 0
    assert memory.look().counts[:3] == (2, 15, 1)


def test_what_was_lost_is_reported_once_and_refused_then(memory: Store) -> None:
    held_units = HeldUnits(memory, "node")
    kept, lost = held_units.take(2)
    out = next(out for out in memory.pulse().out if out.range == lost.grant.range)
    assert memory.reclaim(out.range, out.seen, Failure(out.range, 1, "still"))
    assert held_units.renew() == [lost]
    assert held_units.renew() == []
    assert lost.lost.is_set()
    assert not kept.lost.is_set()
    assert held_units.finish(lost, lost.grant.range.stop) is Ending.LOST


def test_a_number_that_was_given_out_before_is_refused_and_all_further_ones_are_higher(memory: Store) -> None:
    reasons: list[str] = []
    held_units = HeldUnits(memory, "node", went_back=reasons.append)
    before = [held.grant.lease.number for held in held_units.take(5)]
    memory.forget()
    fill(memory)
    assert held_units.take(1) == []
    assert reasons == [f"it issued number 2 after number {before[-1]}"]
    assert memory.look().partitions[0].waiting == 10
    after = [held.grant.lease.number for held in held_units.take(3)]
    assert min(after) > before[-1] + LEAP - 1


class Moody:
    """A store whose words about units meet an error, as long as there is one."""

    def __init__(self, store: Store, error: Exception | None = None) -> None:
        self.error = error
        self._store = store

    def __getattr__(self, name: str) -> Any:
        if self.error is not None and name in ("finish", "fail"):
            raise self.error
        return getattr(self._store, name)


@pytest.mark.parametrize("error", [ConfigError("the password is wrong"), StoreIncompatible("it is another version")])
def test_a_unit_whose_end_the_store_answers_with_an_error_is_not_held_any_more(memory: Store, error: Exception) -> None:
    moody = Moody(memory)
    held_units = HeldUnits(cast("Store", moody), "node")
    first, second = held_units.take(2)
    moody.error = error
    with pytest.raises(type(error)):
        held_units.finish(first, 10)
    with pytest.raises(type(error)):
        held_units.fail(second, failure(second.grant, "no", host="h"))
    assert len(held_units) == 0
    before = [out.seen.beat for out in memory.pulse().out]
    held_units.renew()
    assert [out.seen.beat for out in memory.pulse().out] == before


def test_giving_back_does_not_wait_for_a_store_that_is_away(memory: Store) -> None:
    moody = Moody(memory)
    held_units = HeldUnits(cast("Store", moody), "node")
    (held,) = held_units.take(1)
    moody.error = StoreUnavailable("memory", "away")
    assert held_units.finish(held, held.grant.range.start) is Ending.UNSURE
    assert len(held_units) == 0


def test_a_node_that_is_to_stop_does_not_wait_for_a_store_for_ever(
    memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HURRIED_SECONDS", 0.1)
    moody = Moody(memory)
    held_units = HeldUnits(cast("Store", moody), "node")
    (held,) = held_units.take(1)
    moody.error = StoreUnavailable("memory", "away")
    held_units.hurry()
    assert held_units.finish(held, 10) is Ending.UNSURE


@pytest.mark.parametrize("error", [StoreUnavailable("memory", "away"), ConfigError("the password is wrong")])
def test_giving_up_lets_go_of_everything_whatever_the_store_says(memory: Store, error: Exception) -> None:
    moody = Moody(memory)
    held_units = HeldUnits(cast("Store", moody), "node")
    held = held_units.take(3)
    moody.error = error
    held_units.give_up()
    assert len(held_units) == 0
    assert all(unit.lost.is_set() for unit in held)


def test_an_error_without_a_text_is_a_reason_too() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise TypeError("no text")

    assert reason_of(Silent()) == "Silent: its text is not available"
    assert "Silent" in trace_of(Silent())
    assert reason_of(ValueError("\n")) == "ValueError: "


def test_numbers_of_others_that_were_seen_count_too(memory: Store) -> None:
    held_units = HeldUnits(memory, "node")
    held_units.saw([50, 7])
    assert held_units.take(1) == []
    (held,) = held_units.take(1)
    assert held.grant.lease.number > 50
    assert held.grant.attempt == 1
