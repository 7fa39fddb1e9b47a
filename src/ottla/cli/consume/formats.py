"""How `ottla consume` writes records: values on lines, keys and values, JSON lines. `template` has `--format`.

Records become blocks of bytes, without a Python loop over records. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ottla.cli.consume import texts
from ottla.wire.decode import COLUMNS

_LINE_END = texts.text(b"\n")
_TIMESTAMP_TYPES = texts.column_of(b"CreateTime", b"LogAppendTime")
_BLOCK_BYTES = 32 << 20
"""About how much becomes text at once: an Arrow column holds 2 GiB, and escapes make data larger."""


class Format(Protocol):
    """Turns records into bytes."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it needs."""

    def block(self, records: pa.RecordBatch) -> memoryview:
        """Return all records as bytes."""


def blocks(form: Format, records: pa.RecordBatch) -> Iterator[memoryview]:
    """Yield the records in blocks of bounded size, unless a single record is larger."""
    rows = records.num_rows
    step = max(1, rows * _BLOCK_BYTES // max(records.nbytes, 1))
    for start in range(0, rows, step):
        yield form.block(records.slice(start, step))


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Each value, or key, separator and value, on a line. A record without a key has no separator either.

    `ottla produce` reads this, with the same separator and the same text for null.
    """

    separator: bytes | None = None
    null: bytes = b""
    readable: bool = False
    """For a terminal: control characters are escaped."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it needs."""
        return frozenset({"value"} if self.separator is None else {"key", "value"})

    def block(self, records: pa.RecordBatch) -> memoryview:
        """Return one line for each record."""
        values = pc.fill_null(self._column(records, "value"), texts.text(self.null))
        if self.separator is None:
            return texts.contents(texts.join(values, _LINE_END))
        keys = pc.fill_null(texts.join(self._column(records, "key"), texts.text(self.separator)), texts.EMPTY)
        return texts.contents(texts.join(keys, values, _LINE_END))

    def _column(self, records: pa.RecordBatch, name: str) -> pa.Array:
        return texts.readable(records.column(name)) if self.readable else records.column(name)


@dataclass(frozen=True, slots=True)
class JsonObjects:
    """Each record as a JSON object on a line, with all its fields; `values.jsonl` describes the object."""

    @property
    def columns(self) -> frozenset[str]:
        """All columns."""
        return frozenset(COLUMNS)

    def block(self, records: pa.RecordBatch) -> memoryview:
        """Return one line for each record."""
        column = records.column
        times = texts.iso_times(column("timestamp"), quote=b'"')
        fields = {
            b'{"topic":': _fixed(column("topic"), topics),
            b',"partition":': _fixed(column("partition"), texts.numbers),
            b',"offset":': texts.numbers(column("offset")),
            b',"timestamp":': pc.fill_null(times, texts.text(b"null")),
            b',"timestamp_type":"': _fixed(column("timestampType"), timestamp_types),
            b'","key":': texts.json_texts(column("key")),
            b',"value":': texts.json_texts(column("value")),
            b',"headers":': texts.json_headers(column("headers")),
        }
        parts = (part for name, field in fields.items() for part in (texts.text(name), field))
        return texts.contents(texts.join(*parts, texts.text(b"}\n")))


def _fixed(column: pa.Array, written: Callable[[pa.Array], pa.Array]) -> texts.Texts:
    """Write a value once if all records share it, as the records of one partition do."""
    if len(column) and pc.all(pc.equal(column, column[0])).as_py():
        return written(column.slice(0, 1))[0]
    return written(column)


def topics(column: pa.Array) -> pa.Array:
    """Return names as JSON."""
    return texts.json_texts(column.cast(pa.binary()))


def timestamp_types(column: pa.Array) -> pa.Array:
    """Return Kafka's names for the types."""
    return _TIMESTAMP_TYPES.take(column)
