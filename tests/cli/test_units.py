"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.values.quantities import parse_duration, parse_size, show_duration, show_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("36h", 129_600),
        ("4d", 345_600),
        ("2w", 1_209_600),
        ("250ms", 0.25),
        ("1h30m", 5400),
        ("1d 12h", 129_600),
        ("1.5h", 5400),
        (" 2 Hours ", 7200),
        ("3 days", 259_200),
        ("0s", 0),
        ("90", 90),
        ("0.005", 0.005),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "d", "4x", "-4d", "4d!", "4d5", "1e3s", "four days", "٤d"])
def test_what_is_no_duration_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(ValueError, match=r"use 90s, 15m, 36h, 4d"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1_048_576),
        ("50GB", 50_000_000_000),
        ("50 gb", 50_000_000_000),
        ("50GiB", 50 << 30),
        ("512k", 512_000),
        ("512KiB", 512 << 10),
        ("1.5MB", 1_500_000),
        ("7B", 7),
        ("9223372036854775807", (1 << 63) - 1),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-5MB", "5 XB", "5MBs", "1,000", "1e6"])
def test_what_is_no_size_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(ValueError, match=r"use 512kB, 50GB"):
        parse_size(text)


@given(st.integers(0, 10**12))
def test_a_shown_duration_is_read_as_the_same(milliseconds: int) -> None:
    assert round(parse_duration(show_duration(milliseconds / 1000)) * 1000) == milliseconds


@given(st.integers(0, 10**15))
def test_a_shown_size_is_read_as_nearly_the_same(size: int) -> None:
    assert parse_size(show_size(size)) == pytest.approx(size, rel=0.051)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (999, "999B"), (1 << 20, "1MiB"), (50 * 10**9, "50GB"), (1_048_588, "1.0MB"), (123_456_789, "123MB")],
)
def test_sizes_are_shown_shortly(size: int, text: str) -> None:
    assert show_size(size) == text
