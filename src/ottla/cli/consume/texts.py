"""Columns of records as text, a whole column at a time: numbers, times, hexadecimal, base64, JSON.

Arrow arrays become arrays of bytes, which `join` combines into lines. Pure. A Python loop over records is needed only
for bytes that are not UTF-8 and for times before 1970 or after the year 9999.
"""

from __future__ import annotations

import struct
from binascii import b2a_base64
from itertools import accumulate
from typing import Any, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.cli.values.times import show_timestamp
from ottla.text import CONTROL_BYTES, escaped_in_json, printable

Texts: TypeAlias = "pa.Array | pa.Scalar"
"""A text for each record, or one for all of them."""

_BINARY = pa.binary()
_MILLISECONDS = pa.timestamp("ms")
_YEAR_10000 = 253_402_300_800_000
"""Milliseconds. Years of more than four digits are not ISO 8601, and other programs do not read them."""
_ISO_BYTES = len("2026-01-31T12:00:00.000")
_json = msgspec.json.Encoder()
_TAB, _LINE_END, _SPACE, _DEL = 0x09, 0x0A, 0x20, 0x7F


def column_of(*contents: bytes) -> pa.Array:
    """A binary column. `pa.array` and `pa.scalar` would do, but import pandas where it is installed."""
    ends = [0, *accumulate(map(len, contents))]
    packed = pa.py_buffer(struct.pack(f"<{len(ends)}i", *ends))
    return pa.Array.from_buffers(_BINARY, len(contents), [None, packed, pa.py_buffer(b"".join(contents))])


def text(content: bytes) -> pa.Scalar:
    """Return a text that all records share."""
    return column_of(content)[0]


EMPTY, _QUOTE, _NULL, _COMMA, _OPEN, _CLOSE = map(text, (b"", b'"', b"null", b",", b"[", b"]"))


def join(*parts: Texts) -> pa.Array:
    """Return the texts of each record joined, null where one of them is null; at least one part is an array."""
    return pc.binary_join_element_wise(*parts, EMPTY)


def contents(column: pa.Array) -> memoryview:
    """Return the bytes of all records of a binary column, joined, without a copy."""
    if not len(column):
        return memoryview(b"")
    _, ends, data = column.buffers()
    used = np.frombuffer(ends, np.int32)[column.offset : column.offset + len(column) + 1]
    return memoryview(b"") if data is None else memoryview(data)[used[0] : used[-1]]


def numbers(column: pa.Array) -> pa.Array:
    """Return numbers in decimal."""
    return column.cast(pa.string()).cast(_BINARY)


def sizes(column: pa.Array) -> pa.Array:
    """Return the size of each value in bytes, -1 for null."""
    return numbers(pc.fill_null(pc.binary_length(column), -1))


def hexadecimal(column: pa.Array) -> pa.Array:
    """Return each value in hexadecimal."""
    return _each(column, lambda data: data.hex().encode())


def base64(column: pa.Array) -> pa.Array:
    """Return each value in base64."""
    return _each(column, lambda data: b2a_base64(data, newline=False))


def _each(column: pa.Array, written: Any) -> pa.Array:
    return pa.array([None if data is None else written(data) for data in column.to_pylist()], _BINARY)


def json_texts(column: pa.Array) -> pa.Array:
    """Return bytes as JSON: a string if they are UTF-8, else `{"base64": "..."}`; null for null."""
    try:
        column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_json_text(data) for data in column.to_pylist()], _BINARY)
    escaped = column
    for special in _specials(np.frombuffer(contents(column), np.uint8)):
        written = escaped_in_json(_json.encode(special)[1:-1].decode())
        escaped = pc.replace_substring(escaped, pattern=special.encode(), replacement=written.encode())
    quoted = join(_QUOTE, escaped, _QUOTE)
    return pc.fill_null(quoted, _NULL) if quoted.null_count else quoted


def _json_text(data: bytes | None) -> bytes:
    if data is None:
        return b"null"
    try:
        return escaped_in_json(_json.encode(data.decode()).decode()).encode()
    except UnicodeDecodeError:
        return b'{"base64":"' + b2a_base64(data, newline=False) + b'"}'


def _specials(data: npt.NDArray[np.uint8]) -> list[str]:
    """Return the characters to escape; the backslash first, because the other escapes contain it."""
    specials = [special for special in ("\\", '"') if (data == ord(special)).any()]
    specials += map(chr, np.unique(data[data < 32]).tolist())
    # JSON does not require to escape the rest, but a terminal would interpret it.
    return specials + (_controls(data) if len(data) and data.max() >= _DEL else [])


def _controls(data: npt.NDArray[np.uint8]) -> list[str]:
    return sorted(match.decode() for match in set(CONTROL_BYTES.findall(data.data)))


def readable(column: pa.Array) -> pa.Array:
    """Return text for a terminal: control characters and bytes that are not UTF-8 as `\\x1b`."""
    data = np.frombuffer(contents(column), np.uint8)
    if not ((data < _SPACE) & (data != _TAB) & (data != _LINE_END)).any() and not (data >= _DEL).any():
        return column
    return _each(column, _readable)


def _readable(data: bytes) -> bytes:
    return printable(data.decode(errors="backslashreplace"), keep="\n\t").encode()


def json_headers(column: pa.Array) -> Texts:
    """Return headers as lists of pairs."""
    if column.null_count == len(column):
        return text(b"[]")
    pairs = column.flatten()
    names, values = json_texts(pc.struct_field(pairs, "key").cast(_BINARY)), json_texts(pc.struct_field(pairs, "value"))
    return join(_OPEN, _listed(column, join(_OPEN, names, _COMMA, values, _CLOSE)), _CLOSE)


def plain_headers(column: pa.Array) -> Texts:
    """Return headers as `name=value,name=value`; a name alone has a null value."""
    if column.null_count == len(column):
        return EMPTY
    pairs = column.flatten()
    names, values = pc.struct_field(pairs, "key").cast(_BINARY), pc.struct_field(pairs, "value")
    return _listed(column, join(names, pc.fill_null(join(text(b"="), values), EMPTY)))


def _listed(column: pa.Array, elements: pa.Array) -> pa.Array:
    """Return the elements of each record's list, joined by commas."""
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(list_ends(column)), elements), _COMMA)


def list_ends(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return where the elements of each record start and end in `column.flatten()`."""
    ends = np.zeros(len(column) + 1, np.int32)
    np.cumsum(pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False), out=ends[1:])
    return ends


def header(column: pa.Array, name: str) -> pa.Array:
    """Return the value of the last header with this name, null without one."""
    pairs = column.flatten()
    matches = np.flatnonzero(pc.equal(pc.struct_field(pairs, "key"), name).to_numpy(zero_copy_only=False))
    last = np.full(len(column), -1, np.int64)
    last[np.searchsorted(list_ends(column), matches, side="right") - 1] = matches
    return pc.struct_field(pairs, "value").take(pa.array(last, mask=last < 0))


def milliseconds(column: pa.Array) -> pa.Array:
    """Return timestamps as Kafka has them."""
    return pc.cast(column.cast(_MILLISECONDS, safe=False), pa.int64())


def iso_times(column: pa.Array, *, quote: bytes = b"") -> pa.Array:
    """Return times as ISO 8601 in UTC; null for none, seconds since 1970 where ISO 8601 has no form."""
    since_1970 = milliseconds(column)
    bounds = pc.min_max(since_1970).as_py()
    if not len(column) or bounds["min"] < 0 or bounds["max"] >= _YEAR_10000:
        return pa.array([_moment(when, quote) for when in since_1970.to_pylist()], _BINARY)
    shown = contents(since_1970.cast(_MILLISECONDS).cast(pa.string()))
    marked = np.frombuffer(shown, np.uint8).reshape(-1, _ISO_BYTES).copy()
    marked[:, len("2026-01-31")] = ord("T")
    fixed = pa.Array.from_buffers(pa.binary(_ISO_BYTES), len(column), [None, pa.py_buffer(marked)])
    return join(text(quote), fixed.cast(_BINARY), text(b"Z" + quote))


def _moment(when: int, quote: bytes) -> bytes | None:
    shown = show_timestamp(when)
    if shown is None:
        return None
    return quote + shown.encode() + quote if shown.endswith("Z") else shown.encode()
