"""Measures the content of an archive's Parquet files: row counts, offsets, fingerprints.

Paths come in, small values go out. A damaged file raises OSError or an Arrow error, or crashes the process: where files
may be damaged, `inspector.py` calls these functions in a process of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ottla.model import Fingerprint, OffsetRange, TopicPartition
from ottla.wire.columns import from_arrow
from ottla.wire.decode import SCHEMA
from ottla.wire.encode import fingerprint_of

_ROWS = 65_536
_REPLACED = "\ufffd"
"""The replacement character: columns have it in a header's name where that was not UTF-8."""


@dataclass(frozen=True, slots=True)
class Footer:
    """The content of a file's footer."""

    rows: int
    offsets: tuple[int, int] | None
    """The smallest and the largest offset; None without statistics."""


@dataclass(frozen=True, slots=True)
class Content:
    """The records of a range that are in some files."""

    fingerprint: Fingerprint
    twice: int = 0
    """Offsets that occur more than once."""
    has_replaced_names: bool = False
    """Whether some header names were probably not UTF-8, so that the files have other bytes than the log."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file that another tool wrote, with the values of its folders."""

    path: str
    values: Mapping[str, str | None]


def fingerprint(records: pa.RecordBatch | pa.Table) -> Fingerprint:
    """Return the fingerprint of records with the columns key, value and headers."""
    if not records.num_rows:
        return Fingerprint()
    columns = from_arrow(
        records.column("value"), key=records.column("key"), headers=records.column("headers"), timestamp=None
    )
    return fingerprint_of(columns)


def has_replaced_names(records: pa.RecordBatch) -> bool:
    """Return whether a header's name may not have been UTF-8, which columns cannot hold."""
    names = pc.struct_field(records.column("headers").flatten(), "key")
    return bool(len(names)) and bool(pc.any(pc.match_substring(names, _REPLACED)).as_py())


def footer(path: str) -> Footer:
    """Read the footer of a file."""
    metadata = pq.read_metadata(path)
    index = metadata.schema.to_arrow_schema().get_field_index("offset")
    statistics = [metadata.row_group(number).column(index).statistics for number in range(metadata.num_row_groups)]
    if not statistics or any(column is None or not column.has_min_max for column in statistics):
        return Footer(metadata.num_rows, None)
    return Footer(
        metadata.num_rows, (min(column.min for column in statistics), max(column.max for column in statistics))
    )


def content(paths: Sequence[str]) -> Content:
    """Read the files of one range and measure them together."""
    tally = _Tally()
    for path in paths:
        with pq.ParquetFile(path) as opened:
            for records in opened.iter_batches(_ROWS, columns=["key", "value", "headers", "offset"]):
                tally.add(records)
    return tally.content()


def by_range(parts: Iterable[Part], ranges: Sequence[OffsetRange]) -> list[Content]:
    """Measure each range in files that other tools wrote, for example by compaction.

    Any of these files may have any of the records.
    """
    tallies = [_Tally() for _ in ranges]
    indexes = _range_indexes(ranges)
    for part in parts:
        with pq.ParquetFile(part.path) as opened:
            present = set(opened.schema_arrow.names)
            names = [name for name in ("key", "value", "headers", "offset", "topic", "partition") if name in present]
            for records in opened.iter_batches(_ROWS, columns=names):
                typed = _typed(records)
                for tp, index in indexes.items():
                    own = _of(typed, tp, part.values)
                    for number, in_range in index.divided(own) if own.num_rows else ():
                        tallies[number].add(in_range)
    return [tally.content() for tally in tallies]


@dataclass(frozen=True, slots=True)
class _RangeIndex:
    """The ranges of one partition, sorted by offset, with their places in the list that was asked for."""

    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]

    def divided(self, records: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Divide records by range. Those outside of all ranges are left out."""
        offsets = records.column("offset").to_numpy()
        places = np.searchsorted(self.starts, offsets, side="right") - 1
        places[(places >= 0) & (offsets >= self.stops[places])] = -1
        for place in np.unique(places[places >= 0]):
            yield int(self.numbers[place]), records.filter(pa.array(places == place))


def _range_indexes(ranges: Sequence[OffsetRange]) -> dict[TopicPartition, _RangeIndex]:
    by_partition: dict[TopicPartition, list[tuple[int, int, int]]] = {}
    for number, span in enumerate(ranges):
        by_partition.setdefault(span.topic_partition, []).append((span.start, span.stop, number))
    return {tp: _RangeIndex(*np.array(sorted(rows), np.int64).T) for tp, rows in by_partition.items()}


def _typed(records: pa.RecordBatch) -> pa.RecordBatch:
    """Cast to the types of the archive: other tools write equivalent ones."""
    return pa.record_batch({name: records.column(name).cast(SCHEMA.field(name).type) for name in records.schema.names})


def _of(records: pa.RecordBatch, tp: TopicPartition, values: Mapping[str, str | None]) -> pa.RecordBatch:
    """Return the records of one partition, by their columns or, where those are folders, by the folders' values."""
    for name, value in (("topic", tp.topic), ("partition", tp.partition)):
        if name in records.schema.names:
            records = records.filter(pc.equal(records.column(name), pa.scalar(value, records.schema.field(name).type)))
        elif values.get(name) != str(value):
            return records.slice(0, 0)
    return records


class _Tally:
    """Adds up a `Content`."""

    def __init__(self) -> None:
        self._fingerprint = Fingerprint()
        self._offsets: list[npt.NDArray[np.int64]] = []
        self._has_replaced_names = False

    def add(self, records: pa.RecordBatch) -> None:
        if records.num_rows:
            self._fingerprint += fingerprint(records)
            self._offsets.append(records.column("offset").to_numpy())
            self._has_replaced_names |= has_replaced_names(records)

    def content(self) -> Content:
        offsets = np.concatenate(self._offsets) if self._offsets else np.empty(0, np.int64)
        return Content(self._fingerprint, len(offsets) - len(np.unique(offsets)), self._has_replaced_names)
