"""Lines and JSON records as pure conversions: whatever comes in pieces of whatever size comes out to the byte."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.cli.produce import lines
from ottla.cli.produce.ledger import line_ranges
from ottla.cli.produce.lines import Block, TooLong, blocks
from ottla.cli.produce.rows import PlainLines
from ottla.cli.values import jsonl

PAYLOADS = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(lambda text: text.encode(errors="ignore"))


def _read(data: bytes, *, block_bytes: int, longest_bytes: int = 1 << 20) -> Iterator[Block | TooLong]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with patch.object(lines, "_BLOCK_BYTES", block_bytes):
            yield from (found for found in blocks(file.name, longest_bytes=longest_bytes) if found is not None)


def _expected(data: bytes) -> list[bytes]:
    found = data.split(b"\n")
    return found[:-1] if found[-1] == b"" else found


@settings(max_examples=150, deadline=None)
@given(
    data=st.lists(st.sampled_from([b"\n", b"a", b":", b"\r", b"\xff\0", b"longer than a block"]), max_size=40).map(
        b"".join
    ),
    block_bytes=st.integers(1, 30),
)
def test_lines_come_out_as_they_are_in_blocks_of_any_size(data: bytes, block_bytes: int) -> None:
    form = PlainLines(topic="t", max_record_bytes=1000)
    values: list[bytes] = []
    for block in _read(data, block_bytes=block_bytes):
        assert isinstance(block, Block)
        assert block.first == len(values) + 1
        for rows in form.rows(block):
            values += rows.table.column("value").to_pylist()
    assert values == _expected(data)


@settings(max_examples=100, deadline=None)
@given(
    data=st.lists(st.sampled_from([b"\n", b"k", b"::", b":", b"v"]), max_size=40).map(b"".join),
    strips_cr=st.booleans(),
)
def test_keys_and_values_are_what_partition_makes_of_a_line(data: bytes, strips_cr: bool) -> None:
    form = PlainLines(topic="t", max_record_bytes=1000, separator=b"::", strips_cr=strips_cr)
    found: list[tuple[bytes | None, bytes]] = []
    for block in _read(data, block_bytes=16):
        assert isinstance(block, Block)
        for rows in form.rows(block):
            columns = rows.table.to_pydict()
            found += zip(columns["key"], columns["value"], strict=True)
    parts = [line.partition(b"::") for line in _expected(data)]
    assert found == [(key, value) if separator else (None, key) for key, separator, value in parts]


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 40), max_size=12), block_bytes=st.integers(1, 30))
def test_lines_that_are_too_long_are_counted_and_never_held(sizes: list[int], block_bytes: int) -> None:
    data = b"".join(b"x" * size + b"\n" for size in sizes)
    number = 0
    for found in _read(data, block_bytes=block_bytes, longest_bytes=10):
        if isinstance(found, TooLong):
            number += 1
            assert (found.line, found.size_bytes) == (number, sizes[number - 1])
            assert found.size_bytes > 10
        else:
            assert found.first == number + 1
            number += len(found.stops)
    assert number == len(sizes)


def test_a_line_waits_for_nothing_but_its_end() -> None:
    read, write = os.pipe()
    try:
        found = blocks(f"/dev/fd/{read}", longest_bytes=100)
        os.write(write, b"one\ntwo")
        first = next(found)
        assert isinstance(first, Block)
        assert first.data == b"one\n"
        assert next(found) is None
        os.write(write, b"\n")
        second = next(found)
        assert isinstance(second, Block)
        assert (second.first, second.data) == (2, b"two\n")
    finally:
        os.close(write)
        os.close(read)
    found.close()  # type: ignore[attr-defined]


@given(
    key=PAYLOADS,
    value=PAYLOADS,
    headers=st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=5), PAYLOADS), max_size=3),
    timestamp=st.integers(-1, 253_402_300_799_999),
)
def test_every_record_survives_its_json_form(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]], timestamp: int
) -> None:
    listed = [{"key": name, "value": content} for name, content in headers] or None
    row = {"key": key, "value": value, "headers": listed, "timestamp": timestamp}
    line = jsonl.line_of(row, topic="clicks", partition=7)
    assert line.count(b"\n") == 1
    record = jsonl.parse(line)
    assert (jsonl.payload(record.key), jsonl.payload(record.value), jsonl.headers(record)) == (key, value, headers)
    assert jsonl.milliseconds(record) == (None if timestamp < 0 else timestamp)
    assert (record.topic, record.partition) == ("clicks", 7)


@pytest.mark.parametrize(
    ("numbers", "texts"),
    [
        ([3], ["3"]),
        ([1, 2, 3], ["1-3"]),
        ([1, 3, 4, 9], ["1,3-4,9"]),
        ([*range(1, 43, 2)], [",".join(map(str, range(1, 40, 2))), "41"]),
    ],
)
def test_line_numbers_are_shown_as_ranges(numbers: list[int], texts: list[str]) -> None:
    assert list(line_ranges(np.array(numbers))) == texts
