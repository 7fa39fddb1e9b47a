"""Makes bodies of records: JSON, NDJSON, an Arrow stream. Pure; runs on the threads that read.

Arrow batches come in, bytes go out. A record in JSON has the fields with which the gateway takes records, and its
place. No byte is lost: JSON values stand as they are, others are `text` or `base64`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

import msgspec
import pyarrow as pa

from ottla.consume.records import records_of
from ottla.model import Record

_TOMBSTONE = msgspec.Raw(b"null")
_raw = msgspec.json.Decoder(msgspec.Raw)
_DEEPEST = 200
Pairs = Sequence[tuple[str, bytes | None]]


class Shape(Enum):
    """How values are shown."""

    JSON = "json"
    """JSON as it is, other texts as `text`, other bytes as `base64`."""
    TEXT = "text"
    """Texts as `text`, other bytes as `base64`."""
    BASE64 = "base64"
    """All as `base64`."""


class Shown(msgspec.Struct, omit_defaults=True, gc=False):
    """A record in JSON."""

    partition: int
    offset: int
    timestamp: float
    key: str | None = None
    key_base64: str | None = None
    value: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    text: str | None = None
    base64: str | None = None
    headers: list[tuple[str, str | None]] | None = None
    headers_base64: list[tuple[str, str | None]] | None = None


def shown(record: Record, shape: Shape = Shape.JSON) -> Shown:
    """Return a record as it is shown."""
    found = Shown(record.partition, record.offset, record.timestamp)
    if record.key is not None:
        text = as_text(record.key)
        if text is None or shape is Shape.BASE64:
            found.key_base64 = as_base64(record.key)
        else:
            found.key = text
    _set_value(found, record.value, shape)
    if record.headers:
        _set_headers(found, record.headers)
    return found


def _set_value(found: Shown, value: bytes | None, shape: Shape) -> None:
    if value is None:
        found.value = _TOMBSTONE
        return
    text = None if shape is Shape.BASE64 else as_text(value)
    if text is None:
        found.base64 = as_base64(value)
    elif shape is Shape.JSON and is_plain_json(value):
        found.value = msgspec.Raw(value)
    else:
        found.text = text


def _set_headers(found: Shown, headers: Pairs) -> None:
    texts = [(name, None if value is None else as_text(value)) for name, value in headers]
    if any(value is not None and text is None for (_, value), (_, text) in zip(headers, texts, strict=True)):
        found.headers_base64 = [(name, None if value is None else as_base64(value)) for name, value in headers]
    else:
        found.headers = texts


def is_plain_json(value: bytes) -> bool:
    """Whether UTF-8 is JSON that can stand in a line as it is, and is written back as the same bytes."""
    return value != b"null" and b"\n" not in value and b"\r" not in value and value == value.strip() and is_json(value)


def is_json(value: bytes) -> bool:
    """Whether UTF-8 is JSON that can stand in an answer."""
    if _is_deep(value):
        return False
    try:
        _raw.decode(value)
        if b"\\u" in value:
            msgspec.json.decode(value)  # half a surrogate would make the whole answer unreadable
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


def _is_deep(value: bytes) -> bool:
    return value.count(b"[") + value.count(b"{") > _DEEPEST and _depth(value) > _DEEPEST


def _depth(value: bytes) -> int:
    """Return how deep it is nested at most; brackets in texts count, too."""
    depth = deepest = 0
    for byte in value:
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest


def as_text(value: bytes) -> str | None:
    """Return bytes as text, None if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def as_base64(value: bytes) -> str:
    """Return bytes as base64."""
    return base64.b64encode(value).decode()


def rows(batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
    """Yield the records of batches."""
    for batch in batches:
        yield from records_of(batch)


def as_json(batches: Iterable[pa.RecordBatch], head: Mapping[str, object], shape: Shape) -> bytes:
    """Return one JSON object: the fields of `head`, and `records`."""
    return msgspec.json.encode({**head, "records": [shown(record, shape) for record in rows(batches)]})


def as_lines(batches: Iterable[pa.RecordBatch], shape: Shape) -> bytes:
    """Return a line for each record."""
    return b"".join(msgspec.json.encode(shown(record, shape)) + b"\n" for record in rows(batches))


def as_arrow(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> bytes:
    """Return an Arrow stream, with all columns."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(memoryview(sink.getvalue()))
