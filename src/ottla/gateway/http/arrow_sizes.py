"""What an Arrow stream becomes once it is read: its rows, and its bytes after decompression and with all repetitions.

A body or columns come in, numbers go out, found without decompressing or repeating anything. Pure. A few kilobytes can
say of themselves that they are gigabytes: as compressed buffers, as rows without data, as a value that is named again
and again.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_RECORD_BATCH, _DICTIONARY_BATCH = "record batch", "dictionary"
_HEADER, _DATA = 2, 1
"""Fields of the tables Message and DictionaryBatch."""
_LENGTH, _BUFFERS, _COMPRESSION = 0, 2, 3
"""Fields of the table RecordBatch."""
_BUFFER = struct.Struct("<qq")
_UINT16, _INT32, _UINT32, _INT64 = (struct.Struct(f"<{kind}") for kind in "HiIq")


class Claims(NamedTuple):
    """What the messages of a stream say of themselves."""

    rows: int
    size_bytes: int


def claims_of(body: bytes) -> Claims:
    """Return what all messages of a stream claim. Raises Arrow's errors for one that cannot be read."""
    rows = size_bytes = 0
    messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(body))
    while True:
        try:
            message = messages.read_next_message()  # which checks its tables
        except StopIteration:
            return Claims(rows, size_bytes)
        if message.type not in (_RECORD_BATCH, _DICTIONARY_BATCH):
            continue
        batch = _Table.root(memoryview(message.metadata)).table(_HEADER)
        if message.type == _DICTIONARY_BATCH:
            batch = batch.table(_DATA)
        else:
            rows += batch.number(_LENGTH)
        content = memoryview(message.body) if message.body is not None else memoryview(b"")
        size_bytes += sum(_uncompressed(content, *each, batch.has(_COMPRESSION)) for each in batch.buffers(_BUFFERS))


def repeated_bytes(column: pa.Array) -> int:
    """Return the bytes that the values of a column have if each is written out."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        sizes = _sizes(column.dictionary)
        indices = column.indices.drop_null().to_numpy(zero_copy_only=False)
        return int(sizes[indices].sum()) if len(indices) else 0
    if pa.types.is_map(kind):
        return repeated_bytes(column.keys) + repeated_bytes(column.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return repeated_bytes(column.values)
    if pa.types.is_struct(kind):
        return sum(repeated_bytes(column.field(number)) for number in range(kind.num_fields))
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        return int(_sizes(column).sum())
    return int(column.nbytes)


def _sizes(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the size of each value."""
    kind = values.type
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.int64)
    if pa.types.is_binary_view(kind) or pa.types.is_string_view(kind):
        views = values.buffers()[1]  # each 16 bytes, of which the first four are the size
        numbers = np.frombuffer(views, np.int32, count=4 * (values.offset + len(values)))
        return np.asarray(numbers[4 * values.offset :: 4], np.int64)
    if pa.types.is_fixed_size_binary(kind):
        return np.full(len(values), kind.byte_width, np.int64)
    return np.asarray(pc.fill_null(pc.binary_length(values), 0).to_numpy(zero_copy_only=False), np.int64)


def _uncompressed(content: memoryview, start: int, size: int, is_compressed: bool) -> int:
    """Return the size of a buffer after decompression: it begins with that, or with -1 if it is as it is."""
    if not is_compressed or size < _INT64.size or not 0 <= start <= len(content) - _INT64.size:
        return max(size, 0)
    claimed: int = _INT64.unpack_from(content, start)[0]
    return claimed if claimed >= 0 else size


class _Table:
    """A table of a flatbuffer."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at

    @classmethod
    def root(cls, data: memoryview) -> _Table:
        """Return the table with which a flatbuffer begins."""
        return cls(data, _UINT32.unpack_from(data)[0])

    def has(self, field: int) -> bool:
        """Whether a field is there."""
        return self._place(field) > 0

    def number(self, field: int) -> int:
        """Return a field of 64 bits, 0 if it is missing."""
        at = self._place(field)
        return int(_INT64.unpack_from(self._data, at)[0]) if at else 0

    def table(self, field: int) -> _Table:
        """Return the table in a field that is there."""
        at = self._place(field)
        return _Table(self._data, at + _UINT32.unpack_from(self._data, at)[0])

    def buffers(self, field: int) -> list[tuple[int, int]]:
        """Return a vector of buffers: where each begins, and its size."""
        at = self._place(field)
        if not at:
            return []
        at += _UINT32.unpack_from(self._data, at)[0]
        count = _UINT32.unpack_from(self._data, at)[0]
        return list(_BUFFER.iter_unpack(self._data[at + 4 : at + 4 + count * _BUFFER.size]))

    def _place(self, field: int) -> int:
        """Return where a field is, 0 if it is missing."""
        fields = self._at - _INT32.unpack_from(self._data, self._at)[0]
        entry = 4 + 2 * field
        if entry >= _UINT16.unpack_from(self._data, fields)[0]:
            return 0
        offset = _UINT16.unpack_from(self._data, fields + entry)[0]
        return self._at + offset if offset else 0
