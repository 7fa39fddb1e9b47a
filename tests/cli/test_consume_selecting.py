"""The filters of `ottla consume`, against what Python's own loops would choose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.consume.filters import Filters, HasHeader, pattern
from ottla.cli.values.escapes import literal

from .columns import Row, batch, rows

RECORDS = (
    Row(b"an error occurred", key=b"a", headers=[("trace", b"42"), ("tag", None)], offset=0),
    Row(None, key=None, offset=1),
    Row(b"", key=b"", headers=[("tag", b"x")], offset=2),
    Row(b"\xff\x00 fine", key="ü".encode(), headers=[("trace", b"43"), ("tag", b"y"), ("tag", b"")], offset=3),
)


@pytest.mark.parametrize(
    ("selection", "chosen"),
    [
        (Filters(), [0, 1, 2, 3]),
        (Filters(key=b"a"), [0]),
        (Filters(key=b""), [2]),
        (Filters(key="ü".encode()), [3]),
        (Filters(key_pattern=pattern("^[a-z]$")), [0]),
        (Filters(key_pattern=pattern("")), [0, 2, 3]),
        (Filters(key_pattern=pattern("ü|b")), [3]),
        (Filters(value_pattern=pattern("err.r")), [0]),
        (Filters(value_pattern=pattern("(?i)ERROR|FINE$")), [0, 3]),
        (Filters(value_pattern=pattern(r"^\xff")), [3]),
        (Filters(contains=(b"error",)), [0]),
        (Filters(contains=(b"error", b"fine")), []),
        (Filters(contains=(b"\xff\x00",)), [3]),
        (Filters(contains=(b"err.r",)), []),
        (Filters(headers=(HasHeader("trace"),)), [0, 3]),
        (Filters(headers=(HasHeader("tag", b""),)), [3]),
        (Filters(headers=(HasHeader("tag", b"x"),)), [2]),
        (Filters(headers=(HasHeader("trace"), HasHeader("tag", b"y"))), [3]),
        (Filters(key=b"a", contains=(b"fine",)), []),
    ],
)
def test_a_filter_chooses(selection: Filters, chosen: list[int]) -> None:
    assert selection.apply(batch(*RECORDS)).column("offset").to_pylist() == chosen
    without_first = selection.apply(batch(*RECORDS).slice(1)).column("offset").to_pylist()
    assert without_first == [offset for offset in chosen if offset]


@given(st.lists(rows, max_size=6), st.text(max_size=2), st.none() | st.binary(max_size=2))
def test_headers_are_found_wherever_they_are(records: list[Row], name: str, value: bytes | None) -> None:
    name, value = next(((n, v) for row in records for n, v in row.headers), (name, value))
    found = Filters(headers=(HasHeader(name, value),)).apply(batch(*records))
    expected = [row.offset for row in records if any(n == name and value in (None, v) for n, v in row.headers)]
    assert found.column("offset").to_pylist() == expected


def test_a_selection_asks_only_for_the_columns_that_it_looks_at() -> None:
    assert Filters().columns == frozenset()
    assert Filters(key=b"", headers=(HasHeader("x"),)).columns == {"key", "headers"}
    assert Filters(contains=(b"x",)).columns == {"value"}


def test_a_pattern_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'a\(' is not a regular expression: .*missing \)"):
        pattern("a(")


@pytest.mark.parametrize(
    ("given_text", "meant"),
    [
        ("user-1", b"user-1"),
        ("base64:/wA=", b"\xff\x00"),
        ("base64:", b""),
        ("text:base64:/wA=", b"base64:/wA="),
        (r"a\tb\x00", b"a\tb\0"),
        ("ü", "ü".encode()),
    ],
)
def test_bytes_can_be_written_in_any_way(given_text: str, meant: bytes) -> None:
    assert literal(given_text) == meant


@pytest.mark.parametrize("wrong", ["base64:user-1", "base64:user1"])
def test_what_is_no_base64_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match=f"'{wrong}' is not base64 .*; write text:{wrong} for the text itself"):
        literal(wrong)
