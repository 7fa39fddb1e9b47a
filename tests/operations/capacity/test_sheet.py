"""A sheet computes what it shows: formulas of names, their inputs, and the assumptions that a line rests on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.operations.capacity.sheet import Sheet, Unit, ceil, evaluate, names


def test_formulas_have_the_arithmetic_that_plans_need() -> None:
    values = {"rate": 10.0, "share": 0.5, "disks": 3.0}
    assert evaluate("rate * share + disks / 2 - 1", values) == 5.5
    assert evaluate("ceil(rate / disks) + max(share, disks) - min(share, disks)", values) == 6.5
    assert names("ceil(rate / disks) + max(share, rate)") == ("rate", "disks", "share")


@pytest.mark.parametrize("formula", ["rate ** 2", "open(rate)", "'a'", "rate if rate else 1", "rate.real"])
def test_nothing_else_is_a_formula(formula: str) -> None:
    with pytest.raises((TypeError, KeyError, ValueError)):
        evaluate(formula, {"rate": 1.0})


@given(st.integers(1, 10**6), st.floats(0.001, 1000.0))
def test_a_quotient_is_not_rounded_up_for_its_rounding_error(number: int, part: float) -> None:
    assert ceil(number * part / part) == number


def test_an_assumption_is_found_through_the_lines_between() -> None:
    sheet = Sheet()
    sheet.give("load", 100, Unit.BYTE_RATE, source="given")
    sheet.give("core", 20, Unit.BYTE_RATE, source="a page", is_assumed=True)
    sheet.compute("cores", "load / core", Unit.CORES, title="cores")
    sheet.compute("brokers", "ceil(cores / 2)", Unit.COUNT, title="brokers")
    sheet.compute("links", "load / 10", Unit.COUNT, title="links")
    assert [term.name for term in sheet.assumptions("brokers")] == ["core"]
    assert sheet.assumptions("links") == ()
    assert sheet.line("cores").inputs[0].source == "given"
