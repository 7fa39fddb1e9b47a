"""Reads bodies of the REST Proxy, v2 and v3, and writes its answers. Pure.

v2 has one format for all records of a request, v3 one for each key and value. JSON values stay as the client wrote
them. What is wrong is a `Problem` with the codes of the REST Proxy and the index of the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from ottla.gateway.http.answers import Outcome, by_row
from ottla.gateway.http.bodies import (
    Counted,
    check_utf8,
    decode_counted,
    decode_headers,
    decode_list,
    from_base64,
    read_partition,
    read_time,
)
from ottla.gateway.http.limits import Limits
from ottla.gateway.http.problems import Problem
from ottla.gateway.intake import Incoming

_H = TypeVar("_H")
V2 = b"application/vnd.kafka.v2+json"
FORMATS = {
    "application/vnd.kafka.json.v2+json": "json",
    "application/vnd.kafka.binary.v2+json": "binary",
    "application/vnd.kafka.text.v2+json": "text",
    "application/vnd.kafka.v2+json": "binary",
    "application/json": "json",
    "application/octet-stream": "binary",
    "": "binary",
}
_SCHEMAS = ("avro", "protobuf", "jsonschema")
_NULL = (b"", b"null")
_RETRIABLE = (503, 504, 429)


class _Header(msgspec.Struct, gc=False):
    key: str
    value: str | None = None


class _V2Record(Counted, gc=False):
    key: msgspec.Raw = msgspec.Raw(b"")
    value: msgspec.Raw = msgspec.Raw(b"")
    partition: int | None = None
    timestamp: int | None = None
    headers: msgspec.Raw = msgspec.Raw(b"")


class _V2Body(msgspec.Struct, gc=False):
    records: list[_V2Record]


class _V3Header(msgspec.Struct, gc=False):
    name: str
    value: str | None = None


class _V3Data(msgspec.Struct, gc=False):
    type: str | None = None
    data: msgspec.Raw = msgspec.Raw(b"")


class V3Record(Counted, gc=False):
    """A record of v3; an entry of a batch has an `id`, too."""

    partition_id: int | None = None
    headers: msgspec.Raw = msgspec.Raw(b"")
    key: _V3Data | None = None
    value: _V3Data | None = None
    timestamp: str | None = None
    id: msgspec.Raw = msgspec.Raw(b"")


class _V3Batch(msgspec.Struct, gc=False):
    entries: list[V3Record]


_v2 = msgspec.json.Decoder(_V2Body)
_v3 = msgspec.json.Decoder(V3Record)
_v3_batch = msgspec.json.Decoder(_V3Batch)
_text = msgspec.json.Decoder(str)
_headers = msgspec.json.Decoder(list[_Header] | None)
_v3_headers = msgspec.json.Decoder(list[_V3Header] | None)


def v2_format(content_type: str) -> str:
    """Return json, binary or text for a content type. Raises `Problem` 415."""
    found = FORMATS.get(content_type)
    if found is None:
        hint = "; schemas need a registry, which this gateway has not" if _has_schema(content_type) else ""
        raise Problem(415, f"the content type {content_type!r} is not supported{hint}; accepted are {_accepted()}")
    return found


def read_v2(body: bytes, form: str, *, partition: int | None, limits: Limits) -> list[Incoming]:
    """Return the records of a v2 body, in the format `form`. Raises `Problem`."""
    check_utf8(body)
    try:
        records = decode_list(_v2.decode, body, limits, name="records", of=lambda found: found.records)
    except msgspec.ValidationError as error:
        raise Problem(422, str(error), code=42206) from error
    except msgspec.MsgspecError as error:
        raise Problem(400, f"the body is not JSON: {error}", code=40002) from error
    except RecursionError as error:
        raise Problem(400, "JSON is nested too deeply", limit="json_depth") from error
    if not records:
        raise Problem(422, "records is empty", code=42206)
    return [_from_v2(record, form, index, partition, limits) for index, record in enumerate(records)]


def v2_answer(outcome: Outcome) -> bytes:
    """Return the body of a v2 answer: an entry for each record, in their order."""
    offsets: list[dict[str, Any]] = []
    for each in by_row(outcome):
        if isinstance(each, tuple):
            offsets.append({"partition": each[0], "offset": each[1], "error_code": None, "error": None})
        else:
            failed = {"partition": None, "offset": None, "error_code": _v2_code(each), "error": each.text}
            offsets.append(failed | ({"limit": each.limit} if each.limit else {}))
    return msgspec.json.encode({"offsets": offsets, "key_schema_id": None, "value_schema_id": None})


def read_v3(line: bytes, limits: Limits) -> V3Record:
    """Return a record of v3. Raises `Problem`."""
    try:
        check_utf8(line)
        return decode_counted(_v3.decode, line, limits, most=1)
    except msgspec.MsgspecError as error:
        raise Problem(400, f"the record is not accepted: {error}") from error
    except RecursionError as error:
        raise Problem(400, "JSON is nested too deeply", limit="json_depth") from error


def read_v3_batch(body: bytes, limits: Limits) -> list[tuple[str, V3Record]]:
    """Return the entries of a batch with their ids. Raises `Problem`."""
    check_utf8(body)
    try:
        entries = decode_list(_v3_batch.decode, body, limits, name="entries", of=lambda found: found.entries)
    except msgspec.MsgspecError as error:
        raise Problem(422, f"the batch is not accepted: {error}", code=42208) from error
    except RecursionError as error:
        raise Problem(400, "JSON is nested too deeply", limit="json_depth") from error
    if not entries:
        raise Problem(422, "the batch has no entries", code=42208)
    if len(entries) > limits.batch_entries:
        raise Problem(
            422,
            f"the batch has {len(entries)} entries, at most {limits.batch_entries}",
            code=42208,
            limit="batch_entries",
        )
    named = [(_entry_id(entry, index), entry) for index, entry in enumerate(entries)]
    if len({name for name, _ in named}) != len(named):
        raise Problem(422, "two entries of the batch have the same id", code=42208)
    return named


def from_v3(record: V3Record, limits: Limits) -> tuple[Incoming, dict[str, Any]]:
    """Return what is written for a record of v3, and the part of the receipt that says so. Raises `Problem`."""
    key, key_type = _v3_bytes(record.key, "key")
    value, value_type = _v3_bytes(record.value, "value")
    headers = tuple(
        (header.name, None if header.value is None else from_base64(header.value, f"header {header.name!r}"))
        for header in _given(_v3_headers.decode, record.headers, "the record", limits)
    )
    time = None if record.timestamp is None else read_time(record.timestamp, "timestamp")
    receipt: dict[str, Any] = {}
    if key is not None:
        receipt["key"] = {"type": key_type, "size": len(key)}
    if value is not None:
        receipt["value"] = {"type": value_type, "size": len(value)}
    return Incoming(value, key, headers, time, read_partition(record.partition_id, "the record")), receipt


class Documents:
    """Cuts concatenated JSON objects out of a stream, however they are spread over its pieces."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._pending = bytearray()
        self._at = 0
        self._depth = 0
        self._is_text = False
        self._is_escaped = False
        self.count = 0
        """How many objects were whole."""

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """Yield the objects that end in this piece. Raises `Problem` for anything else between objects."""
        self._pending += piece
        start = 0
        pending, at = self._pending, self._at
        while at < len(pending):
            sign = pending[at]
            at += 1
            if self._is_text:
                if self._is_escaped:
                    self._is_escaped = False
                elif sign == 0x5C:
                    self._is_escaped = True
                elif sign == 0x22:
                    self._is_text = False
            elif self._depth == 0:
                if sign == 0x7B:
                    start = at - 1
                    self._depth = 1
                elif sign not in b" \t\r\n,":
                    raise Problem(400, "the stream has something that is not a JSON object")
                else:
                    start = at
            elif sign == 0x22:
                self._is_text = True
            elif sign in b"{[":
                self._depth += 1
            elif sign in b"}]":
                self._depth -= 1
                if self._depth == 0:
                    self.count += 1
                    yield bytes(pending[start:at])
                    start = at
        del pending[:start]
        self._at = at - start
        if len(pending) > self._most_bytes:
            raise Problem(413, f"a record of the stream is larger than {self._most_bytes:,} bytes", limit="body_bytes")

    def end(self) -> None:
        """Raise `Problem` if the stream ends within an object."""
        if self._depth:
            raise Problem(400, "the stream ends within a record")


def _from_v2(record: _V2Record, form: str, index: int, partition: int | None, limits: Limits) -> Incoming:
    what = f"record {index}"
    if record.timestamp is not None and not 0 <= record.timestamp < 1 << 63:
        raise Problem(422, f"timestamp of {what} is not one of milliseconds since 1970", code=42206)
    return Incoming(
        _v2_bytes(bytes(record.value), form, f"value of {what}"),
        _v2_bytes(bytes(record.key), form, f"key of {what}"),
        tuple(
            (header.key, None if header.value is None else from_base64(header.value, f"a header of {what}"))
            for header in _given(_headers.decode, record.headers, what, limits)
        ),
        None if record.timestamp is None else read_time(record.timestamp / 1000, f"timestamp of {what}"),
        read_partition(record.partition if partition is None else partition, what),
    )


def _given(decode: Callable[[bytes], list[_H] | None], raw: msgspec.Raw, what: str, limits: Limits) -> Sequence[_H]:
    """Return the headers of a record."""
    text = bytes(raw)
    found: list[_H] | None = decode_headers(decode, text, what, limits) if text else None
    return found or ()


def _v2_bytes(raw: bytes, form: str, what: str) -> bytes | None:
    if raw in _NULL:
        return None
    if form == "json":
        return raw
    if not raw.startswith(b'"'):
        raise Problem(422, f"{what} is not a text, which the format {form} needs", code=42206)
    text = _decoded_text(raw, what)
    if form == "text":
        return text.encode()
    try:
        return from_base64(text, what)
    except Problem as problem:
        raise Problem(422, problem.text, code=42206) from problem


def _v3_bytes(data: _V3Data | None, what: str) -> tuple[bytes | None, str]:
    if data is None:
        return None, ""
    raw = bytes(data.data)
    kind = (data.type or "JSON").upper()
    if kind not in ("BINARY", "JSON", "STRING"):
        raise Problem(415, f"{what} has a type that is not supported; accepted are BINARY, JSON and STRING")
    if raw in _NULL:
        return None, kind
    if kind == "JSON":
        return raw, kind
    if not raw.startswith(b'"'):
        raise Problem(400, f"data of {what} is not a text, which the type {kind} needs")
    text = _decoded_text(raw, what)
    return (text.encode() if kind == "STRING" else from_base64(text, f"data of {what}")), kind


def _decoded_text(raw: bytes, what: str) -> str:
    try:
        text = _text.decode(raw)
        text.encode()
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise Problem(400, f"{what} is not a text: {error}") from error
    return text


def _entry_id(entry: V3Record, index: int) -> str:
    raw = bytes(entry.id)
    text = _decoded_text(raw, "id") if raw.startswith(b'"') else ""
    if not 0 < len(text) <= 80 or not text.isascii() or not text.replace("-", "").replace("_", "a").isalnum():
        raise Problem(422, f"entry {index} needs an id of 1 to 80 letters, digits, - and _", code=42208)
    return text


def _v2_code(problem: Problem) -> int:
    if problem.code in (40101, 40301):
        return problem.code
    return 50003 if problem.status in _RETRIABLE else 50002


def _has_schema(content_type: str) -> bool:
    return any(f".{schema}." in content_type for schema in _SCHEMAS)


def _accepted() -> str:
    return ", ".join(name for name in FORMATS if name)


def names_of(topics: Sequence[str]) -> bytes:
    """Return a list of topics as v2 has it: a bare array."""
    return msgspec.json.encode(topics)
