"""Finds the event time of records: the record's own timestamp, a header, or a field of its JSON value.

Record batches come in. Microseconds since 1970 go out, one per record, `NO_TIME` where no time can be read. The content
of a record never raises an error.

A time in a header or in JSON is text or a number. Text is ISO 8601, in UTC if it has no zone (`2026-01-31T12:00:00Z`,
`2026-01-31 12:00:00.5`, `2026-01-31`), or a number. A number counts since 1970, and its size gives the unit: seconds
below 10^11 (until the year 5138), milliseconds below 10^14, microseconds below 10^17, nanoseconds above.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ottla.errors import ConfigError
from ottla.lake.writer import NO_TIME, Times, as_numbers

ACCEPTED = "record, header:NAME, json:FIELD or json:FIELD.FIELD"
_PATH = re.compile(r"[^.\s]+(?:\.[^.\s]+)*")
_SECONDS, _MILLIS, _MICROS = 1e11, 1e14, 1e17
_LARGEST = 1 << 62


@dataclass(frozen=True, slots=True)
class EventTime:
    """Where to find the event time of a record."""

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else self.kind

    def reader(self) -> Callable[[pa.RecordBatch], Times]:
        """Return a function that finds the times of records. Use one per thread."""
        if self.kind == "record":
            return lambda records: as_numbers(records.column("timestamp"))
        if self.kind == "header":
            name = self.name
            return lambda records: _each(_header(records, name), _from_text)
        decode = _decoder(self.name)
        return lambda records: _each(records.column("value").to_pylist(), decode)


def parse(text: str) -> EventTime:
    """Parse `record`, `header:NAME` or `json:PATH`. Raises `ConfigError` for anything else."""
    kind, separator, name = text.partition(":")
    if text == "record":
        return EventTime("record")
    if kind == "header" and name:
        return EventTime(kind, name)
    if kind == "json" and separator and _PATH.fullmatch(name):
        return EventTime(kind, name)
    raise ConfigError(f"invalid event time {text!r}; accepted are {ACCEPTED}")


def moment(value: object) -> int:
    """Return the microseconds that a number or a text means; `NO_TIME` if it is not a time."""
    if isinstance(value, bool) or value is None:
        return NO_TIME
    if isinstance(value, int | float):
        return _from_number(value)
    if isinstance(value, str):
        return _from_string(value)
    return NO_TIME


def _each(values: Iterable[Any], function: Callable[[Any], int]) -> Times:
    return np.fromiter((function(value) for value in values), np.int64)


def _header(records: pa.RecordBatch, name: str) -> Iterable[bytes | None]:
    """Return the value of each record's last header with that name. Compares bytes: names may not be valid UTF-8."""
    column = records.column("headers")
    pairs = column.flatten()
    rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
    names = pc.struct_field(pairs, "key").view(pa.binary())
    matches = np.flatnonzero(pc.fill_null(pc.equal(names, name.encode()), False).to_numpy(zero_copy_only=False))
    values = pc.struct_field(pairs, "value").take(pa.array(matches)).to_pylist()
    last: list[bytes | None] = [None] * len(records)
    for row, value in zip(rows[matches], values, strict=True):
        last[row] = value
    return last


def _from_text(value: bytes | None) -> int:
    if value is None:
        return NO_TIME
    try:
        return _from_string(value.decode())
    except UnicodeDecodeError:
        return NO_TIME


def _from_string(text: str) -> int:
    try:
        return _from_number(float(text) if "." in text else int(text))
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text.strip())
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return round(aware.timestamp() * 1e6)
    except (ValueError, OverflowError):  # overflow: the first or last day of the calendar, in another zone
        return NO_TIME


def _from_number(value: float) -> int:
    if not 0 <= value < _LARGEST:  # False for NaN, too
        return NO_TIME
    if value < _SECONDS:
        return round(value * 1_000_000)
    if value < _MILLIS:
        return round(value * 1000)
    return int(value) if value < _MICROS else int(value) // 1000


def _decoder(path: str) -> Callable[[bytes | None], int]:
    """Return a function that reads one field of a JSON text. msgspec skips the others without building them."""
    names = path.split(".")
    kind: Any = int | float | str | None
    for depth, name in enumerate(reversed(names)):
        kind = msgspec.defstruct(f"Level{depth}", [("inner", kind | None, None)], rename={"inner": name})
    decoder = msgspec.json.Decoder(kind)

    def read(value: bytes | None) -> int:
        if value is None:
            return NO_TIME
        try:
            node: Any = decoder.decode(value)
        except (msgspec.MsgspecError, ValueError, RecursionError):  # ValueError: not UTF-8
            return NO_TIME
        for _ in names:
            if node is None:
                return NO_TIME
            node = node.inner
        return moment(node)

    return read
