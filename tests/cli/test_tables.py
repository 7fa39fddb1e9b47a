"""Tables fit the terminal, and never at the cost of a number."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.lag import view
from ottla.cli.output.styles import Style, Styled, faint, visible
from ottla.cli.output.tables import shorten, table, terminal_width

WORDS = st.text(st.characters(min_codepoint=97, max_codepoint=122), max_size=40)
ROWS = st.lists(st.tuples(WORDS, st.integers(-(10**9), 10**9).map(str), WORDS), max_size=5)


def test_texts_stand_on_the_left_and_numbers_on_the_right() -> None:
    rows = [("clicks", "12", "127.0.0.1"), ("t", "1,200", "h"), ("u", "-", "h")]
    assert table(("topic", "n", "host"), rows, width=None, indent=2).splitlines() == [
        "  topic       n  host",
        "  clicks     12  127.0.0.1",
        "  t       1,200  h",
        "  u           -  h",
    ]


@given(ROWS, st.integers(50, 120))
def test_a_table_fits_and_keeps_its_numbers(rows: list[tuple[str, str, str]], width: int) -> None:
    lines = table(("name", "count", "note"), rows, width=width).splitlines()
    assert len(lines) == len(rows) + 1
    assert all(len(visible(line)) <= width for line in lines)
    assert all(row[1] in line for row, line in zip(rows, lines[1:], strict=True))


@given(ROWS)
def test_nothing_is_shortened_where_there_is_no_terminal(rows: list[tuple[str, str, str]]) -> None:
    lines = table(("name", "count", "note"), rows, width=None).splitlines()
    assert all(cell in line for row, line in zip(rows, lines[1:], strict=True) for cell in row)


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    assert shorten("orders-europe-west-0001", 11) == "order…-0001"
    assert shorten("orders", 6) == "orders"


ROW = ("clicks-0", "2026-11-19T04:33:18.237Z", "none 5, zstd 11")
HEADINGS = ("partition", "first", "codecs")


@pytest.mark.parametrize(
    ("width", "time"),
    [
        (60, "2026-11-19T04:33:18.237Z"),
        (50, "2026-11-19T04:33:18Z"),
        (46, "2026-11-19T04:33Z"),
        (41, "11-19T04:33Z"),
        (33, "11-19T04:33Z"),
    ],
)
def test_a_time_loses_its_smallest_parts_and_never_its_middle(width: int, time: str) -> None:
    _, line = visible(table(HEADINGS, [ROW], width=width)).splitlines()
    assert len(line) <= width
    assert line.split("  ")[1].strip() == time
    assert ("…" in line) == (width == 33), "texts are shortened when times cannot be"


def test_a_long_text_is_shortened_before_a_time_loses_its_seconds() -> None:
    _, line = visible(table(("time", "error"), [("2026-11-19T04:33:18Z", "x" * 200)], width=60)).splitlines()
    assert line.startswith("2026-11-19T04:33:18Z  x")
    assert len(line) == 60


def test_only_a_terminal_gets_styles_and_loses_empty_columns() -> None:
    rows = [("a", Styled("ok", Style.GOOD), ""), faint(("b", "1", ""))]
    headings = ("name", "state", "note")
    assert table(headings, rows, width=None).splitlines() == ["name  state  note", "a     ok", "b     1"]
    assert table(headings, rows, width=80).splitlines() == [
        "\x1b[1mname\x1b[0m  \x1b[1mstate\x1b[0m",
        "a     \x1b[32mok\x1b[0m",
        "\x1b[2mb\x1b[0m     \x1b[2m1\x1b[0m",
    ]


LAG = ("group", "type", "topic", "partition", "committed", "end", "lag", "seconds", "state", "trend", "left", "note")
LAGGING = ("billing", "consumer", "clicks", "0", "100", "1,000", "900", "-", "UNKNOWN", "-", "6d23h59m27s", "")


@pytest.mark.parametrize(
    ("width", "gone", "left"),
    [
        (130, "", "6d23h59m27s"),
        (125, "", "6d23h"),
        (119, "seconds", "6d23h"),
        (100, "seconds trend type", "6d23h"),
        (80, "seconds trend type note", "6d23h"),
    ],
)
def test_a_narrow_table_loses_columns_of_little_worth_and_units_of_durations(width: int, gone: str, left: str) -> None:
    row = (*LAGGING[:-1], "seen 1 time: too soon to tell")
    headings, line = visible(table(LAG, [row], width=width, least=("type", "trend", "note"))).splitlines()
    assert headings.split() == [name for name in LAG if name not in gone.split()]
    assert max(len(headings), len(line)) <= width
    assert f"  {left}" in line
    assert "…" not in line


def test_lag_at_80_columns_has_names_that_can_be_told_apart() -> None:
    """Regression: both were cut to 8 characters, and the line was too long still."""
    named = {"group": "long-group-name-of-a-service", "topic": "company.department.orders-created.v1"}
    numbers = {"committed": "3,300,000", "end": "3,304,000", "lag": "4,000", "seconds": "43.0"}
    row = [named.get(name) or numbers.get(name, old) for name, old in zip(LAG, LAGGING, strict=True)]
    headings, line = visible(table(LAG, [row], width=80, least=view.LEAST)).splitlines()
    assert headings.split() == ["group", "topic", "partition", "lag", "seconds", "state", "left"]
    assert len(line) <= 80
    assert len(line.split()[1]) >= 15


def test_a_hostile_cell_stays_printable_whatever_its_style() -> None:
    shown = table(("name",), [(Styled("\x1b[2J", Style.BAD),)], width=80)
    assert shown.splitlines()[1] == "\x1b[31m\\x1b[2J\x1b[0m"


def test_a_closed_output_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert terminal_width() is None
