"""Reads the bodies of native requests: JSON, NDJSON, one record of any bytes, or an Arrow stream. Pure.

Bytes and a content type come in. Records go out, values as the bytes that the client sent, or a `Problem` that names
the line or the record. It knows no topic and no producer.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeAlias

import msgspec
import pyarrow as pa

from ottla.gateway.http.limits import Limits
from ottla.gateway.http.problems import Problem
from ottla.gateway.intake import Incoming

Rows: TypeAlias = Sequence[Incoming] | pa.RecordBatch
JSON = "application/json"
NDJSON = ("application/x-ndjson", "application/ndjson", "application/jsonl")
BINARY = ("application/octet-stream", "text/plain")
ARROW = "application/vnd.apache.arrow.stream"
_NULL = b"null"
_YEAR_10000 = 253_402_300_800
_LAST_PARTITION = (1 << 31) - 1
_COLUMNS = ("value", "key", "headers", "timestamp", "partition")


class _Record(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A record in JSON. At most one of `value`, `text` and `base64`; a record without any of them is a tombstone."""

    value: msgspec.Raw = msgspec.Raw(b"")
    text: str | None = None
    base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str | None] | list[tuple[str, str | None]] | None = None
    headers_base64: dict[str, str | None] | list[tuple[str, str | None]] | None = None
    timestamp: float | str | None = None
    partition: int | None = None


class _Records(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    records: list[_Record]


class _Envelope(msgspec.Struct, gc=False):
    records: msgspec.Raw = msgspec.Raw(b"")


_raw_lines = msgspec.json.Decoder(msgspec.Raw)
_record_lines = msgspec.json.Decoder(_Record)
_records = msgspec.json.Decoder(_Records)
_envelope = msgspec.json.Decoder(_Envelope)


def read_rows(body: bytes, content_type: str, query: Mapping[str, str], *, limits: Limits) -> Rows:
    """Return the records of a body. Raises `Problem`."""
    kind = content_type.partition(";")[0].strip().lower()
    shape = query.get("shape", "")
    if shape not in ("", "value", "record"):
        raise Problem(400, f"shape is {shape!r}; accepted are value and record")
    if kind in NDJSON:
        rows: Rows = read_record_lines(body) if shape == "record" else read_lines(body, query.get("key"))
    elif kind == JSON:
        rows = read_json(body, query.get("key"), is_value=shape == "value")
    elif kind == ARROW:
        rows = read_arrow(body)
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


def read_lines(body: bytes, key: str | None = None) -> list[Incoming]:
    """Return a record for each line that is not empty: its value is the line's JSON, as it came."""
    check_utf8(body)
    key_bytes = _encoded(key)
    try:
        values = _raw_lines.decode_lines(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        _fail_at_line(body, _raw_lines, error)
    return [Incoming(bytes(value), key_bytes) for value in values]


def read_record_lines(body: bytes) -> list[Incoming]:
    """Return a record for each line that is not empty, with the fields of `_Record`."""
    check_utf8(body)
    try:
        records = _record_lines.decode_lines(body)
    except (msgspec.MsgspecError, RecursionError) as error:
        _fail_at_line(body, _record_lines, error)
    return [_incoming(record, index) for index, record in enumerate(records)]


def read_json(body: bytes, key: str | None = None, *, is_value: bool = False) -> list[Incoming]:
    """Return the records of `{"records": [...]}`; of any other JSON one record, whose value is the body."""
    check_utf8(body)
    try:
        if not is_value and _has_records(body):
            return [_incoming(record, index) for index, record in enumerate(_records.decode(body).records)]
        return [Incoming(bytes(msgspec.json.decode(body, type=msgspec.Raw)), _encoded(key))]
    except msgspec.MsgspecError as error:
        raise Problem(400, f"the body is not accepted: {error}") from error
    except RecursionError as error:
        raise _too_deep() from error


def read_arrow(body: bytes) -> pa.RecordBatch:
    """Return the rows of an Arrow stream with a column `value`, and optionally key, headers, timestamp, partition."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            table = reader.read_all()
        table.validate(full=True)
        columns = table.combine_chunks().to_batches()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Problem(400, f"the body is not an Arrow stream: {error}") from error
    unknown = [name for name in table.schema.names if name not in _COLUMNS]
    if unknown or "value" not in table.schema.names or len(set(table.schema.names)) != len(table.schema.names):
        raise Problem(422, f"the columns are {', '.join(table.schema.names)}; accepted are {', '.join(_COLUMNS)}, once")
    return columns[0] if columns else pa.RecordBatch.from_pylist([], schema=table.schema)


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
    """Whether this is an object with a list `records`."""
    if not body.lstrip().startswith(b"{") or b'"records"' not in body:
        return False
    return bytes(_envelope.decode(body).records).startswith(b"[")


def _incoming(record: _Record, index: int) -> Incoming:
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
    if record.headers is not None and record.headers_base64 is not None:
        raise Problem(400, f"{what} has headers and headers_base64")
    return Incoming(
        content,
        key,
        _headers(record, what),
        None if record.timestamp is None else read_time(record.timestamp, f"timestamp of {what}"),
        read_partition(record.partition, what),
    )


def _headers(record: _Record, what: str) -> tuple[tuple[str, bytes | None], ...]:
    given = record.headers if record.headers_base64 is None else record.headers_base64
    pairs = given.items() if isinstance(given, dict) else given or ()
    if record.headers_base64 is None:
        return tuple((name, _encoded(text)) for name, text in pairs)
    whose = f"headers_base64 of {what}"
    return tuple((name, None if text is None else from_base64(text, whose)) for name, text in pairs)


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
