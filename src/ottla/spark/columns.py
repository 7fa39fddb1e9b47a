"""The columns of the source, and the check of a schema that a user gives.

Spark asks for the columns in separate processes before anything is read, so this module imports no client code.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ottla.errors import InputError

_HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
COLUMNS: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": _HEADERS,
}
"""The columns of Spark's Kafka connector."""


def full_schema(*, headers: bool) -> StructType:
    """All columns, with or without the headers."""
    return StructType([StructField(name, kind) for name, kind in COLUMNS.items() if headers or name != "headers"])


def check_schema(schema: StructType) -> None:
    """Check a user's schema. It may leave out and reorder columns; raises `InputError` for anything else."""
    if not schema.fields:
        raise InputError(f"the schema has no column; the source has {', '.join(COLUMNS)}")
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise InputError(f"the schema has a column {field.name}; the source has {', '.join(COLUMNS)}")
        if field.dataType != kind:
            raise InputError(
                f"the schema has {field.name} as {field.dataType.simpleString()}; it is {kind.simpleString()}:"
                " read it as that, and cast it in the DataFrame"
            )
    if len(set(schema.names)) != len(schema.names):
        raise InputError("the schema names a column twice")
