"""The hand-over between a program that drives a loop and the background thread, as histories without threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.net.parking import Next, Parking

Visit = tuple[int, int, bool]
"""How long the program drives, how long it is away afterwards, and whether it hands over."""
GRACE = 2000
DURATIONS = st.integers(0, 20 * GRACE)
MOMENT = 2


class History:
    """A program that comes and goes, on a clock that only moves while the background thread waits."""

    def __init__(self, visits: list[Visit]) -> None:
        self.now = MOMENT  # the first visit has begun, which is why the thread parks
        self._times: list[tuple[int, int, bool]] = []
        start = 0
        for staying, away, is_calling in visits:
            self._times.append((start, start + staying + MOMENT, is_calling))
            start += staying + MOMENT + away + MOMENT

    def visits(self) -> int:
        return sum(begin <= self.now for begin, _, _ in self._times)

    def leaves_at(self) -> int | None:
        """The current visit."""
        return next((end for begin, end, _ in self._times if begin <= self.now < end), None)

    def away_since(self) -> int:
        return max(end for _, end, _ in self._times if end <= self.now)

    def is_handed_over(self) -> bool:
        begun = [is_calling and end <= self.now for begin, end, is_calling in self._times if begin <= self.now]
        return begun[-1]

    def parked(self) -> Iterator[tuple[int, Next]]:
        """The steps of the thread until it drives."""
        parking = Parking()
        while True:
            leaves_at = self.leaves_at()
            step = parking.look(
                is_visited=leaves_at is not None, visits=self.visits(), is_handed_over=self.is_handed_over()
            )
            yield self.now, step
            if step is Next.DRIVE:
                return
            if step is Next.SLEEP:
                assert leaves_at is not None, "it would never be woken"
                self.now = leaves_at
            else:
                self.now += GRACE


@settings(max_examples=500, deadline=None)
@given(st.lists(st.tuples(DURATIONS, DURATIONS, st.booleans()), min_size=1, max_size=20))
def test_it_steps_in_when_the_program_is_away_and_never_while_it_is_there(visits: list[Visit]) -> None:
    history = History(visits)
    steps = list(history.parked())
    assert history.leaves_at() is None, "it stepped in beside a program that drives"
    away = history.now - history.away_since()
    assert history.is_handed_over() or away >= GRACE
    assert away <= 2 * GRACE + MOMENT, "there was work, and nobody did it"
    # A program that stays for long costs at most two looks per visit.
    naps = sum(step is Next.NAP for _, step in steps)
    assert naps <= 2 * history.visits() + (history.now // GRACE if history.visits() > 1 else 2)


def test_a_program_that_stays_is_left_alone() -> None:
    steps = [step for _, step in History([(1_000_000, 10_000, False)]).parked()]
    assert steps == [Next.NAP, Next.SLEEP, Next.NAP, Next.DRIVE]


@pytest.mark.parametrize(("is_calling", "seconds"), [(True, 0), (False, GRACE)])
def test_a_program_that_asks_for_it_is_relieved_at_once(is_calling: bool, seconds: int) -> None:
    history = History([(10_000, 10_000, is_calling)])
    list(history.parked())
    assert history.now - history.away_since() == seconds


def test_a_program_that_comes_again_and_again_keeps_it_parked() -> None:
    often = [(GRACE // 3, GRACE // 10, False)] * 1000
    history = History(often)
    looks = len(list(history.parked()))
    assert history.visits() == 1000
    assert looks < 1000 * 0.45
