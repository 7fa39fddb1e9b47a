"""Turns an Arrow batch into `Record` values, for programs that process records one by one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa

from ottla.model import Record

_MICROSECONDS = 1e6
Pairs = tuple[tuple[str, bytes | None], ...]


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    """Yield the records of a batch that has all columns and is of one partition."""
    if not len(batch):
        return iter(())
    # Everything per record runs in C.
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


def _pairs(headers: list[dict[str, Any]] | None) -> Pairs:
    return tuple((header["key"], header["value"]) for header in headers) if headers else ()
