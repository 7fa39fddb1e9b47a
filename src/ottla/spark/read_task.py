"""What a read task does: one offset range in, Arrow batches out, with exactly the columns that Spark asks for.

It runs in Spark's Python workers. A worker runs many tasks, one after the other, so readers are kept between tasks.
The driver decides which range and columns to read and how to treat lost records; this module decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from ottla.engines.gc_freeze import freeze_once
from ottla.model import OffsetRange
from ottla.spark.read_options import ReadOptions

if TYPE_CHECKING:
    from ottla.fetch.reader import Reader


class Slice(InputPartition):
    """The offset range of one task."""

    def __init__(self, range: OffsetRange) -> None:  # noqa: A002
        super().__init__(range)
        self.range = range


@dataclass(frozen=True)
class ReadTask:
    """Reads slices. Picklable: Spark sends it to the workers."""

    options: ReadOptions
    schema: StructType

    def read(self, slice: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: A002
        """Yield the records of a slice as Arrow batches. Raises what `Reader.read` raises."""
        if not isinstance(slice, Slice):  # Spark passes an empty partition if the plan has none
            return
        arrow_schema = to_arrow_schema(self.schema, timezone="UTC")
        for records in shared_reader(self.options).read(slice.range, columns=arrow_schema.names):
            columns = [records.column(name) for name in arrow_schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=arrow_schema)
        freeze_once()


_readers: dict[object, Reader] = {}
"""In the order of their last use."""
_MAX_READERS = 4


def shared_reader(options: ReadOptions) -> Reader:
    """This process's reader for these options. A new connection would take longer than a small task."""
    access = options.access.with_timeout(options.retry_timeout)
    # With the process id: a forked worker must not use the sockets of its parent.
    key = (os.getpid(), access, options.isolation, options.on_lost, options.fetching)
    reader = _readers.pop(key, None)
    if reader is None:
        from ottla.fetch.reader import Reader  # its kernels take a second to load, and planning needs none

        reader = Reader(access, isolation=options.isolation, on_lost=options.on_lost, fetching=options.fetching)
    _readers[key] = reader
    while len(_readers) > _MAX_READERS:
        _readers.pop(next(iter(_readers))).close()
    return reader
