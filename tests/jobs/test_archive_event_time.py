"""Event times: where they are read from, and what counts as a time."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lake import stock

from ottla.errors import ConfigError
from ottla.jobs import event_time
from ottla.lake.writer import NO_TIME
from ottla.model import OffsetRange
from ottla.wire.decode import SCHEMA

AT = 1_767_268_800_000_000


def _continued(begin: bytes) -> st.SearchStrategy[bytes]:
    return st.binary().map(lambda rest: begin + rest + b'"}')


def values(*content: object) -> pa.RecordBatch:
    raw = [value if isinstance(value, bytes) or value is None else json.dumps(value).encode() for value in content]
    return pa.record_batch({"value": pa.array(raw, pa.binary())})


def times(text: str, records: pa.RecordBatch) -> list[int]:
    times = event_time.parse(text).reader()(records)
    assert times.dtype == np.int64
    return [int(time) for time in times]


@pytest.mark.parametrize(
    ("said", "moment"),
    [
        ("2026-01-01T12:00:00Z", AT),
        ("2026-01-01T13:00:00+01:00", AT),
        ("2026-01-01T12:00:00", AT),
        ("2026-01-01 12:00:00.25", AT + 250_000),
        ("2026-01-01", AT - 43_200_000_000),
        (1_767_268_800, AT),
        (1_767_268_800.5, AT + 500_000),
        (1_767_268_800_123, AT + 123_000),
        (1_767_268_800_123_456, AT + 123_456),
        (1_767_268_800_123_456_789, AT + 123_456),
        ("1767268800", AT),
        ("1767268800123", AT + 123_000),
        (0, 0),
        ("", NO_TIME),
        ("yesterday", NO_TIME),
        (True, NO_TIME),
        (None, NO_TIME),
        (-5, NO_TIME),
        ("0001-01-01T00:00:00+23:59", -62_135_683_140_000_000),
        ("9999-12-31T23:59:59-23:59", 253_402_387_139_000_000),
        ("9" * 5000, NO_TIME),
        ("\0", NO_TIME),
        (1e300, NO_TIME),
        ([1], NO_TIME),
    ],
)
def test_text_and_numbers_are_understood_by_their_form(said: object, moment: int) -> None:
    assert times("json:ts", values({"ts": said})) == [moment]


def test_a_path_leads_into_nested_fields() -> None:
    records = values(
        {"a": {"b c": 5, "b": 7}, "x": [1]}, {"a": 1}, {"a": None}, {}, [1], b"{", b"", None, b'{"a":{"b":9}}'
    )
    assert times("json:a.b", records) == [7_000_000, *[NO_TIME] * 7, 9_000_000]


def test_the_last_header_of_the_name_counts() -> None:
    headers = [
        [{"key": "t", "value": b"5"}, {"key": "u", "value": b"6"}, {"key": "t", "value": b"7"}],
        [{"key": "u", "value": b"6"}],
        None,
        [{"key": "t", "value": None}],
        [{"key": "t", "value": b"\xff"}],
    ]
    records = pa.record_batch({"headers": pa.array(headers, SCHEMA.field("headers").type)})
    assert times("header:t", records) == [7_000_000, *[NO_TIME] * 4]


def test_the_records_own_time_is_the_default() -> None:
    records = stock.records(OffsetRange("clicks", 0, 3, 5))
    assert times("record", records) == [stock.NOON + 3_000_000, stock.NOON + 4_000_000]


@pytest.mark.parametrize("text", ["", "json", "json:", "json:a..b", "header:", "ts", "record:x"])
def test_what_is_no_place_for_a_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="accepted are record, header:NAME"):
        event_time.parse(text)


def test_what_is_no_text_at_all_is_no_time() -> None:
    broken = [
        b'{"ts":"\xff"}',
        b'{"\xff":1}',
        b'{"ts":"\\ud800"}',
        b"\xff",
        b'{"ts":' + b"[" * 100_000,
        b'{"ts":1e999}',
    ]
    assert times("json:ts", values(*broken)) == [NO_TIME] * len(broken)


@given(st.lists(st.binary() | st.sampled_from([b'{"ts":"', b'{"ts":']).flatmap(_continued), max_size=5))
def test_no_value_stops_an_archive(payloads: list[bytes]) -> None:
    assert len(times("json:ts", values(*payloads))) == len(payloads)
    assert len(times("json:a.b", values(*payloads))) == len(payloads)


@given(
    st.lists(
        st.lists(st.tuples(st.binary(max_size=3), st.none() | st.binary() | st.text().map(str.encode))), max_size=4
    )
)
def test_no_header_stops_an_archive(headers_of_records: list[list[tuple[bytes, bytes | None]]]) -> None:
    names = pa.array([name for headers in headers_of_records for name, _ in headers], pa.binary()).view(pa.string())
    contents = pa.array([value for headers in headers_of_records for _, value in headers], pa.binary())
    kind = SCHEMA.field("headers").type
    pairs = pa.StructArray.from_arrays([names, contents], fields=list(kind.value_type))
    ends = np.cumsum([0, *map(len, headers_of_records)])
    records = pa.record_batch({"headers": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pairs)})
    assert len(times("header:a", records)) == len(headers_of_records)


@given(st.text() | st.integers() | st.floats())
def test_no_text_and_no_number_stops_an_archive(said: object) -> None:
    assert NO_TIME <= event_time.moment(said) < 1 << 62
