"""A data source in Python that reads nothing: the same Arrow batch again and again, as fast as Spark takes it.

What it reaches is the most that any source in Python can. Its columns are those of the source `ottla`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ottla.engines.gc_freeze import freeze_once
from ottla.spark.columns import full_schema

_PARTITIONS = 4
_CHUNK_BYTES = 2 << 20
"""Of a batch, as our reader makes them."""


class Nothing(DataSource):
    """As many rows as the option `records` says, of `bytes` each."""

    @classmethod
    def name(cls) -> str:
        """What it is called in `format`."""
        return "nothing"

    def schema(self) -> StructType:
        """Without headers, as `ottla` has it unless told otherwise."""
        return full_schema(headers=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch query."""
        return _Reader(schema, int(self.options["records"]), int(self.options["bytes"]))


class _Reader(DataSourceReader):
    def __init__(self, schema: StructType, records: int, record_bytes: int) -> None:
        self._schema = schema
        self._records = records
        self._record_bytes = record_bytes

    def partitions(self) -> Sequence[InputPartition]:
        shares = [len(range(index, self._records, _PARTITIONS)) for index in range(_PARTITIONS)]
        return [InputPartition(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = int(partition.value)
        rows = min(left, max(1, _CHUNK_BYTES // (self._record_bytes + 40)))
        batch = self._batch(rows)
        while left:
            yield batch.slice(0, min(left, rows))
            left -= min(left, rows)
        freeze_once()

    def _batch(self, rows: int) -> pa.RecordBatch:
        shape = to_arrow_schema(self._schema, timezone="UTC")
        filled: dict[str, Any] = {"value": [b"x" * self._record_bytes] * rows, "key": [None] * rows}
        columns = [pa.array(filled.get(field.name) or _constant(field.type, rows), field.type) for field in shape]
        return pa.RecordBatch.from_arrays(columns, schema=shape)


def _constant(kind: pa.DataType, rows: int) -> list[Any]:
    return ["topic" if pa.types.is_string(kind) else 0] * rows
