"""Records as the reader hands them out, made by hand for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import strategies as st

from ottla.wire.decode import SCHEMA

Header = tuple[str, bytes | None]


@dataclass(frozen=True)
class Row:
    """One record; the timestamp in milliseconds."""

    value: bytes | None = b""
    key: bytes | None = None
    headers: Sequence[Header] = ()
    timestamp: int = 1_767_225_600_250
    timestamp_type: int = 0
    offset: int = 0


def batch(*rows: Row, topic: str = "clicks", partition: int = 3) -> pa.RecordBatch:
    """In one partition."""
    columns = {
        "key": [row.key for row in rows],
        "value": [row.value for row in rows],
        "topic": [topic for _ in rows],
        "partition": [partition for _ in rows],
        "offset": [row.offset for row in rows],
        "timestamp": pa.array([row.timestamp * 1000 for row in rows], pa.int64()).cast(SCHEMA.field("timestamp").type),
        "timestampType": [row.timestamp_type for row in rows],
        "headers": [[{"key": key, "value": value} for key, value in row.headers] or None for row in rows],
    }
    arrays = [pa.array(columns[field.name], field.type) for field in SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def values(*given: bytes | None) -> pa.RecordBatch:
    """Records with these values at offsets 0, 1, ..."""
    return batch(*(Row(value, offset=offset) for offset, value in enumerate(given)))


_TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
_PAYLOAD = st.none() | st.binary(max_size=12) | _TEXT.map(str.encode)
_YEAR_70000 = 1 << 51
"""Milliseconds. Beyond the year 9999, which is where ISO 8601 ends, times are numbers in JSON, exact up to here."""

rows = st.builds(
    Row,
    value=_PAYLOAD,
    key=_PAYLOAD,
    headers=st.lists(st.tuples(_TEXT, _PAYLOAD), max_size=3),
    timestamp=st.integers(0, 4_102_444_800_000) | st.integers(-1, _YEAR_70000),
    timestamp_type=st.sampled_from([0, 1]),
    offset=st.integers(0, (1 << 63) - 2),
)
