"""The rows that the sink writes: which columns a DataFrame must have, and what the producer gets.

On the driver a Spark schema comes in and is checked once, by the rules of Spark's own Kafka connector. In the tasks
Arrow batches come in and tables for `Producer.send_table` go out. This module never connects.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
    TimestampType,
)

from ottla.errors import ConfigError, InputError
from ottla.model import Fingerprint
from ottla.produce.records import by_topic, columns
from ottla.wire.encode import fingerprint_of

_PAYLOAD = "string or binary"
_HEADERS = "array<struct<key:string,value:binary>>"
_EXPECTED = {
    "key": _PAYLOAD,
    "value": _PAYLOAD,
    "headers": _HEADERS,
    "topic": "string",
    "partition": "int",
    "timestamp": "timestamp",
}


@dataclass(frozen=True, slots=True)
class RowFormat:
    """The columns that are written, and the topic: None if each row names its own."""

    columns: tuple[str, ...]
    topic: str | None

    def table(self, batch: pa.RecordBatch) -> pa.Table:
        """The rows as the producer takes them. Raises `InputError` if a row needs a topic and has none."""
        table = pa.Table.from_batches([batch]).select(list(self.columns))
        if self.topic is None and table.column("topic").null_count:
            raise InputError(
                f"{table.column('topic').null_count} rows have no topic (column topic is null): set the option topic,"
                " or fill the column"
            )
        return _with_timestamps(table) if "timestamp" in self.columns else table


def row_format(schema: StructType, topic: str | None) -> RowFormat:
    """Which columns to write. Raises `ConfigError` if one is missing or has the wrong type.

    Columns with other names are ignored, as in the connector. The option `topic` wins over the column.
    """
    types = {field.name: field.dataType for field in schema.fields}
    if "value" not in types:
        raise ConfigError(f"there is no column value, which every record needs; the columns are {_listed(types)}")
    if topic is None and "topic" not in types:
        raise ConfigError(f"which topic? Set the option topic, or add a column topic; the columns are {_listed(types)}")
    used = [name for name in _EXPECTED if name in types and not (name == "topic" and topic is not None)]
    for name in used:
        if not _fits(name, types[name]):
            raise ConfigError(
                f"column {name} has type {types[name].simpleString()}; it must be {_EXPECTED[name]}:"
                " cast, rename or drop it"
            )
    return RowFormat(tuple(used), topic)


def fingerprint(table: pa.Table, topic: str | None) -> Fingerprint:
    """The fingerprint of a table's records, equal to what a reader of the topic will compute."""
    by_topics = (columns(rows)[0] for _, rows, _ in by_topic(topic, table))
    return sum(map(fingerprint_of, by_topics), Fingerprint())


def _with_timestamps(table: pa.Table) -> pa.Table:
    """The table with the current time in rows that have none."""
    column = table.column("timestamp")
    if not column.null_count:
        return table
    now = pa.scalar(datetime.now(UTC), column.type)
    return table.set_column(table.schema.get_field_index("timestamp"), "timestamp", pc.fill_null(column, now))


def _fits(name: str, kind: DataType) -> bool:
    if name in ("key", "value"):
        return isinstance(kind, StringType | BinaryType)
    if name == "headers":
        return _is_headers(kind)
    plain = {"topic": StringType, "partition": IntegerType, "timestamp": TimestampType}
    return isinstance(kind, plain[name])


def _is_headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    fields = [(field.name, type(field.dataType)) for field in kind.elementType.fields]
    return fields == [("key", StringType), ("value", BinaryType)]


def _listed(types: dict[str, DataType]) -> str:
    return ", ".join(types) or "none at all"
