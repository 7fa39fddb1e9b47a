"""What a task does: one range in, Arrow batches out, with exactly the columns that Spark asks for.

It runs in Spark's Python workers, which are used for many tasks, one after the other; so the client is kept between
them. It decides nothing: which range, which columns and what to do about lost records comes from the driver.
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

from ottla.engines.gc_freeze import settle
from ottla.model import OffsetRange
from ottla.spark.read_options import ReadOptions

if TYPE_CHECKING:
    from ottla.fetch.reader import Reader


class Slice(InputPartition):
    """One range, for one task."""

    def __init__(self, range: OffsetRange) -> None:  # noqa: A002
        super().__init__(range)
        self.range = range


@dataclass(frozen=True)
class Task:
    """Reads slices. It travels to the workers, with the schema as Spark wants it."""

    wanted: ReadOptions
    schema: StructType

    def read(self, slice: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: A002
        """The records of a slice. Where there is nothing to read, Spark hands over a slice without a range."""
        if not isinstance(slice, Slice):
            return
        shape = to_arrow_schema(self.schema, timezone="UTC")
        for records in client(self.wanted).read(slice.range, columns=shape.names):
            yield pa.RecordBatch.from_arrays([records.column(name) for name in shape.names], schema=shape)
        settle()


_clients: dict[object, Reader] = {}
_MOST_CLIENTS = 4


def client(wanted: ReadOptions) -> Reader:
    """The reader of this process for these settings; connecting anew would take longer than a small task."""
    connection = wanted.connection.patient(wanted.patience)
    key = (os.getpid(), connection, wanted.isolation, wanted.on_lost, wanted.fetching)
    found = _clients.pop(key, None)
    if found is None:
        found = connection.reader(isolation=wanted.isolation, on_lost=wanted.on_lost, fetching=wanted.fetching)
    _clients[key] = found  # in the order of their last use
    while len(_clients) > _MOST_CLIENTS:
        _clients.pop(next(iter(_clients))).close()
    return found
