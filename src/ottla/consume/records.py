"""Records one by one, for programs that want them so: an Arrow batch comes in, `Record` values go out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa

from ottla.model import Record

_MICROSECONDS = 1e6
Pairs = tuple[tuple[str, bytes | None], ...]


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    """The records of a batch that has all columns. All of them are of one partition."""
    if not len(batch):
        return iter(())
    # All that happens for each record happens in C.
    rows = zip(
        repeat(batch.column("topic")[0].as_py()),
        repeat(batch.column("partition")[0].as_py()),
        batch.column("offset").to_numpy().tolist(),
        (batch.column("timestamp").view(pa.int64()).to_numpy() / _MICROSECONDS).tolist(),
        _contents(batch.column("key")),
        _contents(batch.column("value")),
        _headers(batch.column("headers")),
        strict=False,
    )
    return map(tuple.__new__, repeat(Record), rows)


def _contents(column: pa.Array) -> Iterable[bytes | None]:
    return repeat(None) if column.null_count == len(column) else column.to_pylist()


def _headers(column: pa.Array) -> Iterable[Pairs]:
    return repeat(()) if column.null_count == len(column) else map(_pairs, column.to_pylist())


def _pairs(listed: list[dict[str, Any]] | None) -> Pairs:
    return tuple((pair["key"], pair["value"]) for pair in listed) if listed else ()
