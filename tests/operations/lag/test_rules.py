"""Burrow's rules: windows as its own documentation and tests have them, with the states it gives."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.operations.lag.rules import judge
from ottla.operations.lag.values import Commit, State


def _commits(offsets: list[int], lags: list[int | None], every: float = 100.0) -> list[Commit]:
    return [
        Commit((number + 1) * every, offset, lag)
        for number, (offset, lag) in enumerate(zip(offsets, lags, strict=True))
    ]


RISING = [1000, 2000, 3000, 4000, 5000]
FLAT = [1000] * 5
CASES = [
    # what, offsets, lags, ends, lag now, now, allowed, state
    ("zero lag once", RISING, [0, 50, 100, 150, 200], [5200], 200, 600, 0, State.OK),
    ("as long ago as the window is long", RISING, [0, 50, 100, 150, 200], [5200], 200, 900, 0, State.OK),
    ("longer ago than the window", RISING, [0, 50, 100, 150, 200], [5200], 200, 901, 0, State.STOP),
    ("stopped with lag throughout", RISING, [50, 100, 150, 200, 250], [5250], 250, 1000, 0, State.STOP),
    ("stopped, but at the end not long ago", RISING, [0] * 5, [5250, 5000], 250, 1000, 0, State.OK),
    ("stopped, but no lag now", RISING, [50, 100, 150, 200, 250], [5250], 0, 1000, 0, State.OK),
    ("same offset, zero lag once", FLAT, [0, 50, 100, 150, 200], [1200], 200, 600, 0, State.OK),
    ("same offset, lag grows", FLAT, [100, 150, 200, 250, 300], [1300], 300, 600, 0, State.STALL),
    ("same offset, lag stays", FLAT, [100] * 5, [1100], 100, 600, 0, State.STALL),
    (
        "rewound and recovered",
        [1000, 2000, 3000, 2000, 4000],
        [100, 150, 200, 1250, 300],
        [4300],
        300,
        600,
        0,
        State.OK,
    ),
    ("rewound", [1000, 2000, 3000, 2000, 2500], [0, 0, 0, 1250, 900], [3400], 900, 600, 0, State.REWIND),
    ("rewound to the start", [3000, 3500, 4000, 0, 100], [0, 0, 0, 4000, 4000], [4100], 4000, 600, 0, State.REWIND),
    ("lag never shrinks", RISING, [50, 100, 150, 200, 250], [5250], 250, 600, 0, State.WARN),
    ("lag stays, offsets move", RISING, [100] * 5, [5100], 100, 600, 0, State.WARN),
    ("lag shrinks once", RISING, [100, 150, 140, 200, 250], [5250], 250, 600, 0, State.OK),
    ("lag allowed now", RISING, [50, 100, 150, 200, 250], [5250], 250, 1000, 250, State.OK),
    ("lag allowed once", RISING, [10, 100, 150, 200, 250], [5250], 250, 600, 10, State.OK),
    ("lags unknown in between", RISING, [50, None, 100, None, 150], [5150], 150, 600, 0, State.WARN),
    ("a single commit long ago", [1000], [50], [1100], 100, 600, 0, State.STOP),
    ("a single commit now", [1000], [50], [1100], 100, 100, 0, State.STALL),
    ("nothing known", [], [], [100], 100, 600, 0, State.OK),
]


@pytest.mark.parametrize(("what", "offsets", "lags", "ends", "lag", "now", "allowed", "state"), CASES)
def test_windows_have_the_states_that_burrow_gives_them(
    what: str,
    offsets: list[int],
    lags: list[int | None],
    ends: list[int],
    lag: int,
    now: float,
    allowed: int,
    state: State,
) -> None:
    assert judge(_commits(offsets, lags), ends, lag=lag, now=now, allowed=allowed) is state, what


def test_a_reader_that_is_known_to_run_stalls_and_never_stops() -> None:
    commits = _commits(FLAT, [100] * 5)
    assert judge(commits, [1100], lag=100, now=10_000, is_alive=True) is State.STALL


_windows = st.lists(st.tuples(st.integers(0, 500), st.none() | st.integers(0, 100)), min_size=1, max_size=10)


@given(_windows, st.lists(st.integers(0, 600), max_size=10), st.integers(0, 100), st.floats(0, 5000))
def test_without_lag_nothing_is_wrong_and_every_window_has_a_state(
    rows: list[tuple[int, int | None]], ends: list[int], lag: int, later: float
) -> None:
    commits = [Commit(float(number), offset, behind) for number, (offset, behind) in enumerate(rows)]
    now = commits[-1].at + later
    state = judge(commits, ends, lag=lag, now=now)
    assert state in (State.OK, State.WARN, State.STOP, State.STALL, State.REWIND)
    if not lag:
        assert state is State.OK
    if state is State.STALL:
        assert len({commit.offset for commit in commits}) == 1
    if state is State.REWIND:
        assert any(after.offset < before.offset for before, after in pairwise(commits))
    if state is State.STOP:
        assert later > commits[-1].at - commits[0].at
