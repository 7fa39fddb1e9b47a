"""Checks and converts what programs hand in.

Values of any kind come in; the one form that the rest of the producer uses goes out, or an `InputError` that names what
is wrong and what is accepted. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.errors import InputError, OttlaError
from ottla.produce.delivery import Delivery, Placement, Refusal, Shipment
from ottla.wire.columns import Columns, compact, from_arrow, take, without_views
from ottla.wire.kernels.encoding import BinaryIn

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_COLUMNS = ("value", "key", "headers", "timestamp", "partition", "topic")
"""The columns that a table may have."""
_RECORD_OVERHEAD = 21
"""The most that lengths, deltas and counts of a record take, for keys and values below 256 MB."""
_HEADER_OVERHEAD = 10
"""The most that the lengths of a header's key and value take."""
_LAST_PARTITION = (1 << 31) - 1
"""Partitions are 32-bit signed numbers."""
_YEAR_10000 = 253_402_300_800
"""In seconds. Larger numbers are most likely milliseconds."""
_LAST_MILLISECOND = _YEAR_10000 * 1000 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def topic(name: object) -> None:
    """Check a topic name. Raises `InputError`."""
    if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise InputError(
            f"{name!r} is not a topic name: use 1 to 249 of the characters a-z A-Z 0-9 . _ -, and not . or .."
        )


def payload(what: str, data: object) -> bytes | None:
    """Convert a key or value to immutable bytes. Raises `InputError`."""
    if data is None or type(data) is bytes:
        return data
    if isinstance(data, str):
        try:
            return data.encode()
        except UnicodeEncodeError as error:
            raise InputError(f"the {what} is text that cannot be encoded as UTF-8: {error.reason}") from error
    if isinstance(data, bytes | bytearray | memoryview):
        return bytes(data)
    raise InputError(f"the {what} is {type(data).__name__}, expected bytes, str or None")


def headers(source: object) -> list[tuple[str, bytes | None]] | None:
    """Convert a mapping or pairs to a list of headers. Raises `InputError`."""
    if source is None:
        return None
    items = source.items() if isinstance(source, Mapping) else source
    pairs: list[tuple[str, bytes | None]] = []
    try:
        for key, value in items:  # type: ignore[attr-defined]
            if not isinstance(key, str):
                raise InputError(f"a header's key is {type(key).__name__}, expected str")
            payload("key of a header", key)
            pairs.append((key, payload(f"header {key}", value)))
    except (TypeError, ValueError) as error:
        if isinstance(error, OttlaError):
            raise
        kind = type(source).__name__
        raise InputError(f"headers is {kind}, expected a mapping or (key, value) pairs: {error}") from error
    return pairs or None


def items(value: object) -> None:
    """Check that this is a list of records. Raises `InputError`."""
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
        kind = type(value).__name__
        raise InputError(f"{kind} is not a list of records: expected values and (key, value) pairs")


def partition(number: object) -> int:
    """Check a partition number; None becomes -1. Raises `InputError`."""
    if number is None:
        return -1
    if not isinstance(number, int | np.integer) or isinstance(number, bool) or not 0 <= number <= _LAST_PARTITION:
        raise InputError(f"partition is {number!r}, expected a whole number from 0 on")
    return int(number)


def milliseconds(when: object) -> int:
    """Convert a time to the nearest millisecond since 1970; None becomes -1. Raises `InputError`."""
    if when is None:
        return -1
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InputError(f"the timestamp {when.isoformat()} has no time zone: use an aware datetime")
        if when >= _EPOCH:
            return min(((when - _EPOCH) // _MICROSECOND + 500) // 1000, _LAST_MILLISECOND)
    number = isinstance(when, int | float | np.integer | np.floating) and not isinstance(when, bool)
    if not number or not 0 <= when < _YEAR_10000:  # type: ignore[operator]
        raise InputError(f"timestamp is {when!r}, expected seconds since 1970 (not milliseconds) or an aware datetime")
    # Rounded, not truncated: 1.001 seconds is 1.00099... as a float.
    return min(round(float(when) * 1000), _LAST_MILLISECOND)  # type: ignore[arg-type]


def record_bytes(value: bytes | None, key: bytes | None, pairs: list[tuple[str, bytes | None]] | None) -> int:
    """The most that a record takes in a batch."""
    size = len(value or b"") + len(key or b"") + _RECORD_OVERHEAD
    for name, content in pairs or ():
        size += len(name.encode()) + len(content or b"") + _HEADER_OVERHEAD
    return size


def diverted(name: str, error: OttlaError) -> Delivery:
    """The delivery of a record that was handed to `on_oversize`: it has failed."""
    shipment = Shipment(name)
    shipment.count = 1
    shipment.placements.append(Placement(Refusal(name, -1, error), range(1), 0))
    shipment.unsettled = 0
    return Delivery(shipment, 0)


def column_names(topic_name: str | None, schema: pa.Schema) -> None:
    """Check that a table has the columns that records are made of, and no others. Raises `InputError`."""
    names = schema.names
    known = f"known are {', '.join(_COLUMNS)}: select or rename columns"
    if "value" not in names:
        raise InputError(f"the table has no column value, only {', '.join(names) or 'none at all'}; {known}")
    unknown = [column for column in names if column not in _COLUMNS]
    if unknown or len(set(names)) != len(names):
        problem = f"the columns {', '.join(unknown)}" if unknown else "a column twice"
        raise InputError(f"the table has {problem}; {known}")
    if topic_name is not None and "topic" in names:
        raise InputError("the table has a column topic and the call names a topic: pass None to use the column")
    if topic_name is None and "topic" not in names:
        raise InputError("neither the call nor a column of the table names the topic")


def by_topic(name: str | None, table: pa.Table) -> Iterator[tuple[str, pa.Table, npt.NDArray[np.int64] | range]]:
    """The rows of a table by topic, with their numbers in it: the topic named, or as its column `topic` says.

    Raises `InputError`.
    """
    column_names(name, table.schema)
    if name is not None:
        yield name, table, range(table.num_rows)
        return
    import pyarrow.compute as pc

    column = table.column("topic")
    if not _is_text(column.type):
        raise InputError(f"column topic has type {column.type}; accepted is text")
    column = without_views(column).cast(pa.string())
    if column.null_count:
        raise InputError(f"column topic has {column.null_count} nulls")
    rows = table.drop_columns(["topic"])
    rows = pa.table({name: without_views(rows.column(name)) for name in rows.column_names})
    topics = pc.unique(column).to_pylist()
    for topic_name in topics:
        topic(topic_name)
    for topic_name in topics:
        chosen = pc.equal(column, topic_name)
        yield topic_name, rows.filter(chosen), np.flatnonzero(chosen.to_numpy())


def columns(rows: pa.Table) -> tuple[Columns, npt.NDArray[np.int32] | None]:
    """The columns of a table, and its explicit partitions. Raises `InputError`."""
    names = rows.schema.names
    others = {name: rows.column(name) for name in ("key", "headers", "timestamp") if name in names}
    parsed = compact(from_arrow(rows.column("value"), **others))
    if len(parsed.times) and parsed.times.max() >= _YEAR_10000 * 1000:
        raise InputError(f"column timestamp has {parsed.times.max()}, after the year 9999: int64 means milliseconds")
    return parsed, _partitions(rows) if "partition" in names else None


def _partitions(rows: pa.Table) -> npt.NDArray[np.int32]:
    """The column `partition`, -1 for null. Raises `InputError` for other types and values."""
    import pyarrow.compute as pc

    column = rows.column("partition")
    if not pa.types.is_integer(column.type) and not pa.types.is_null(column.type):
        raise InputError(f"column partition has type {column.type}; accepted are whole numbers, null for none")
    lowest, highest = pc.min_max(column).as_py().values()
    if lowest is not None and not -1 <= lowest <= highest <= _LAST_PARTITION:
        raise InputError(f"column partition has {lowest} to {highest}; accepted are 0 to {_LAST_PARTITION}")
    return np.asarray(pc.fill_null(column.cast(pa.int64()), -1).to_numpy(), np.int32)


def _is_text(kind: pa.DataType) -> bool:
    """Whether a column holds text, plain or dictionary encoded."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


class Rows(NamedTuple):
    """Checked rows of one topic."""

    topic: str
    columns: Columns
    partitions: npt.NDArray[np.int32] | None
    """Their explicit partitions."""
    numbers: npt.NDArray[np.int64] | range
    """The numbers of these rows in their call, ascending."""
    oversize: tuple[tuple[int, int], ...] = ()
    """Number and size of those that are to be diverted."""

    def index_of(self, number: int) -> int:
        """Which of these rows has this number."""
        numbers = self.numbers
        return numbers.index(number) if isinstance(numbers, range) else int(np.searchsorted(numbers, number))

    def within(self, part: range) -> Rows:
        """The rows whose numbers are in `part`."""
        if isinstance(self.numbers, range):
            start, stop = (
                min(max(0, edge - self.numbers.start), len(self.numbers)) for edge in (part.start, part.stop)
            )
        else:
            start, stop = np.searchsorted(self.numbers, (part.start, part.stop)).tolist()
        if stop - start == self.columns.count:
            return self
        partitions = None if self.partitions is None else self.partitions[start:stop]
        first, end = (bisect_left(self.oversize, edge, key=itemgetter(0)) for edge in (part.start, part.stop))
        oversize = self.oversize[first:end]
        return Rows(self.topic, take(self.columns, start, stop), partitions, self.numbers[start:stop], oversize)


def shifted(numbers: npt.NDArray[np.int64] | range, first: int) -> npt.NDArray[np.int64] | range:
    """The numbers of rows in a call whose batch begins with row `first`."""
    return range(numbers.start + first, numbers.stop + first) if isinstance(numbers, range) else numbers + first


def slices(all_rows: list[Rows], size_bytes: int) -> Iterator[tuple[range, list[Rows]]]:
    """Split rows into runs of about `size_bytes`, by their numbers in the call.

    Yields each run of numbers with the rows of each topic in it, so that a full buffer always stops after the first
    rows of the call.
    """
    all_rows = [rows for rows in all_rows if rows.columns.count]
    if not all_rows:
        return
    stop = max([int(rows.numbers[-1]) for rows in all_rows]) + 1
    total = sum([rows.columns.data_bytes + rows.columns.count * _RECORD_OVERHEAD for rows in all_rows])
    if total <= 1.5 * size_bytes:
        yield range(stop), all_rows
        return
    step = max(1, int(size_bytes / total * stop))
    for start in range(0, stop, step):
        part = range(start, min(start + step, stop))
        yield part, [cut for cut in (rows.within(part) for rows in all_rows) if cut.columns.count]


def row(rows: Columns, index: int) -> tuple[bytes | None, bytes | None]:
    """Key and value of one row."""
    return _cell(rows.key, index), _cell(rows.value, index)


def _cell(column: BinaryIn, number: int) -> bytes | None:
    """One key or value, None if it is null or there is no such column."""
    if not len(column.ends) or (len(column.nulls) and column.nulls[number]):
        return None
    return bytes(column.data[column.ends[number] : column.ends[number + 1]])


def most_bytes(rows: Columns) -> int:
    """An upper bound of the size of a record of these: quick to compute, and mostly small enough."""
    return rows.data_bytes + rows.header_count * _HEADER_OVERHEAD + _RECORD_OVERHEAD


def oversize_rows(rows: Columns, limit: int) -> list[tuple[int, int]]:
    """The rows that are too large for a record, with their sizes."""
    sizes = np.full(rows.count, _RECORD_OVERHEAD, np.int64)
    for column in (rows.key, rows.value):
        if len(column.ends):
            sizes += np.diff(column.ends)
    if len(rows.headers.ends):
        sizes += _header_sizes(rows)
    return [(int(number), int(sizes[number])) for number in np.flatnonzero(sizes > limit)]


def _header_sizes(rows: Columns) -> npt.NDArray[np.int64]:
    """What the headers of each row take in a batch, at most."""
    ends = rows.headers.ends
    entries = np.full(int(ends[-1]), _HEADER_OVERHEAD, np.int64)
    for column in (rows.headers.keys, rows.headers.values):
        if len(column.ends):
            entries += np.diff(column.ends)
    running = np.concatenate(([0], np.cumsum(entries)))
    return np.asarray(running[ends[1:]] - running[ends[:-1]], np.int64)


def without_oversize(rows: Rows) -> Rows:
    """The rows without those that are to be diverted."""
    if not rows.oversize:
        return rows
    from ottla.wire.columns import as_arrow

    columns = rows.columns
    kept = np.flatnonzero(~np.isin(rows.numbers, [number for number, _ in rows.oversize]))
    batch = as_arrow(columns, now_ms=0).take(pa.array(kept))
    others: dict[str, Any] = {"key": batch.column("key"), "headers": batch.column("headers")}
    if len(columns.times):
        others["timestamp"] = batch.column("timestamp")
    partitions = None if rows.partitions is None else rows.partitions[kept]
    return Rows(rows.topic, from_arrow(batch.column("value"), **others), partitions, np.asarray(rows.numbers)[kept])
