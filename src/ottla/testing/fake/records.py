"""The records inside stored batches, for assertions and for lookups by time.

The decoder of `ottla.wire` does the work. It is imported on first use, so that starting a fake cluster stays cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ottla.wire.batch import Batch

_COLUMNS = ("offset", "key", "value", "headers", "timestamp")


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record in the log. `timestamp` is in seconds since 1970."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp: float


def decode(batches: Iterable[bytes], *, topic: str, partition: int, start: int = 0) -> Iterator[StoredRecord]:
    """Yield the records of stored batches from offset `start`. Raises `CorruptBatch` if they are damaged."""
    from ottla.wire.decode import Decoder

    parsed = [Batch.parse(data) for data in batches]
    for chunk in Decoder(_COLUMNS).decode(parsed, topic=topic, partition=partition, start=start):
        for offset, key, value, headers, microseconds in zip(*_lists(chunk.records), strict=True):
            pairs = tuple((header["key"], header["value"]) for header in headers or ())
            yield StoredRecord(offset, key, value, pairs, microseconds / 1_000_000)


def timestamps(data: bytes) -> list[tuple[int, int]]:
    """Return offset and timestamp in milliseconds of each record of one batch."""
    from ottla.wire.decode import Decoder

    chunks = Decoder(("offset", "timestamp")).decode([Batch.parse(data)])
    return [
        (offset, microseconds // 1000)
        for chunk in chunks
        for offset, microseconds in zip(*_lists(chunk.records), strict=True)
    ]


def _lists(records: Any) -> list[list[Any]]:
    """Return the available columns in the order of `_COLUMNS`; times as integers, because datetimes are slow."""
    columns = [(name, records.column(name)) for name in _COLUMNS if name in records.schema.names]
    return [(column.cast("int64") if name == "timestamp" else column).to_pylist() for name, column in columns]
