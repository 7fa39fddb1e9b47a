"""Records as JSON lines: the format of `ottla produce --format json`, `ottla spool export` and `ottla consume --json`.

Text stands for its UTF-8 bytes, `{"base64": "..."}` for any others, and null for null, so that every record survives a
round trip. A line that is not such an object raises an InputError that names the field. Pure. `consume.formats` writes
the same format from whole columns.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Any

import msgspec

from ottla.errors import InputError

_LAST_PARTITION = (1 << 31) - 1
_LAST_SECOND = 1 << 53


class Base64(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bytes that are not UTF-8."""

    base64: bytes


Text = str | Base64 | None


class JsonRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A record. Only `value` is required; a null value is a tombstone."""

    value: Text
    key: Text = None
    headers: dict[str, Text] | list[tuple[str, Text]] | None = None
    timestamp: int | float | str | None = None
    """Seconds since 1970, or ISO 8601 with a time zone."""
    partition: Annotated[int, msgspec.Meta(ge=0, le=_LAST_PARTITION)] | None = None
    topic: str | None = None
    offset: int | None = None
    timestamp_type: str | None = None
    """Of a record that was read, like its offset; ignored when records are sent."""


_decoder = msgspec.json.Decoder(JsonRecord)
_encoder = msgspec.json.Encoder()


def parse(line: bytes) -> JsonRecord:
    """Parse a line. Raises InputError if it is not a record."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(_explained(error)) from error


def is_record_read(line: bytes) -> bool:
    """Return whether this is a record as `ottla consume --json` writes it."""
    try:
        record = _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return record.topic is not None and record.offset is not None and record.timestamp_type is not None


def _explained(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return 'not UTF-8: send other bytes as {"base64": "..."}'
    text = str(error)
    if "$.value" in text or "$.key" in text or "$.headers" in text:
        return f'{text}; a key or value is a text, null or {{"base64": "..."}}'
    if "unknown field" in text:
        return f"{text}; known are {', '.join(JsonRecord.__struct_fields__)}"
    return text


def payload(text: Text) -> bytes | None:
    """Return the bytes that a text stands for."""
    if isinstance(text, str):
        return text.encode()
    return None if text is None else text.base64


def headers(record: JsonRecord) -> list[tuple[str, bytes | None]]:
    """Return the headers as pairs."""
    given = record.headers
    pairs = given.items() if isinstance(given, dict) else given or ()
    return [(name, payload(value)) for name, value in pairs]


def milliseconds(record: JsonRecord) -> int | None:
    """Return the timestamp as Kafka has it, None if the record has none. Raises InputError if it is out of range."""
    when = record.timestamp
    if when is None:
        return None
    if isinstance(when, str):
        when = _seconds_of(when)
    if not math.isfinite(when) or not 0 <= when < _LAST_SECOND:
        raise InputError(f"timestamp {when} is not seconds since 1970")
    return round(when * 1000)


def _seconds_of(text: str) -> float:
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"timestamp {text!r} is not ISO 8601, for example 2026-01-31T12:00:00.5Z") from error
    if parsed.tzinfo is None:
        raise InputError(f"timestamp {text!r} has no time zone: add Z or +02:00")
    return parsed.timestamp()


def text_of(data: bytes | None) -> Text:
    """Return bytes as text if they are UTF-8, else as base64."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return Base64(data)


def line_of(row: dict[str, Any], *, topic: str, partition: int) -> bytes:
    """Return a decoded record as a line; `timestamp` in the row is milliseconds, negative for none."""
    pairs = row["headers"]
    timestamp = row["timestamp"]
    record = JsonRecord(
        value=text_of(row["value"]),
        key=text_of(row["key"]),
        headers=[(pair["key"], text_of(pair["value"])) for pair in pairs] if pairs else None,
        timestamp=timestamp / 1000 if timestamp >= 0 else None,
        partition=partition,
        topic=topic,
    )
    return _encoder.encode(record) + b"\n"
