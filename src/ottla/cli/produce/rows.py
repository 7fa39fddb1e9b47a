"""Turns blocks of lines into tables for a producer, with the line number of every row.

A `Block` becomes `Rows` for each topic, and a `BadLine` for each invalid line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import time
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ottla.cli.produce.lines import Block
from ottla.cli.values import jsonl
from ottla.errors import InputError
from ottla.produce import records as checks

Numbers = range | npt.NDArray[np.int64]
Header = tuple[str, bytes | None]
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.large_binary())]))


class BadLine(NamedTuple):
    """An invalid line."""

    source: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Records of one topic: row `i` of the table is line `numbers[i]` of the source."""

    source: str
    topic: str
    table: pa.Table
    numbers: Numbers

    @property
    def size_bytes(self) -> int:
        """The size of keys and values."""
        columns = (self.table.column(name) for name in ("key", "value") if name in self.table.schema.names)
        return sum(pc.sum(pc.binary_length(column)).as_py() or 0 for column in columns)


class Format(Protocol):
    """How lines become records."""

    @property
    def longest_bytes(self) -> int:
        """The longest line that can be a record."""

    def rows(self, block: Block) -> Iterator[Rows | BadLine]:
        """Yield the records of a block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainLines:
    """Each line is a value, with a key before the separator if there is one."""

    topic: str
    max_record_bytes: int
    separator: bytes | None = None
    key: bytes | None = None
    null: bytes | None = None
    """The value that stands for none."""
    strips_cr: bool = False
    headers: Sequence[Header] = ()
    partition: int | None = None

    @property
    def longest_bytes(self) -> int:
        """A record and what is around it."""
        return self.max_record_bytes + len(self.separator or b"") + 1

    def rows(self, block: Block) -> Iterator[Rows]:
        """All lines of a block in one table."""
        keys, values = self._split(_values(block.data, block.stops, strips_cr=self.strips_cr))
        if self.null is not None:
            is_null = pc.equal(values, pa.scalar(self.null, pa.large_binary()))
            values = pc.if_else(is_null, pa.scalar(None, pa.large_binary()), values)
        count = len(values)
        columns: dict[str, pa.Array] = {"value": values}
        if keys is not None:
            columns["key"] = keys
        if self.headers:
            columns["headers"] = _repeated(self.headers, count)
        if self.partition is not None:
            columns["partition"] = pa.array(np.full(count, self.partition, np.int32))
        yield Rows(block.source, self.topic, pa.table(columns), block.numbers)

    def _split(self, lines: pa.Array) -> tuple[pa.Array | None, pa.Array]:
        if self.key is not None:
            return pa.repeat(pa.scalar(self.key, pa.large_binary()), len(lines)), lines
        if self.separator is None:
            return None, lines
        pieces = pc.split_pattern(lines, self.separator, max_splits=1)
        ends = pieces.offsets.to_numpy()
        first, last = ends[:-1], ends[1:] - 1
        return pieces.values.take(pa.array(first, mask=first == last)), pieces.values.take(pa.array(last))


def _values(data: bytes, stops: npt.NDArray[np.int64], *, strips_cr: bool) -> pa.Array:
    """The lines without their ends, as one array over one piece of memory."""
    if strips_cr:
        data = data.replace(b"\r\n", b"\n")
        stops = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    ends = np.zeros(len(stops) + 1, np.int64)
    np.subtract(stops, np.arange(len(stops)), out=ends[1:])
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data.replace(b"\n", b""))]
    return pa.Array.from_buffers(pa.large_binary(), len(stops), buffers)


def _repeated(headers: Sequence[Header], count: int) -> pa.Array:
    row = pa.array([[{"key": key, "value": value} for key, value in headers]], _HEADERS)
    return row.take(pa.array(np.zeros(count, np.int32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLines:
    """Each line is an object (see `jsonl`). Empty lines are skipped."""

    topic: str | None
    """For lines that name none; None when each must."""
    max_record_bytes: int
    headers: Sequence[Header] = ()
    partition: int | None = None

    @property
    def longest_bytes(self) -> int:
        """A record in which each byte is an escape, and the JSON around it."""
        return 6 * self.max_record_bytes + 1024

    def rows(self, block: Block) -> Iterator[Rows | BadLine]:
        """Yield invalid lines, then the records of each topic."""
        topics: dict[str, _Gathered] = {}
        for number, line in zip(block.numbers, block.data.split(b"\n"), strict=False):
            if not line or line.isspace():
                continue
            try:
                self._gather(topics, number, jsonl.parse(line))
            except InputError as error:
                yield BadLine(block.source, number, str(error))
        for topic, gathered in topics.items():
            yield Rows(block.source, topic, gathered.table(), np.array(gathered.numbers, np.int64))

    def _gather(self, topics: dict[str, _Gathered], number: int, record: jsonl.JsonRecord) -> None:
        topic = record.topic if record.topic is not None else self.topic
        if topic is None:
            raise InputError("no topic in the line, nor on the command line")
        gathered = topics.get(topic)
        if gathered is None:
            checks.topic(topic)
            gathered = topics[topic] = _Gathered()
        headers = [*jsonl.headers(record), *self.headers]
        partition = record.partition if record.partition is not None else self.partition
        gathered.add(number, record, headers, jsonl.milliseconds(record), partition)


class _Gathered:
    """Columns that grow record by record."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._keys: list[bytes | None] = []
        self._values: list[bytes | None] = []
        self._headers: list[Any] = []
        self._times: list[int] = []
        self._partitions: list[int | None] = []
        self._now = int(time() * 1000)

    def add(
        self, number: int, record: jsonl.JsonRecord, headers: list[Header], when: int | None, partition: int | None
    ) -> None:
        """Add a row."""
        key, value = jsonl.payload(record.key), jsonl.payload(record.value)
        self.numbers.append(number)
        self._keys.append(key)
        self._values.append(value)
        self._headers.append([{"key": name, "value": content} for name, content in headers] or None)
        self._times.append(self._now if when is None else when)
        self._partitions.append(partition)

    def table(self) -> pa.Table:
        """Return all rows."""
        columns = {
            "key": pa.array(self._keys, pa.large_binary()),
            "value": pa.array(self._values, pa.large_binary()),
            "timestamp": pa.array(self._times, pa.int64()),
            "partition": pa.array(self._partitions, pa.int32()),
        }
        if any(self._headers):
            columns["headers"] = pa.array(self._headers, _HEADERS)
        return pa.table(columns)
