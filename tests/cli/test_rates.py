"""Rates on the command line: records and bytes per second, bits and bytes, days and seconds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.values.rates import is_mean, parse_byte_rate, parse_record_rate, show_byte_rate, show_number


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1000", 1000),
        ("10k/s", 1e4),
        ("1M/s", 1e6),
        ("1.5M", 1.5e6),
        ("86.4G/d", 1e6),
        ("60/min", 1),
        ("2T/d", 2e12 / 86400),
    ],
)
def test_rates_of_records(text: str, rate: float) -> None:
    assert parse_record_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1000", 1000),
        ("50MB/s", 5e7),
        ("1MiB/s", 1 << 20),
        ("150TB/d", 150e12 / 86400),
        ("10Gbit/s", 1.25e9),
        ("1gbps", 1.25e8),
        ("8 kbit/s", 1000),
    ],
)
def test_rates_of_bytes(text: str, rate: float) -> None:
    assert parse_byte_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("10Gb/s", "may be bits or bytes: write 10Gbit/s or 10GB/s"),
        ("150TB", "is a size, not a rate"),
        ("150TB/fortnight", "is not a unit of time"),
        ("-5MB/s", "is not a rate of bytes"),
        ("fast", "is not a rate of bytes"),
        ("5XB/s", "is not a rate of bytes"),
    ],
)
def test_what_is_no_rate_of_bytes(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_byte_rate(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1MB/s", "are bytes or bits, not records"),
        ("10Gbit/s", "are bytes or bits"),
        ("-1", "is not a rate of records"),
        ("many", "is not a rate of records"),
        ("5x/s", "is not a number of records"),
    ],
)
def test_what_is_no_rate_of_records(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_record_rate(text)


def test_a_rate_of_a_day_is_a_mean() -> None:
    assert is_mean("150TB/d")
    assert not is_mean("150TB/s")
    assert not is_mean("1000")


@given(st.floats(1e-3, 1e15))
def test_a_number_is_shown_with_three_digits(value: float) -> None:
    shown = show_number(value)
    factor = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}.get(shown[-1], 1.0)
    number = float(shown[:-1] if shown[-1].isalpha() else shown)
    assert number * factor == pytest.approx(value, rel=0.006)


def test_numbers_that_round_to_the_next_unit() -> None:
    assert show_number(999.7) == "1k"
    assert show_number(1e6) == "1M"
    assert show_byte_rate(473.7e6) == "474MB/s"
