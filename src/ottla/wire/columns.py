"""What a program wants to send, as columns that the encoder can read: from Arrow arrays, or lists of bytes and pairs.

Comes in: Arrow arrays of any binary or text type (large, view, fixed-size and dictionary encoded included), headers as
lists of key and value, timestamps; or a Python list. Goes out: `Columns`. Anything else raises an `InputError` that
names the column, its type and what is accepted. Data must not be copied where it can be shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.errors import InputError
from ottla.wire.kernels import loading
from ottla.wire.kernels.encoding import BinaryIn, HeadersIn
from ottla.wire.kernels.gathering import UNFIT, gather, measure

Payload = bytes | bytearray | memoryview | str | None
Item = Payload | tuple[Payload, Payload]

_NO_ENDS = np.zeros(0, np.int64)
_NO_BYTES = np.zeros(0, np.uint8)
_NO_BYTES.flags.writeable = _NO_ENDS.flags.writeable = False
_ALL_NULL = BinaryIn(_NO_ENDS, _NO_BYTES, _NO_BYTES)
NO_KEYS = _ALL_NULL
_NO_HEADERS = HeadersIn(_NO_ENDS, _NO_BYTES, _ALL_NULL, _ALL_NULL)
_CAN_READ_OBJECTS = loading.is_possible()
_BYTES, _NONE = id(bytes), id(None)
_MUCH_LARGER = 4
"""Rows are copied if the memory behind them is this many times as large, and more than `_SMALL_BYTES`."""
_SMALL_BYTES = 1 << 16


class Columns(NamedTuple):
    """Rows to encode. `times` has a millisecond timestamp for each row, or is empty for "now"."""

    count: int  # type: ignore[assignment]  # hides tuple.count, which columns do not need
    key: BinaryIn
    value: BinaryIn
    headers: HeadersIn
    times: npt.NDArray[np.int64]
    data_bytes: int
    """The total size of all keys, values and headers."""
    header_count: int


def from_arrow(
    value: pa.Array | pa.ChunkedArray,
    *,
    key: pa.Array | pa.ChunkedArray | None = None,
    headers: pa.Array | pa.ChunkedArray | None = None,
    timestamp: pa.Array | pa.ChunkedArray | None = None,
) -> Columns:
    """Build columns from Arrow arrays of the same length. A missing one is null in every row.

    Raises `InputError` if a column has another length, an unsupported type or damaged content.
    """
    for name, column in (("value", value), ("key", key), ("headers", headers), ("timestamp", timestamp)):
        if column is not None and not isinstance(column, pa.Array | pa.ChunkedArray):
            kind = type(column).__name__
            raise InputError(f"column {name} is a {kind}, expected a pyarrow Array or ChunkedArray")
    count = len(value)
    for name, column in (("key", key), ("headers", headers), ("timestamp", timestamp)):
        if column is not None and len(column) != count:
            raise InputError(f"column {name} has {len(column)} rows, column value has {count}")
    keys = _ALL_NULL if key is None else _binary("key", _whole("key", key))
    values = _binary("value", _whole("value", value))
    listed = _NO_HEADERS if headers is None else _headers(_whole("headers", headers))
    times = _NO_ENDS if timestamp is None else _milliseconds(_whole("timestamp", timestamp))
    return _columns(keys, values, listed, times, count=count)


def from_list(items: Iterable[Item]) -> Columns:
    """Build columns from a list that mixes values and `(key, value)` pairs. Text is sent as UTF-8.

    Raises `InputError` for an item that is neither.
    """
    if isinstance(items, str):
        raise InputError("a string is not a list of records: put it into a list")
    listed = items if type(items) is list else list(items)
    kinds = set(map(type, listed))
    if not any(issubclass(kind, tuple) for kind in kinds):
        return _columns(_ALL_NULL, _payloads("value", listed), count=len(listed))
    if len(kinds) > 1 or set(map(len, listed)) != {2}:
        listed = [_pair(item, i) for i, item in enumerate(listed)]
    keys, values = list(map(itemgetter(0), listed)), list(map(itemgetter(1), listed))
    return _columns(_payloads("key", keys), _payloads("value", values), count=len(listed))


def from_bytes(
    values: list[bytes | None],
    *,
    keys: list[bytes | None] | None = None,
    headers: pa.Array | None = None,
    times: npt.NDArray[np.int64] = _NO_ENDS,
) -> Columns:
    """Build columns from values and keys known to be bytes or None: what a producer collects from single sends."""
    return _columns(
        _ALL_NULL if keys is None else _payloads("key", keys),
        _payloads("value", values),
        _NO_HEADERS if headers is None else _headers(headers),
        times if not times.flags.writeable else _readonly(times),
        count=len(values),
    )


def _columns(
    key: BinaryIn,
    value: BinaryIn,
    headers: HeadersIn = _NO_HEADERS,
    times: npt.NDArray[np.int64] = _NO_ENDS,
    *,
    count: int,
) -> Columns:
    """Build `Columns` with the sizes that encoders use to estimate memory."""
    return Columns(
        count=count,
        key=key,
        value=value,
        headers=headers,
        times=times,
        data_bytes=sum(map(_span, (key, value, headers.keys, headers.values))),
        header_count=_span_of(headers.ends),
    )


def as_arrow(columns: Columns, *, now_ms: int) -> pa.RecordBatch:
    """Return the rows as Arrow again: key, value, headers and timestamp. No copy; null where there is nothing."""
    count = columns.count
    times = columns.times if len(columns.times) else np.full(count, now_ms, np.int64)
    return pa.record_batch(
        {
            "key": _array(columns.key, count),
            "value": _array(columns.value, count),
            "headers": _listed(columns.headers, count),
            "timestamp": pa.array(times).view(pa.timestamp("ms", tz="UTC")),
        }
    )


def without_views(column: Any) -> Any:
    """Cast an Arrow array so that rows can be selected from it: Arrow cannot select from views, which Polars uses."""
    kind = _without_views(column.type)
    return column if kind == column.type else column.cast(kind)


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Return the type with every view type in it, at any depth, replaced by its large counterpart."""
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_dictionary(kind):
        return pa.dictionary(kind.index_type, _without_views(kind.value_type), kind.ordered)
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), _without_views(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return make(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    return kind


def take(columns: Columns, start: int, stop: int) -> Columns:
    """Return the rows `[start, stop)`, without a copy."""
    key, value = _cut(columns.key, start, stop), _cut(columns.value, start, stop)
    headers = columns.headers
    if len(headers.ends):
        nulls = headers.nulls[start:stop] if len(headers.nulls) else headers.nulls
        headers = headers._replace(ends=headers.ends[start : stop + 1], nulls=nulls)
    entries = _span_of(headers.ends)
    # Keys and values of a slice are still those of the whole column, so their size is estimated by the number of
    # entries.
    fraction = entries / columns.header_count if columns.header_count else 0.0
    content = _span(headers.keys) + _span(headers.values)
    return Columns(
        count=stop - start,
        key=key,
        value=value,
        headers=headers,
        times=columns.times[start:stop] if len(columns.times) else columns.times,
        data_bytes=_span(key) + _span(value) + int(content * fraction),
        header_count=entries,
    )


def compact(columns: Columns) -> Columns:
    """Return rows that keep much more memory than their own as a copy: a small slice of a large table, for example."""
    headers = columns.headers
    parts = (columns.key, columns.value, headers.keys, headers.values)
    if sum(len(part.data) for part in parts) <= _MUCH_LARGER * columns.data_bytes + _SMALL_BYTES:
        return columns
    return columns._replace(
        key=_copied(columns.key),
        value=_copied(columns.value),
        headers=headers._replace(keys=_copied(headers.keys), values=_copied(headers.values)),
        times=_readonly(columns.times.copy()),
    )


def _copied(column: BinaryIn) -> BinaryIn:
    """Return a column with data of its own."""
    if not len(column.ends):
        return column
    start, stop = int(column.ends[0]), int(column.ends[-1])
    return column._replace(ends=_readonly(column.ends - start), data=_readonly(column.data[start:stop].copy()))


def _cut(column: BinaryIn, start: int, stop: int) -> BinaryIn:
    """Return the rows of one column. `ends` are absolute positions, so the data is shared."""
    if not len(column.ends):
        return column
    nulls = column.nulls[start:stop] if len(column.nulls) else column.nulls
    return column._replace(ends=column.ends[start : stop + 1], nulls=nulls)


def _array(column: BinaryIn, count: int) -> pa.Array:
    """Return a column as an Arrow array. Empty `ends` stand for a column of nulls."""
    if not len(column.ends):
        return pa.nulls(count, pa.large_binary())
    buffers = [_valid(column.nulls), pa.py_buffer(column.ends), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.large_binary(), count, buffers)


def _listed(headers: HeadersIn, count: int) -> pa.Array:
    """Return the headers as an Arrow list of structs."""
    kind = pa.large_list(pa.struct([("key", pa.large_binary()), ("value", pa.large_binary())]))
    if not len(headers.ends):
        return pa.nulls(count, kind)
    entries = int(headers.ends[-1])
    keys, values = _array(headers.keys, entries), _array(headers.values, entries)
    items = pa.StructArray.from_arrays([keys, values], names=["key", "value"])
    return pa.Array.from_buffers(kind, count, [_valid(headers.nulls), pa.py_buffer(headers.ends)], children=[items])


def _valid(nulls: npt.NDArray[np.uint8]) -> pa.Buffer | None:
    """Return Arrow's validity bitmap for a byte per row; None if there are no nulls."""
    return pa.py_buffer(np.packbits(nulls == 0, bitorder="little")) if len(nulls) else None


def _payloads(name: str, payloads: list[Any]) -> BinaryIn:
    """Return a column of a Python list: by the kernel if all items are bytes or None, else by Arrow."""
    gathered = _gathered(payloads) if _CAN_READ_OBJECTS else None
    return _binary(name, _from_payloads(name, payloads)) if gathered is None else gathered


def _gathered(payloads: list[Any]) -> BinaryIn | None:
    """Copy bytes and None without calling into each object. None if there is anything else."""
    ends, nulls = np.empty(len(payloads) + 1, np.int64), np.empty(len(payloads), np.uint8)
    missing = measure(payloads, _BYTES, _NONE, ends, nulls)
    if missing == UNFIT:
        return None
    # Arrow's pool keeps freed pages; fresh pages from the system would cost more than the copy.
    data = np.frombuffer(pa.allocate_buffer(int(ends[-1])), np.uint8)
    if gather(payloads, _NONE, ends, data) == UNFIT:
        return None
    data.flags.writeable = ends.flags.writeable = nulls.flags.writeable = False
    return BinaryIn(ends, data, nulls if missing else _NO_BYTES)


def _pair(item: Item, index: int) -> tuple[Payload, Payload]:
    """Return an item as key and value. A plain value has no key."""
    if not isinstance(item, tuple):
        return None, item
    if len(item) != 2:
        raise InputError(f"item {index} is a tuple of {len(item)}; a record is a value or a (key, value) pair")
    return item


def _from_payloads(name: str, payloads: Sequence[Any]) -> pa.Array:
    """Convert with Arrow, which accepts all bytes-like types and str. Names the item that it rejects."""
    try:
        return pa.array(payloads, pa.large_binary())
    except (TypeError, ValueError) as error:  # Arrow's own errors are subclasses of these
        for i, payload in enumerate(payloads):
            if not isinstance(payload, bytes | bytearray | memoryview | str | None):
                kind = type(payload).__name__
                raise InputError(f"item {i}: {name} is {kind}, expected bytes, str or None") from error
        raise InputError(f"column {name}: {error}") from error


def _whole(name: str, column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return a chunked array as one array."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type):  # Arrow cannot join dictionaries of views either
        column = without_views(column)
    try:
        return column.combine_chunks()
    except pa.ArrowInvalid as error:
        raise _too_large(name) from error


def _too_large(name: str) -> InputError:
    """The error for data that Arrow's 32-bit offsets cannot hold."""
    return InputError(f"column {name} is larger than 2 GiB: cast it to a large type, or send it in slices")


def _binary(name: str, array: pa.Array) -> BinaryIn:
    """Return an Arrow array as the arrays that kernels read. Casts only types without offsets."""
    kind = array.type
    if pa.types.is_null(kind):
        return _ALL_NULL
    if pa.types.is_dictionary(kind):
        try:
            # Arrow cannot look up views, which Polars has in its categories.
            return _binary(name, without_views(array).dictionary_decode())
        except pa.ArrowIndexError as error:
            raise InputError(f"column {name} is damaged: {error}") from error
        except pa.ArrowInvalid as error:
            raise _too_large(name) from error
    # Views have no contiguous data, and fixed-size binaries have no offsets.
    if pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
        array = array.cast(pa.large_binary())
    elif pa.types.is_string_view(kind):
        array = array.cast(pa.large_string())
    elif not _has_ends(kind):
        raise InputError(
            f"column {name} has type {kind}; accepted are binary and string, also large, view, "
            "fixed-size and dictionary encoded"
        )
    # Kernels take 64-bit offsets only: one compiled version instead of two.
    wide = pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type)
    _, buffer, data = array.buffers()
    ends, content = _ends(buffer, array, np.dtype(np.int64 if wide else np.int32)), _bytes(data)
    _check_ends(name, ends, len(content))
    return BinaryIn(ends, content, _nulls(array))


def _has_ends(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind) or types.is_string(kind) or types.is_large_binary(kind) or types.is_large_string(kind)
    )


def _ends(buffer: pa.Buffer | None, array: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[np.int64]:
    """Return the offsets of an array as 64-bit numbers. A slice has its own part of them."""
    if buffer is None or buffer.size == 0:
        return _readonly(np.zeros(len(array) + 1, np.int64))
    stored = np.frombuffer(buffer, dtype, count=len(array) + 1, offset=array.offset * dtype.itemsize)
    return _readonly(stored.astype(np.int64, copy=False))


def _check_ends(name: str, ends: npt.NDArray[np.int64], size: int) -> None:
    """Raise if the offsets are invalid: the kernels do not check them, and Arrow checks them only on request."""
    if len(ends) and (ends[0] < 0 or ends[-1] > size or not bool((ends[1:] >= ends[:-1]).all())):
        raise InputError(f"column {name} is damaged: its offsets lead outside its {size} bytes of data, or backwards")


def _bytes(buffer: pa.Buffer | None) -> npt.NDArray[np.uint8]:
    return _NO_BYTES if buffer is None or buffer.size == 0 else _readonly(np.frombuffer(buffer, np.uint8))


def _nulls(array: pa.Array) -> npt.NDArray[np.uint8]:
    """Return a byte per row, 1 for null; empty if there are no nulls."""
    if array.null_count == 0:
        return _NO_BYTES
    return _readonly(array.is_null().to_numpy(zero_copy_only=False).view(np.uint8))


def _readonly(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view: kernels are compiled once, for read-only input."""
    view = array.view()
    view.flags.writeable = False
    return view


def _headers(array: pa.Array) -> HeadersIn:
    """Return a list or map column as the arrays that kernels read. Entry positions start at 0."""
    kind = array.type
    if pa.types.is_null(kind):
        return _NO_HEADERS
    keys, values = _entries(array)
    ends = _ends(array.buffers()[1], array, np.dtype(np.int64 if pa.types.is_large_list(kind) else np.int32))
    _check_ends("headers", ends, len(keys))
    first, length = int(ends[0]), _span_of(ends)
    # A slice has only its own entries: the arrays below it are those of the whole column.
    keys, values = keys.slice(first, length), values.slice(first, length)
    if keys.null_count:
        raise InputError("column headers has a null key or a null entry; only the value of an entry may be null")
    ends = ends if first == 0 else _readonly(ends - first)
    return HeadersIn(ends, _nulls(array), _binary("headers.key", keys), _binary("headers.value", values))


def _entries(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return keys and values of all entries. The key of a null entry is null."""
    kind = array.type
    if pa.types.is_map(kind):
        return array.keys, array.items
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = array.values
        # -1 for a field that is missing or appears twice
        if pa.types.is_struct(items.type) and min(map(items.type.get_field_index, ("key", "value"))) >= 0:
            import pyarrow.compute as pc

            return pc.struct_field(items, "key"), pc.struct_field(items, "value")
    raise InputError(f"column headers has type {kind}; accepted is list<struct<key, value>> or map<key, value>")


def _milliseconds(array: pa.Array) -> npt.NDArray[np.int64]:
    """Return timestamps in milliseconds since 1970, the unit of the protocol."""
    kind = array.type
    if array.null_count:
        raise InputError(f"column timestamp has {array.null_count} nulls; leave the column out for the time of sending")
    if pa.types.is_timestamp(kind):
        array = _cast_to_milliseconds(array).view(pa.int64())
    elif not pa.types.is_int64(kind):
        raise InputError(f"column timestamp has type {kind}; accepted are timestamp and int64 (milliseconds)")
    times = _readonly(array.to_numpy())
    if len(times) and times.min() < 0:
        raise InputError(f"column timestamp has {times.min()} ms, before 1970: Kafka refuses such a record")
    return times


def _cast_to_milliseconds(array: pa.Array) -> pa.Array:
    kind = array.type
    try:
        # Finer units are truncated; coarser ones must not overflow.
        return array.cast(pa.timestamp("ms", tz=kind.tz), safe=kind.unit == "s")
    except pa.ArrowInvalid as error:
        raise InputError(f"column timestamp: {error}") from error


def _span(column: BinaryIn) -> int:
    """Return the number of bytes that the rows of a column take."""
    return _span_of(column.ends)


def _span_of(ends: npt.NDArray[np.int64]) -> int:
    return int(ends[-1] - ends[0]) if len(ends) else 0
