"""Records one by one, for programs that want them so: an Arrow batch comes in, `Record` values go out."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from ottla.model import Record

_MICROSECONDS = 1e6


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    """The records of a batch that has all columns."""
    column = {name: batch.column(name) for name in batch.schema.names}
    topics, partitions = column["topic"].to_pylist(), column["partition"].to_pylist()
    offsets = column["offset"].to_pylist()
    times = pc.cast(column["timestamp"], pa.int64()).to_pylist()
    keys, values = column["key"].to_pylist(), column["value"].to_pylist()
    headers = column["headers"].to_pylist() if column["headers"].null_count < len(batch) else [None] * len(batch)
    for topic, partition, offset, micros, key, value, pairs in zip(
        topics, partitions, offsets, times, keys, values, headers, strict=True
    ):
        listed = tuple((pair["key"], pair["value"]) for pair in pairs) if pairs else ()
        yield Record(topic, partition, offset, micros / _MICROSECONDS, key, value, listed)
