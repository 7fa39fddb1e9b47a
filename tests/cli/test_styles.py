"""Styles, bars and sparklines are text in, text out; rates and waiting times come from what was seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.output.bars import bar, clock, sparkline
from ottla.cli.output.pace import Pace, progress_line, records_rate
from ottla.cli.output.styles import Style, cut, paint, visible

PIECES = st.lists(st.tuples(st.text("abc ", max_size=5), st.sampled_from([None, *Style])), max_size=6)


@given(PIECES, st.integers(0, 30))
def test_a_cut_line_has_as_many_characters_as_fit_and_ends_its_styles(
    pieces: list[tuple[str, Style | None]], size: int
) -> None:
    line = "".join(paint(text, style) for text, style in pieces)
    assert visible(line) == "".join(text for text, _ in pieces)
    assert visible(cut(line, size)) == visible(line)[:size]
    assert cut(line, size).count("\x1b[0m") == line.count("\x1b[0m")


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0, "────────   0%"),
        (0.5, "━━━━────  50%"),
        (0.999, "━━━━━━━─  99%"),
        (1, "━━━━━━━━ 100%"),
        (7, "━━━━━━━━ 100%"),
    ],
)
def test_a_bar_is_full_only_at_the_end(share: float, shown: str) -> None:
    assert bar(share, width=8, on=False) == shown
    assert visible(bar(share, width=8)) == shown


def test_a_sparkline_begins_at_zero_and_shows_what_is_not_zero() -> None:
    assert sparkline([0, 1, 500, 1000], on=False) == "▁▂▅█"
    assert sparkline([0, 0], on=False) == "▁▁"
    assert sparkline([], on=False) == ""
    assert len(sparkline(range(100), width=30, on=False)) == 30


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0:00"), (7.4, "0:07"), (760, "12:40"), (11100, "3:05:00"), (356400, "4d 3h")]
)
def test_a_time_to_wait_is_short(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def test_a_pace_knows_the_rate_and_the_time_left_within_the_first_second() -> None:
    pace = Pace()
    pace.observe(0.0, 0)
    pace.observe(0.4, 40)
    assert pace.rate == pytest.approx(100)
    assert pace.seconds_left(1000) == pytest.approx(9.6)
    line = visible(progress_line("40 records", records_rate(pace), pace=pace, total=1000))
    assert line == "─" * 24 + "   4%  40 records, 100 records/s, 0:10 left"


def test_what_has_not_moved_yet_has_no_time_left() -> None:
    pace = Pace()
    pace.observe(0.0, 0)
    assert [pace.seconds_left(1000)] == [None]
    assert visible(progress_line("0 records", records_rate(pace), pace=pace, total=1000)).endswith("  0 records")


def test_a_pace_forgets_what_was_long_ago() -> None:
    pace = Pace(window=5.0)
    for second in range(20):
        pace.observe(second, min(second, 10) * 1000)
    assert pace.rate == 0
    assert [pace.seconds_left(20_000)] == [None]
    assert list(pace.history) == [1000.0] * 10 + [0.0] * 9
    assert visible(progress_line("10,000 records", records_rate(pace), pace=pace)).startswith(
        "█" * 10 + "▁" * 9 + "  10,000"
    )


def test_an_amount_that_shrinks_begins_a_new_count() -> None:
    pace = Pace()
    pace.observe(0, 1000)
    pace.observe(1, 10)
    pace.observe(2, 20)
    assert pace.rate == 10
