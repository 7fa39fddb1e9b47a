"""Reads the bodies of native requests: JSON, NDJSON, one record of any bytes, or an Arrow stream. Pure.

Bytes and a content type come in. Records go out, values as the bytes that the client sent, or a `Problem` that names
the line or the record. It knows no topic and no producer.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import re
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeAlias, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.errors import InputError
from ottla.gateway.http.arrow_sizes import claims_of, repeated_bytes
from ottla.gateway.http.decoding import too_large
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.problems import Problem, problem_of
from ottla.gateway.intake import Incoming
from ottla.produce.records import columns as record_columns
from ottla.wire.columns import from_arrow
from ottla.wire.kernels.encoding import BinaryIn

_T = TypeVar("_T")
_R = TypeVar("_R")
Rows: TypeAlias = Sequence[Incoming] | pa.RecordBatch
JSON = "application/json"
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
BINARY = ("application/octet-stream", "text/plain")
ARROW = "application/vnd.apache.arrow.stream"
_NULL = b"null"
_ABSENT = (b"", _NULL)
_MOST_PER_BYTE, _MOST_PER_HEADER = 6, 100
"""How much JSON a byte of a header takes, written as an escape, and all that stands around its name and value."""
_YEAR_10000 = 253_402_300_800
_LAST_PARTITION = (1 << 31) - 1
_COLUMNS = ("value", "key", "headers", "timestamp", "partition")


class _Room(threading.local):
    """How many more records the body that this thread decodes may have."""

    left = 0


_room = _Room()


class Counted(msgspec.Struct, gc=False):
    """A record of a body: the one behind the last that a request may have ends decoding, before it takes memory."""

    def __post_init__(self) -> None:
        _room.left -= 1
        if _room.left < 0:
            raise ValueError("too many records")


class _Record(Counted, forbid_unknown_fields=True, gc=False):
    """A record in JSON. At most one of `value`, `text` and `base64`; a record without any of them is a tombstone."""

    value: msgspec.Raw = msgspec.Raw(b"")
    text: str | None = None
    base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: msgspec.Raw = msgspec.Raw(b"")
    headers_base64: msgspec.Raw = msgspec.Raw(b"")
    timestamp: float | str | None = None
    partition: int | None = None


class _Records(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    records: list[_Record]


class _Envelope(msgspec.Struct, gc=False):
    records: msgspec.Raw = msgspec.Raw(b"")


class _Object(msgspec.Struct, gc=False):
    """Any object; nothing of it is kept."""


class _NoList(msgspec.Struct, gc=False):
    records: _Object | str | float | bool | None = None


_raw_line = msgspec.json.Decoder(msgspec.Raw)
_record_line = msgspec.json.Decoder(_Record)
_records = msgspec.json.Decoder(_Records)
_envelope = msgspec.json.Decoder(_Envelope)
_no_list = msgspec.json.Decoder(_NoList)
_header_pairs = msgspec.json.Decoder(dict[str, str | None] | list[tuple[str, str | None]] | None)
_line_with_content = re.compile(rb"\S[^\n]*")


def read_rows(body: bytes, content_type: str, query: Mapping[str, str], *, limits: Limits) -> Rows:
    """Return the records of a body. Raises `Problem`."""
    kind = content_type.partition(";")[0].strip().lower()
    shape = query.get("shape", "")
    if shape not in ("", "value", "record"):
        raise Problem(400, f"shape is {shape!r}; accepted are value and record")
    if kind in NDJSON:
        is_record = shape == "record"
        rows: Rows = read_record_lines(body, limits) if is_record else read_lines(body, query.get("key"), limits=limits)
    elif kind == JSON:
        rows = read_json(body, query.get("key"), is_value=shape == "value", limits=limits)
    elif kind == ARROW:
        rows = read_arrow(body, limits)
    elif kind in BINARY:
        rows = [Incoming(body, _encoded(query.get("key")))]
    else:
        accepted = ", ".join((JSON, NDJSON[0], *BINARY, ARROW))
        what = f"the content type {kind!r} is not supported" if kind else "the request has no content type"
        raise Problem(415, f"{what}; accepted are {accepted}")
    check_count(len(rows), limits)
    return rows


def check_count(count: int, limits: Limits) -> None:
    """Raise `Problem` for a request without records, and for one with too many."""
    if not count:
        raise Problem(422, "the request has no records", code=42206)
    if count > limits.records:
        raise Problem(
            413, f"the request has {count:,} records, at most {limits.records:,} are accepted", limit="records"
        )


def decode_counted(decode: Callable[[bytes], _T], body: bytes, limits: Limits, *, most: int = 0) -> _T:
    """Return a body decoded, if it has at most as many records as one request may have. Raises `Problem` 413."""
    most = most or limits.records
    _room.left = most
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        if _room.left < 0:
            raise Problem(413, f"the request has more than {most:,} records", limit="records") from error
        raise


def decode_list(
    decode: Callable[[bytes], _T], body: bytes, limits: Limits, *, name: str, of: Callable[[_T], list[_R]]
) -> list[_R]:
    """Return the records that a body has under one name, which stands there once. Raises `Problem`.

    Of a name that is repeated, decoders keep the last one.
    """
    records = of(decode_counted(decode, body, limits))
    if _room.left != limits.records - len(records):
        raise _repeated(name)
    return records


def read_lines(body: bytes, key: str | None = None, *, limits: Limits) -> list[Incoming]:
    """Return a record for each line that is not empty: its value is the line's JSON, as it came."""
    check_utf8(body)
    key_bytes = _encoded(key)
    lines = _lines_of(body, limits)
    try:
        for line in lines:
            _raw_line.decode(line)
    except (msgspec.MsgspecError, RecursionError) as error:
        _fail_at_line(body, _raw_line, error)
    return [Incoming(line, key_bytes) for line in lines]


def read_record_lines(body: bytes, limits: Limits) -> list[Incoming]:
    """Return a record for each line that is not empty, with the fields of `_Record`."""
    check_utf8(body)
    lines = _lines_of(body, limits)
    _room.left = len(lines)
    try:
        records = [_record_line.decode(line) for line in lines]
    except (msgspec.MsgspecError, RecursionError) as error:
        _fail_at_line(body, _record_line, error)
    return [_incoming(record, index, limits) for index, record in enumerate(records)]


def _lines_of(body: bytes, limits: Limits) -> list[bytes]:
    """Return the lines that are not empty, without space around them. Raises `Problem` for too many."""
    if body.count(b"\n") < limits.records:
        return [line for line in map(bytes.strip, body.split(b"\n")) if line]
    found = itertools.islice(_line_with_content.finditer(body), limits.records + 1)
    lines = [each.group().rstrip() for each in found]
    if len(lines) > limits.records:
        raise Problem(413, f"the request has more than {limits.records:,} records", limit="records")
    return lines


def read_json(body: bytes, key: str | None = None, *, is_value: bool = False, limits: Limits) -> list[Incoming]:
    """Return the records of `{"records": [...]}`; of any other JSON one record, whose value is the body."""
    check_utf8(body)
    try:
        if not is_value and _has_records(body):
            records = decode_list(_records.decode, body, limits, name="records", of=lambda found: found.records)
            return [_incoming(record, index, limits) for index, record in enumerate(records)]
        return [Incoming(bytes(msgspec.json.decode(body, type=msgspec.Raw)), _encoded(key))]
    except msgspec.MsgspecError as error:
        raise Problem(400, f"the body is not accepted: {error}") from error
    except RecursionError as error:
        raise _too_deep() from error


def read_arrow(body: bytes, limits: Limits) -> pa.RecordBatch:
    """Return the rows of an Arrow stream with a column `value`, and optionally key, headers, timestamp, partition."""
    try:
        claims = claims_of(body)
        if claims.rows > limits.records:
            raise Problem(413, f"the request has more than {limits.records:,} records", limit="records")
        if claims.size_bytes > limits.decoded_bytes:
            raise too_large(limits.decoded_bytes)
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            _check_columns(reader.schema)
            table = reader.read_all()
        table.validate(full=True)
        batches = table.combine_chunks().to_batches()
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise Problem(400, f"the body is not an Arrow stream: {error}") from error
    check_count(table.num_rows, limits)
    (rows,) = batches
    if sum(map(repeated_bytes, rows.columns)) > limits.decoded_bytes:
        raise too_large(limits.decoded_bytes)
    if "headers" in rows.schema.names:
        _check_header_column(rows.column("headers"), limits)
    return rows


def _check_columns(schema: pa.Schema) -> None:
    """Raise `Problem` unless these are columns of records, of types that the producer takes."""
    names = schema.names
    if "value" not in names or len(set(names)) != len(names) or not set(names) <= set(_COLUMNS):
        raise Problem(422, f"the columns are {', '.join(names)}; accepted are {', '.join(_COLUMNS)}, once")
    try:
        record_columns(schema.empty_table())
    except InputError as error:
        raise problem_of(error) from error
    except pa.ArrowException as error:  # types that Arrow itself cannot handle, such as dictionaries of dictionaries
        raise Problem(422, f"a column has a type that is not supported: {error}", code=42206) from error


def _check_header_column(column: pa.Array, limits: Limits) -> None:
    """Raise `Problem` if a row has too many headers or too large ones, or a header a name that is not UTF-8."""
    try:
        headers = from_arrow(pa.nulls(len(column)), headers=column).headers
    except InputError as error:
        raise problem_of(error) from error
    most = int(np.diff(headers.ends).max(initial=0))
    if most > limits.record_headers:
        raise Problem(413, f"a row has {most} headers", limit="record_headers")
    if not most:
        return
    sizes = np.concatenate(([0], np.cumsum(_sizes_of(headers.keys) + _sizes_of(headers.values))))
    if int(np.diff(sizes[headers.ends]).max()) > limits.record_header_bytes:
        raise Problem(413, f"a row has headers above {limits.record_header_bytes:,} bytes", limit="record_header_bytes")
    if not _are_utf8(headers.keys):
        raise Problem(422, "a row has a header whose name is not UTF-8", code=42206)


def _sizes_of(texts: BinaryIn) -> npt.NDArray[np.int64] | int:
    return np.diff(texts.ends) if len(texts.ends) else 0  # a column of nulls has no ends


def _are_utf8(texts: BinaryIn) -> bool:
    """Whether each text is UTF-8: all of them together are, and none begins in the middle of a character."""
    first, stop = int(texts.ends[0]), int(texts.ends[-1])
    try:
        str(memoryview(texts.data)[first:stop], "utf-8")
    except UnicodeDecodeError:
        return False
    starts = texts.ends[:-1]
    return bool(((texts.data[starts[starts < stop]] & 0xC0) != 0x80).all())


def check_utf8(body: bytes) -> None:
    """Raise `Problem` unless a body is UTF-8: parsers look at the syntax of values alone."""
    if not body.isascii():
        try:
            str(body, "utf-8")
        except UnicodeDecodeError as error:
            line = body.count(b"\n", 0, error.start) + 1
            raise Problem(400, f"the body is not UTF-8: line {line}, byte {error.start}") from error


def from_base64(text: str, what: str) -> bytes:
    """Return the bytes of a base64 text. Raises `Problem` with `what` it is."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Problem(400, f"{what} is not base64: {error}") from error


def read_time(value: float | str, what: str) -> float:
    """Return seconds since 1970 of a number of seconds or an ISO 8601 time with a zone. Raises `Problem`."""
    if isinstance(value, str):
        try:
            time = datetime.fromisoformat(value)
        except ValueError as error:
            raise Problem(400, f"{what} is not a time: write seconds or 2026-01-01T00:00:00Z") from error
        if time.tzinfo is None:
            raise Problem(400, f"{what} has no zone: add Z if it is UTC")
        value = time.timestamp()
    if not 0 <= value < _YEAR_10000:
        raise Problem(400, f"{what} is not between 1970 and the year 9999, in seconds")
    return float(value)


def read_partition(value: int | None, what: str) -> int | None:
    """Return a partition. Raises `Problem` for a number that none can have."""
    if value is not None and not 0 <= value <= _LAST_PARTITION:
        raise Problem(400, f"{what} has the partition {value}")
    return value


def check_headers(headers: Sequence[tuple[str, bytes | None]], what: str, limits: Limits) -> None:
    """Raise `Problem` if a record has too many headers, or too large ones."""
    if len(headers) > limits.record_headers:
        raise Problem(413, f"{what} has {len(headers)} headers", limit="record_headers")
    if sum(len(name) + len(value or b"") for name, value in headers) > limits.record_header_bytes:
        raise Problem(
            413, f"{what} has headers above {limits.record_header_bytes:,} bytes", limit="record_header_bytes"
        )


def _has_records(body: bytes) -> bool:
    """Whether this is an object with a list `records`. Raises `Problem` if that is followed by other `records`."""
    if not body.lstrip().startswith(b"{") or b'"records"' not in body:
        return False
    if bytes(_envelope.decode(body).records).startswith(b"["):
        return True
    try:
        _no_list.decode(body)
    except msgspec.ValidationError as error:
        if "got `array`" in str(error):
            raise _repeated("records") from error
    return False


def _repeated(name: str) -> Problem:
    return Problem(400, f"the body has {name} more than once")


def _incoming(record: _Record, index: int, limits: Limits) -> Incoming:
    what = f"record {index}"
    value = bytes(record.value)
    if (value != b"") + (record.text is not None) + (record.base64 is not None) > 1:
        raise Problem(400, f"{what} has more than one of value, text and base64")
    if record.key is not None and record.key_base64 is not None:
        raise Problem(400, f"{what} has key and key_base64")
    content: bytes | None = None
    if record.text is not None:
        content = record.text.encode()
    elif record.base64 is not None:
        content = from_base64(record.base64, f"base64 of {what}")
    elif value and value != _NULL:
        content = value
    key = _encoded(record.key)
    if record.key_base64 is not None:
        key = from_base64(record.key_base64, f"key_base64 of {what}")
    return Incoming(
        content,
        key,
        _headers(record, what, limits),
        None if record.timestamp is None else read_time(record.timestamp, f"timestamp of {what}"),
        read_partition(record.partition, what),
    )


def _headers(record: _Record, what: str, limits: Limits) -> tuple[tuple[str, bytes | None], ...]:
    texts, base64s = bytes(record.headers), bytes(record.headers_base64)
    if texts in _ABSENT and base64s in _ABSENT:
        return ()
    if texts not in _ABSENT and base64s not in _ABSENT:
        raise Problem(400, f"{what} has headers and headers_base64")
    is_text = texts not in _ABSENT
    given = decode_headers(_header_pairs.decode, texts if is_text else base64s, what, limits)
    pairs = given.items() if isinstance(given, dict) else given or ()
    if is_text:
        return tuple((name, _encoded(text)) for name, text in pairs)
    whose = f"headers_base64 of {what}"
    return tuple((name, None if text is None else from_base64(text, whose)) for name, text in pairs)


def decode_headers(decode: Callable[[bytes], _T], raw: bytes, what: str, limits: Limits) -> _T:
    """Return the headers of a record decoded, unless their JSON is larger than all accepted ones are. Raises `Problem`.

    Each takes a hundred times its JSON while it is decoded.
    """
    if len(raw) > _MOST_PER_BYTE * limits.record_header_bytes + _MOST_PER_HEADER * limits.record_headers:
        raise Problem(
            413, f"{what} has headers above {limits.record_header_bytes:,} bytes", limit="record_header_bytes"
        )
    try:
        return decode(raw)
    except msgspec.MsgspecError as error:
        raise Problem(400, f"headers of {what} are not accepted: {error}") from error


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _fail_at_line(body: bytes, decoder: msgspec.json.Decoder[Any], error: Exception) -> NoReturn:
    """Raise the `Problem` of the first line that cannot be read."""
    for number, line in enumerate(body.split(b"\n"), 1):
        if line.strip():
            try:
                decoder.decode(line)
            except RecursionError as nested:
                raise _too_deep(f"line {number}: ") from nested
            except msgspec.MsgspecError as wrong:
                raise Problem(400, f"line {number}: {wrong}") from wrong
    raise Problem(400, f"a value spans lines: {error}") from error


def _too_deep(where: str = "") -> Problem:
    return Problem(400, f"{where}JSON is nested too deeply", limit="json_depth")
