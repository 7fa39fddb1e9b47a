"""Leases that stand still, seen by a watcher whose looks come when they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.engines.fleet.lease_watch import LeaseWatch

PATIENCE = 10.0


def test_what_stands_still_for_longer_than_patience_is_reported() -> None:
    watch: LeaseWatch[str, int] = LeaseWatch(PATIENCE)
    by_time = {now: watch.still({"a": 1}, float(now)) for now in range(100, 120)}
    assert [now for now, still in by_time.items() if still] == list(range(111, 120))
    assert by_time[111] == {"a": 1}


def test_every_beat_starts_the_clock_again() -> None:
    watch: LeaseWatch[str, int] = LeaseWatch(PATIENCE)
    assert not any(watch.still({"a": now // 9}, float(now)) for now in range(100))


def test_a_beat_that_went_back_is_another_value_too() -> None:
    watch: LeaseWatch[str, int] = LeaseWatch(PATIENCE)
    for now in range(10):
        watch.still({"a": 5}, float(now))
    assert watch.still({"a": 4}, 11.0) == {}


def test_what_was_away_is_new_when_it_comes_back() -> None:
    watch: LeaseWatch[str, int] = LeaseWatch(PATIENCE)
    for now in range(10):
        watch.still({"a": 1}, float(now))
    watch.still({}, 10.0)
    assert not any(watch.still({"a": 1}, float(now)) for now in range(11, 21))


def test_each_is_watched_for_itself() -> None:
    watch: LeaseWatch[str, int] = LeaseWatch(PATIENCE)
    for now in range(15):
        still = watch.still({"beats": now, "stands": 0}, float(now))
    assert still == {"stands": 0}


def test_a_watcher_that_was_frozen_takes_nothing_from_those_who_were_frozen_with_it() -> None:
    """The same holds after an outage of the store, in which no node could renew its leases."""
    watch: LeaseWatch[str, int] = LeaseWatch(PATIENCE)
    watch.still({"a": 7}, 0.0)
    watch.still({"a": 7}, 1.0)
    assert watch.still({"a": 7}, 500.0) == {}
    assert watch.still({"a": 8}, 500.4) == {}


def test_a_watcher_that_was_frozen_still_finds_who_is_gone() -> None:
    watch: LeaseWatch[str, int] = LeaseWatch(PATIENCE)
    watch.still({"a": 7}, 0.0)
    watch.still({"a": 7}, 500.0)
    times = [now for now in range(501, 520) if watch.still({"a": 7}, float(now))]
    assert times[0] <= 500 + PATIENCE


@pytest.mark.parametrize("apart", [6.0, 60.0, 6000.0])
def test_a_watcher_that_seldom_looks_finds_who_is_gone_after_some_looks(apart: float) -> None:
    watch: LeaseWatch[str, int] = LeaseWatch(PATIENCE)
    looks = [bool(watch.still({"a": 7}, look * apart)) for look in range(6)]
    assert looks == [False, False, False, False, True, True]


@given(st.lists(st.tuples(st.floats(0.0, 30.0), st.booleans()), min_size=1, max_size=60))
def test_nothing_is_reported_too_soon_and_nothing_that_beats_between_looks(looks: list[tuple[float, bool]]) -> None:
    watch: LeaseWatch[str, int] = LeaseWatch(PATIENCE)
    now, beat, since = 100.0, 0, 100.0
    watch.still({"a": beat}, now)
    for apart, beats in looks:
        now += apart
        if beats:
            beat, since = beat + 1, now
        still = watch.still({"a": beat}, now)
        assert not still or now - since > PATIENCE
        assert not (beats and still)
