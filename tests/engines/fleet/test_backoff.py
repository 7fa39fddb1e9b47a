"""A node that fails again and again waits longer and longer, and not at all after a success."""

from __future__ import annotations

from ottla.engines.fleet.backoff import Backoff
from ottla.engines.fleet.units import Charter


def test_pauses_grow_with_failures_in_a_row_and_end_with_a_success() -> None:
    backoff = Backoff()
    assert backoff.seconds(100.0) == 0.0
    seen = []
    for _ in range(12):
        backoff.failed(100.0)
        seen.append(backoff.seconds(100.0))
    assert [round(seconds, 6) for seconds in seen[:3]] == [0.1, 0.2, 0.4]
    assert seen == sorted(seen)
    assert round(seen[-1], 6) == 10.0
    assert backoff.seconds(111.0) == 0.0
    backoff.went_well()
    assert backoff.seconds(100.0) == 0.0
    backoff.failed(200.0)
    assert round(backoff.seconds(200.0), 6) == 0.1


def test_what_fails_at_once_for_a_minute_is_twice_given_up_and_not_a_backlog() -> None:
    """As docs/fleet.md says, with the five attempts that a unit has unless told otherwise."""
    backoff, now, attempts = Backoff(), 0.0, 0
    while now < 60:
        attempts += 1
        backoff.failed(now)
        now += backoff.seconds(now)
    assert attempts // Charter().max_attempts == 2
