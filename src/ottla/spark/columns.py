"""The columns of the source: which there are, and which of them a user may ask for.

Spark asks for these in processes of their own, before anything is read: so nothing of a client is imported here.
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
"""Those of Spark's Kafka connector."""


def full_schema(*, headers: bool) -> StructType:
    """All columns, with or without the headers."""
    return StructType([StructField(name, kind) for name, kind in COLUMNS.items() if headers or name != "headers"])


def check_schema(schema: StructType) -> None:
    """A schema that a user gave may leave out columns and reorder them, and nothing else."""
    if not schema.fields:
        raise InputError(f"the schema has no column; there are {', '.join(COLUMNS)}")
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise InputError(f"the schema has a column {field.name}; there are {', '.join(COLUMNS)}")
        if field.dataType != kind:
            raise InputError(
                f"the schema has {field.name} as {field.dataType.simpleString()}; it is {kind.simpleString()}:"
                " read it so, and cast it in the DataFrame"
            )
    if len(set(schema.names)) != len(schema.names):
        raise InputError("the schema names a column twice")
