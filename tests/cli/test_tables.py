"""Tables fit the terminal, and never at the cost of a number."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    assert all(len(line) <= width for line in lines)
    assert all(row[1] in line for row, line in zip(rows, lines[1:], strict=True))


@given(ROWS)
def test_nothing_is_shortened_where_there_is_no_terminal(rows: list[tuple[str, str, str]]) -> None:
    lines = table(("name", "count", "note"), rows, width=None).splitlines()
    assert all(cell in line for row, line in zip(rows, lines[1:], strict=True) for cell in row)


def test_a_long_name_keeps_its_beginning_and_its_end() -> None:
    assert shorten("orders-europe-west-0001", 11) == "order…-0001"
    assert shorten("orders", 6) == "orders"


def test_a_closed_output_has_no_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert terminal_width() is None
