"""What `ottla consume --json` writes: every record comes back from it as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.consume.formats import JsonObjects, blocks
from ottla.cli.values import jsonl
from ottla.text import CONTROL

from .columns import Row, batch, rows


def lines(*given: Row) -> list[bytes]:
    return bytes(JsonObjects().block(batch(*given))).splitlines()


def only(row: Row) -> dict[str, Any]:
    (line,) = lines(row)
    found = json.loads(line)
    assert isinstance(found, dict)
    return found


def test_a_line_has_everything_that_is_known_of_a_record() -> None:
    row = Row(b"hello", key=b"user-1", headers=[("trace", b"42"), ("trace", None)], offset=7)
    assert only(row) == {
        "topic": "clicks",
        "partition": 3,
        "offset": 7,
        "timestamp": "2026-01-01T00:00:00.250Z",
        "timestamp_type": "CreateTime",
        "key": "user-1",
        "value": "hello",
        "headers": [["trace", "42"], ["trace", None]],
    }
    assert only(Row(timestamp_type=1))["timestamp_type"] == "LogAppendTime"


@pytest.mark.parametrize(
    ("content", "written"),
    [
        (None, None),
        (b"", ""),
        (b"null", "null"),
        ("Käse \u2028 \U0001f9c0".encode(), "Käse \u2028 \U0001f9c0"),
        (b'"\\\n\r\t\x00\x1f\x7f', '"\\\n\r\t\x00\x1f\x7f'),
        (b"\xff\x00", {"base64": "/wA="}),
        ("\ud800".encode("utf-8", "surrogatepass"), {"base64": "7aCA"}),
        (b"\xc0\x80", {"base64": "wIA="}),
    ],
)
def test_null_empty_text_and_other_bytes_differ(content: bytes | None, written: object) -> None:
    row = only(Row(content, key=content, headers=[("h", content)]))
    assert (row["value"], row["key"], row["headers"]) == (written, written, [["h", written]])


@pytest.mark.parametrize(
    ("milliseconds", "written"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_767_225_600_007, "2026-01-01T00:00:00.007Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        (253_402_300_800_001, 253_402_300_800.001),
        (-1, None),
        (-2, "1969-12-31T23:59:59.998Z"),
    ],
)
def test_a_time_is_exact_to_the_millisecond(milliseconds: int, written: object) -> None:
    assert only(Row(timestamp=milliseconds))["timestamp"] == written
    both = lines(Row(timestamp=milliseconds), Row(timestamp=5))
    assert [json.loads(line)["timestamp"] for line in both] == [written, "1970-01-01T00:00:00.005Z"]


@given(st.lists(rows, min_size=1, max_size=5), st.integers(0, 4))
def test_what_is_written_is_read_back_by_produce(records: list[Row], first: int) -> None:
    part = batch(*records).slice(first)
    written = b"".join(bytes(block) for block in blocks(JsonObjects(), part)).split(b"\n")
    assert written.pop() == b""
    for row, line in zip(records[first:], written, strict=True):
        read = jsonl.parse(line)
        assert (read.topic, read.partition, read.offset) == ("clicks", 3, row.offset)
        assert jsonl.payload(read.key) == row.key
        assert jsonl.payload(read.value) == row.value
        assert jsonl.headers(read) == list(row.headers)
        assert jsonl.milliseconds(read) == (None if row.timestamp == -1 else row.timestamp)


def test_a_large_batch_is_written_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.consume.formats._BLOCK_BYTES", 1000)
    records = batch(*(Row(b"x" * 100, offset=offset) for offset in range(50)))
    written = [bytes(block) for block in blocks(JsonObjects(), records)]
    assert len(written) > 5
    assert [json.loads(line)["offset"] for line in b"".join(written).splitlines()] == list(range(50))


@pytest.mark.parametrize("other", ["", "ž", "\ufffd"])
def test_a_terminal_obeys_nothing_of_it(other: str) -> None:
    text = other + "\x1b[31m\x7f\x80\x9b\xad\u061c\u200e\u200f\u2028\u2029\u202a\u202e\u2066\u2069\ufeff\U000e0041"
    (line,) = lines(Row(text.encode(), key=text.encode(), headers=[(text, text.encode())]))
    assert not CONTROL.search(line.decode())
    found = json.loads(line)
    assert (found["key"], found["value"], found["headers"]) == (text, text, [[text, text]])
    (mixed, _) = lines(Row(text.encode()), Row(b"\xff"))  # one that is no text, and the others are not looked at as one
    assert not CONTROL.search(mixed.decode())
    assert json.loads(mixed)["value"] == text
