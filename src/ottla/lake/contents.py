"""What is in Parquet files of an archive: numbers of rows, offsets, fingerprints.

Paths come in, small values go out. Damage raises OSError or an error of Arrow, or ends the process: where a file may be
damaged, `inspecting` calls these in a process of its own.
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
"""What stands in a header's name where it was not UTF-8."""


@dataclass(frozen=True, slots=True)
class Footer:
    """What the footer of a file says."""

    rows: int
    offsets: tuple[int, int] | None
    """The smallest and the largest one, if it has statistics."""


@dataclass(frozen=True, slots=True)
class Content:
    """What records of a range are in some files."""

    fingerprint: Fingerprint
    twice: int = 0
    """Offsets that are there more than once."""
    has_replaced_names: bool = False
    """Whether names of headers were not UTF-8, as far as can be told: they are other bytes then."""


@dataclass(frozen=True, slots=True)
class Part:
    """A file that others wrote, with the values of its folders."""

    path: str
    values: Mapping[str, str | None]


def fingerprint(records: pa.RecordBatch | pa.Table) -> Fingerprint:
    """That of the records in columns key, value and headers."""
    if not records.num_rows:
        return Fingerprint()
    columns = from_arrow(
        records.column("value"), key=records.column("key"), headers=records.column("headers"), timestamp=None
    )
    return fingerprint_of(columns)


def has_replaced_names(records: pa.RecordBatch) -> bool:
    """Whether a header's name may have been something else than UTF-8, which columns cannot hold."""
    names = pc.struct_field(records.column("headers").flatten(), "key")
    return bool(len(names)) and bool(pc.any(pc.match_substring(names, _REPLACED)).as_py())


def footer(path: str) -> Footer:
    """What its footer says of the file."""
    found = pq.read_metadata(path)
    at = found.schema.to_arrow_schema().get_field_index("offset")
    groups = [found.row_group(number).column(at).statistics for number in range(found.num_row_groups)]
    if not groups or any(one is None or not one.has_min_max for one in groups):
        return Footer(found.num_rows, None)
    return Footer(found.num_rows, (min(one.min for one in groups), max(one.max for one in groups)))


def content(paths: Sequence[str]) -> Content:
    """What the files of one range have together."""
    tally = _Tally()
    for path in paths:
        with pq.ParquetFile(path) as opened:
            for records in opened.iter_batches(_ROWS, columns=["key", "value", "headers", "offset"]):
                tally.add(records)
    return tally.content()


def by_range(parts: Iterable[Part], ranges: Sequence[OffsetRange]) -> list[Content]:
    """What of each range is in files that others wrote, as a table's compaction does: any records in any of them."""
    tallies = [_Tally() for _ in ranges]
    shelves = _shelves(ranges)
    for part in parts:
        with pq.ParquetFile(part.path) as opened:
            there = set(opened.schema_arrow.names)
            names = [name for name in ("key", "value", "headers", "offset", "topic", "partition") if name in there]
            for records in opened.iter_batches(_ROWS, columns=names):
                typed = _typed(records)
                for at, shelf in shelves.items():
                    mine = _of(typed, at, part.values)
                    for number, found in shelf.divided(mine) if mine.num_rows else ():
                        tallies[number].add(found)
    return [tally.content() for tally in tallies]


@dataclass(frozen=True, slots=True)
class _Shelf:
    """The ranges of one partition, by offset, and which ones they are."""

    starts: npt.NDArray[np.int64]
    stops: npt.NDArray[np.int64]
    numbers: npt.NDArray[np.int64]

    def divided(self, records: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        offsets = records.column("offset").to_numpy()
        places = np.searchsorted(self.starts, offsets, side="right") - 1
        places[(places >= 0) & (offsets >= self.stops[places])] = -1
        for place in np.unique(places[places >= 0]):
            yield int(self.numbers[place]), records.filter(pa.array(places == place))


def _shelves(ranges: Sequence[OffsetRange]) -> dict[TopicPartition, _Shelf]:
    found: dict[TopicPartition, list[tuple[int, int, int]]] = {}
    for number, one in enumerate(ranges):
        found.setdefault(one.topic_partition, []).append((one.start, one.stop, number))
    return {at: _Shelf(*np.array(sorted(rows), np.int64).T) for at, rows in found.items()}


def _typed(records: pa.RecordBatch) -> pa.RecordBatch:
    """With the types of the archive: other tools write others that mean the same."""
    return pa.record_batch({name: records.column(name).cast(SCHEMA.field(name).type) for name in records.schema.names})


def _of(records: pa.RecordBatch, at: TopicPartition, values: Mapping[str, str | None]) -> pa.RecordBatch:
    for name, wanted in (("topic", at.topic), ("partition", at.partition)):
        if name in records.schema.names:
            records = records.filter(pc.equal(records.column(name), pa.scalar(wanted, records.schema.field(name).type)))
        elif values.get(name) != str(wanted):
            return records.slice(0, 0)
    return records


class _Tally:
    """Adds up what a `Content` says."""

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
        seen = np.concatenate(self._offsets) if self._offsets else np.empty(0, np.int64)
        return Content(self._fingerprint, len(seen) - len(np.unique(seen)), self._has_replaced_names)
