"""Everything that the encoder accepts, in every layout of Arrow, and the errors for what it rejects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import InputError
from ottla.wire.columns import Columns, from_arrow, from_list
from ottla.wire.encode import encode

from .rows import HEADER_TYPE, NOW, Row, decoded, placed, quick, rows_of

Shape = Callable[[pa.Array], Any]

BYTES = [b"first", None, b"", b"\xff\x00\xfe", b"a longer value than fits in a view's twelve bytes", b"last"]
TEXTS = ["first", None, "", "schlüssel", "a longer value than fits in a view's twelve bytes", "last"]
FIXED = [b"abcd", None, b"\0\0\0\0", b"wxyz", b"1234", b"5678"]


def _dictionary(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind).dictionary_encode()


COLUMNS = {
    "binary": pa.array(BYTES, pa.binary()),
    "large_binary": pa.array(BYTES, pa.large_binary()),
    "binary_view": pa.array(BYTES, pa.binary_view()),
    "string": pa.array(TEXTS, pa.string()),
    "large_string": pa.array(TEXTS, pa.large_string()),
    "string_view": pa.array(TEXTS, pa.string_view()),
    "fixed_size": pa.array(FIXED, pa.binary(4)),
    "dictionary_of_binary": _dictionary(BYTES, pa.binary()),
    "dictionary_of_string": _dictionary(TEXTS, pa.string()),
    "null": pa.nulls(6),
}

SHAPES: dict[str, Shape] = {
    "whole": lambda array: array,
    "slice": lambda array: array.slice(1, 4),
    "end": lambda array: array.slice(3),
    "empty slice": lambda array: array.slice(2, 0),
    "one chunk": lambda array: pa.chunked_array([array.slice(2)]),
    "chunks": lambda array: pa.chunked_array([array.slice(4), array.slice(0, 0), array.slice(1, 2), array]),
    "no chunks": lambda array: pa.chunked_array([], array.type),
}


def sent(columns: Columns) -> list[Row]:
    return rows_of(decoded(placed(encode(columns, now_ms=NOW))))


def as_bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", COLUMNS)
def test_every_arrow_type_and_shape_is_sent_as_its_bytes(kind: str, shape: str) -> None:
    array = SHAPES[shape](COLUMNS[kind])
    expected = [as_bytes(value) for value in array.to_pylist()]
    assert [row.value for row in sent(from_arrow(array))] == expected
    assert [row.key for row in sent(from_arrow(pa.nulls(len(array)), key=array))] == expected


def test_chunks_with_dictionaries_of_their_own_are_sent() -> None:
    array = pa.chunked_array([_dictionary(["a", "b"], pa.string()), _dictionary(["b", "c", "b"], pa.string())])
    assert [row.value for row in sent(from_arrow(array))] == [b"a", b"b", b"b", b"c", b"b"]


@given(
    values=st.lists(st.none() | st.binary(max_size=30), max_size=20),
    start=st.integers(0, 10),
    length=st.integers(0, 20),
    kind=st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()]),
)
@quick
def test_any_slice_sends_its_own_rows(values: list[bytes | None], start: int, length: int, kind: pa.DataType) -> None:
    array = pa.array(values, kind).slice(min(start, len(values)), length)
    assert [row.value for row in sent(from_arrow(array))] == array.to_pylist()


HEADERS: list[Any] = [
    [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    None,
    [],
    [{"key": "schlüssel", "value": b""}],
    [{"key": "", "value": b"\xff"}, {"key": "b", "value": b"2"}, {"key": "c", "value": b"3"}],
    [{"key": "z", "value": b"4"}],
]
PAIRS = [None if entry is None else [(h["key"], h["value"]) for h in entry] for entry in HEADERS]
HEADER_COLUMNS = {
    "list": pa.array(HEADERS, HEADER_TYPE),
    "large_list": pa.array(HEADERS, pa.large_list(HEADER_TYPE.value_type)),
    "binary keys": pa.array(
        [e and [{"key": h["key"].encode(), "value": h["value"]} for h in e] for e in HEADERS],
        pa.list_(pa.struct([("key", pa.binary()), ("value", pa.large_binary())])),
    ),
    "fields swapped, one more": pa.array(
        [e and [{"more": 1, **h} for h in e] for e in HEADERS],
        pa.list_(pa.struct([("value", pa.binary()), ("more", pa.int8()), ("key", pa.large_string())])),
    ),
    "map": pa.array(PAIRS, pa.map_(pa.string(), pa.binary())),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", HEADER_COLUMNS)
def test_headers_are_sent_from_every_accepted_type(kind: str, shape: str) -> None:
    array = SHAPES[shape](HEADER_COLUMNS[kind])
    expected = [
        tuple((h["key"], h["value"]) for h in e or ()) for e in SHAPES[shape](HEADER_COLUMNS["list"]).to_pylist()
    ]
    assert [row.headers for row in sent(from_arrow(pa.nulls(len(array)), headers=array))] == expected


def test_a_null_column_of_headers_is_no_headers() -> None:
    assert sent(from_arrow(pa.array([b"a"]), headers=pa.nulls(1))) == [Row(value=b"a")]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Prague"])
def test_timestamps_of_every_unit_are_sent_as_milliseconds(unit: str, zone: str | None) -> None:
    per_second = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    times = pa.array([1_700_000_000 * per_second, 0, per_second], pa.int64()).view(pa.timestamp(unit, zone))
    assert [row.time for row in sent(from_arrow(pa.nulls(3), timestamp=times))] == [1_700_000_000_000, 0, 1000]


def test_finer_times_are_cut_to_milliseconds() -> None:
    times = pa.array([1_999_999], pa.timestamp("ns"))
    assert [row.time for row in sent(from_arrow(pa.nulls(1), timestamp=times))] == [1]


@pytest.mark.parametrize("shape", SHAPES)
def test_times_may_be_sliced_and_chunked(shape: str) -> None:
    times = SHAPES[shape](pa.array([1, 2, 3, 4, 5, 6]))
    assert [row.time for row in sent(from_arrow(pa.nulls(len(times)), timestamp=times))] == times.to_pylist()


items = st.none() | st.binary(max_size=20) | st.text(max_size=20)


@given(mixed=st.lists(items | st.tuples(items, items), max_size=30))
@quick
def test_lists_mix_values_and_pairs(mixed: list[Any]) -> None:
    pairs = [item if isinstance(item, tuple) else (None, item) for item in mixed]
    assert sent(from_list(mixed)) == [Row(as_bytes(key), as_bytes(value)) for key, value in pairs]


def test_lists_take_every_kind_of_bytes() -> None:
    assert [row.value for row in sent(from_list([b"a", bytearray(b"b"), memoryview(b"c"), "d", None]))] == [
        *(b"a", b"b", b"c", b"d"),
        None,
    ]


def test_a_generator_of_records_is_taken_whole() -> None:
    assert sent(from_list((b"k", b"%d" % i) for i in range(3))) == [Row(b"k", b"%d" % i) for i in range(3)]


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ("text", "a string is not a list of records"),
        (["\ud800"], "column value: 'utf-8' codec can't encode"),
        ([b"a", 7], "item 1: value is int, expected bytes, str or None"),
        ([(b"k", b"v"), (b"k", 1.5)], "item 1: value is float, expected bytes, str or None"),
        ([(["k"], b"v")], "item 0: key is list, expected bytes, str or None"),
        ([b"a", (b"k", b"v", b"w")], "item 1 is a tuple of 3; a record is a value or a .key, value. pair"),
        ([(b"k",)], "item 0 is a tuple of 1"),
    ],
)
def test_an_item_that_is_no_record_is_named(items: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_list(items)


VALUE = pa.array([b"a", b"b"])
KEY_TWICE = pa.StructArray.from_arrays([VALUE, VALUE, VALUE], names=["key", "value", "key"])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"key": pa.array([1, 2])}, "column key has type int64; accepted are binary and string"),
        ({"key": pa.array([b"a"])}, "column key has 1 rows, column value has 2"),
        ({"headers": pa.nulls(3)}, "column headers has 3 rows, column value has 2"),
        ({"timestamp": pa.array([1])}, "column timestamp has 1 rows, column value has 2"),
        ({"timestamp": pa.array([1, None])}, "column timestamp has 1 nulls; leave the column out"),
        ({"timestamp": pa.array([5, -1])}, "column timestamp has -1 ms, before 1970"),
        ({"timestamp": pa.array([2**61, 0]).view(pa.timestamp("s"))}, "column timestamp: .* out of bounds"),
        ({"key": [b"a", b"b"]}, "column key is a list, expected a pyarrow Array or ChunkedArray"),
        ({"headers": pa.ListArray.from_arrays([0, 1, 2], KEY_TWICE)}, "column headers has type list<.*>; accepted is"),
        ({"timestamp": pa.array([1.0, 2.0])}, "column timestamp has type double; accepted are timestamp and int64"),
        ({"headers": pa.array(["a", "b"])}, "column headers has type string; accepted is list<struct<key, value>>"),
        ({"headers": pa.array([["a"], []])}, "column headers has type list<.*string>; accepted is"),
        ({"headers": pa.array([[{"key": "a"}], []])}, "column headers has type list<.*>; accepted is"),
        ({"headers": pa.array([[None], []], HEADER_TYPE)}, "column headers has a null key or a null entry"),
        (
            {"headers": pa.array([[{"key": None, "value": b""}], []], HEADER_TYPE)},
            "column headers has a null key or a null entry",
        ),
        (
            {"headers": pa.array([[{"key": "a", "value": 1}], []])},
            "column headers.value has type int64; accepted are binary and string",
        ),
    ],
)
def test_a_column_that_cannot_be_sent_is_named(columns: dict[str, pa.Array], words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_arrow(VALUE, **columns)


def test_a_value_column_of_numbers_is_named() -> None:
    with pytest.raises(InputError, match="column value has type int64; accepted are"):
        from_arrow(pa.array([1]))


def test_a_column_beyond_32_bit_offsets_is_named() -> None:
    size = 1200 << 20  # never touched, so it takes no memory
    ends = pa.py_buffer(np.array([0, size], np.int32))
    huge = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(np.zeros(size, np.uint8))])
    with pytest.raises(InputError, match="column value is larger than 2 GiB: cast it to a large type"):
        from_arrow(pa.chunked_array([huge, huge]))


def test_what_lies_outside_a_slice_does_not_count() -> None:
    headers = pa.array([[None], [{"key": None, "value": b""}], [{"key": "a", "value": b"1"}]], HEADER_TYPE).slice(2)
    times = pa.array([None, -5, 7]).slice(2)
    assert sent(from_arrow(pa.array([b"v"]), headers=headers, timestamp=times)) == [
        Row(value=b"v", headers=(("a", b"1"),), time=7)
    ]


def test_the_content_of_a_null_list_is_not_sent() -> None:
    offsets, items = pa.array([0, 1, 2], pa.int32()), HEADER_COLUMNS["list"].values.slice(0, 2)
    hidden = pa.ListArray.from_arrays(offsets, items, type=HEADER_TYPE, mask=pa.array([True, False]))
    assert [row.headers for row in sent(from_arrow(pa.nulls(2), headers=hidden))] == [(), (("a", None),)]
