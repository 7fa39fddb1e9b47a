"""What an archive holds for a replay: its files by source partition, and their records in the order of offsets.

The path of an archive comes in, or of a folder of Parquet files with the columns of Spark's Kafka connector; lineages
go out (one for each source partition), and of a lineage the selected records as columns. Nothing is written, no broker
is asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ottla.errors import InputError, LakeDamaged, NotALake
from ottla.jobs.replay_where import Condition
from ottla.lake import digests, layout
from ottla.lake.lake import Lake
from ottla.lake.layout import Format
from ottla.lake.paths import located, require_inside
from ottla.model import OffsetRange, Receipt, TopicPartition
from ottla.wire.columns import without_views
from ottla.wire.decode import SCHEMA

T = TypeVar("T", pa.Table, pa.RecordBatch)
_READ = ("key", "value", "offset", "timestamp", "headers")
_NEEDED = ("key", "value", "topic", "partition", "offset", "timestamp")
_BATCH_BYTES = 8 << 20
"""Of a file that is decoded at a time, about."""
_MOST_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which records: of which topics, with a timestamp in `[start, stop)`, and for which a condition holds."""

    topics: tuple[str, ...] = ()
    """None given: all."""
    start: datetime | None = None
    stop: datetime | None = None
    where: Condition | None = None

    @property
    def is_everything(self) -> bool:
        """Whether every record of a lineage is replayed."""
        return self.start is None and self.stop is None and self.where is None

    def may_hold(self, first: float, last: float) -> bool:
        """Whether there can be a record among those between two times, in seconds since 1970."""
        is_early = self.start is not None and last < self.start.timestamp()
        is_late = self.stop is not None and first >= self.stop.timestamp()
        return not is_early and not is_late

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Those that are selected."""
        times = records.column("timestamp")
        if self.start is not None:
            records = records.filter(pc.greater_equal(times, pa.scalar(self.start, times.type)))
            times = records.column("timestamp")
        if self.stop is not None:
            records = records.filter(pc.less(times, pa.scalar(self.stop, times.type)))
        if self.where is not None:
            records = records.filter(self.where.mask(records))
        return records


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that holds records of a lineage."""

    root: str
    """The folder that no link may lead out of."""
    path: str
    rows: int
    """Of the lineage."""
    first_offset: int
    last_offset: int
    first_time: float
    last_time: float
    is_mixed: bool = False
    """Whether records of other lineages are in it, too."""
    is_sorted: bool = True
    sha256: str = ""
    """What its bytes must have; empty where nobody knows."""


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """A source partition: its files by offset."""

    at: TopicPartition
    files: tuple[SourceFile, ...]

    @property
    def range(self) -> OffsetRange:
        """From its first record to behind its last."""
        return OffsetRange(*self.at, self.files[0].first_offset, max(file.last_offset for file in self.files) + 1)


@dataclass(frozen=True, slots=True)
class Source:
    """An archive as it was when it was opened."""

    path: str
    lineages: tuple[SourcePartition, ...]
    receipts: tuple[Receipt, ...]
    """What the archive says of its content; none for a plain folder."""
    notes: str | None
    """Where replays of this archive keep notes; None for a folder that is not ours."""

    def selected(self, selection: Selection) -> list[SourcePartition]:
        """The lineages with the files that may hold selected records; InputError if there are none at all."""
        there = {lineage.at.topic for lineage in self.lineages}
        unknown = [topic for topic in selection.topics if topic not in there]
        if unknown:
            known = ", ".join(sorted(there)) or "none at all"
            raise InputError(f"{self.path} has no records of {', '.join(unknown)}; it has {known}")
        wanted = [one for one in self.lineages if not selection.topics or one.at.topic in selection.topics]
        found = [_within(lineage, selection) for lineage in wanted]
        if not any(lineage.files for lineage in found):
            raise InputError(f"nothing is selected: {self._told(wanted)}")
        return [lineage for lineage in found if lineage.files]

    def _told(self, lineages: Sequence[SourcePartition]) -> str:
        files = [file for lineage in lineages for file in lineage.files]
        if not files:
            return f"{self.path} has no records"
        first, last = min(file.first_time for file in files), max(file.last_time for file in files)
        return f"the records in {self.path} are from {shown_time(first)} to {shown_time(last)}"


def _within(lineage: SourcePartition, selection: Selection) -> SourcePartition:
    files = tuple(file for file in lineage.files if selection.may_hold(file.first_time, file.last_time))
    return SourcePartition(lineage.at, files)


def shown_time(seconds: float) -> str:
    """A moment for people; times of records may be beyond what is a date."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s since 1970"


def open_source(path: str) -> Source:
    """The archive at the path, or the plain folder of Parquet files."""
    if (Path(path) / layout.SETTINGS).exists() or "://" in path or not Path(path).is_dir():
        return _from_lake(Lake.open(path))
    return _from_folder(Path(path).absolute())


# An archive of Ottla


def _from_lake(lake: Lake) -> Source:
    entries = list(lake.ledger.entries())
    if lake.settings.format is Format.DELTA:
        _require_live(lake, [file.path for entry in entries[:-1] for file in entry.files])
    found: dict[TopicPartition, list[SourceFile]] = defaultdict(list)
    for file in (file for entry in entries for file in entry.files):
        found[file.range.topic_partition].append(
            SourceFile(
                root=str(lake.path),
                path=str(lake.locate(file)),
                rows=file.rows,
                first_offset=file.first_offset,
                last_offset=file.last_offset,
                first_time=file.first_time,
                last_time=file.last_time,
                sha256=file.sha256,
            )
        )
    receipts = tuple(
        replace(receipt, fingerprint=entry.fingerprint(receipt)) for entry in entries for receipt in entry.receipts
    )
    return Source(str(lake.path), _lineages(found), receipts, str(located(lake.path, layout.REPLAYS)))


def _require_live(lake: Lake, paths: list[str]) -> None:
    """What was deleted or rewritten in the table must not come back. The last entry may not be there yet."""
    from ottla.lake import delta

    live = delta.live_files(lake.path) if paths else set()
    gone = [path for path in paths if path not in live]
    if gone:
        raise LakeDamaged(
            lake.path,
            f"{len(gone)} of its {len(paths)} files are not in its Delta table any more, for example {gone[0]}:"
            " somebody has deleted or rewritten records there",
        )


def _lineages(found: dict[TopicPartition, list[SourceFile]]) -> tuple[SourcePartition, ...]:
    return tuple(
        SourcePartition(at, tuple(sorted(files, key=lambda file: (file.first_offset, file.path))))
        for at, files in sorted(found.items())
    )


# Somebody else's folder


def _from_folder(root: Path) -> Source:
    there = [path for path in sorted(root.rglob("*.parquet")) if not _is_hidden(path.relative_to(root))]
    files = [str(require_inside(root, path)) for path in there]
    if not files:
        raise NotALake(root, "that is neither an archive of Ottla nor a folder of Parquet files")
    try:
        dataset = ds.dataset(files, format="parquet", partitioning="hive", partition_base_dir=str(root))
        fragments = list(dataset.get_fragments())
    except (OSError, pa.ArrowException) as error:
        raise NotALake(root, f"its Parquet files cannot be read: {error}") from error
    missing = [name for name in _NEEDED if name not in dataset.schema.names]
    if missing:
        raise NotALake(
            root,
            f"its Parquet files have no column {', '.join(missing)}; needed are {', '.join(_NEEDED)}, and headers if"
            " there are any",
        )
    found: dict[TopicPartition, list[SourceFile]] = defaultdict(list)
    for fragment in fragments:
        for at, file in _looked_through(root, dataset.schema, fragment):
            found[at].append(file)
    return Source(str(root), _lineages(found), (), None)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def _looked_through(root: Path, schema: pa.Schema, fragment: Any) -> Iterator[tuple[TopicPartition, SourceFile]]:
    """Which lineages are in a file, from its small columns alone."""
    try:
        rows = fragment.to_table(schema=schema, columns=["topic", "partition", "offset", "timestamp"])
        rows = _typed(rows)
    except (OSError, pa.ArrowException) as error:
        raise LakeDamaged(root, f"{fragment.path} cannot be read: {error}") from error
    nulls = [name for name in rows.schema.names if rows.column(name).null_count]
    if nulls:
        raise LakeDamaged(root, f"{fragment.path} has records without {', '.join(nulls)}")
    rows = rows.set_column(rows.schema.names.index("timestamp"), "timestamp", rows["timestamp"].cast(pa.int64()))
    measured = rows.group_by(["topic", "partition"]).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count"), ("timestamp", "min"), ("timestamp", "max")]
    )
    is_mixed = measured.num_rows > 1
    for row in measured.to_pylist():
        offsets = rows.column("offset")
        if is_mixed:
            offsets = rows.filter(
                pc.and_(pc.equal(rows["topic"], row["topic"]), pc.equal(rows["partition"], row["partition"]))
            ).column("offset")
        yield (
            TopicPartition(row["topic"], row["partition"]),
            SourceFile(
                root=str(root),
                path=fragment.path,
                rows=row["offset_count"],
                first_offset=row["offset_min"],
                last_offset=row["offset_max"],
                first_time=row["timestamp_min"] / 1e6,
                last_time=row["timestamp_max"] / 1e6,
                is_mixed=is_mixed,
                is_sorted=bool(np.all(np.diff(offsets.to_numpy()) > 0)),
            ),
        )


def _typed(rows: pa.Table) -> pa.Table:
    """With the types of the connector: others write other widths, and times without a zone, which are UTC."""
    return pa.table({name: rows.column(name).cast(SCHEMA.field(name).type) for name in rows.schema.names})


# The records of a lineage


def records(lineage: SourcePartition, *, start: int, selection: Selection) -> Iterator[pa.RecordBatch]:
    """The selected records from the offset `start` on, in the order of offsets, each once."""
    waiting = [file for file in lineage.files if file.last_offset >= start][::-1]
    open_files: list[_Pending] = []
    last = start - 1
    while waiting or open_files:
        # Every file that may have an offset up to the bound is open: files of one range may interleave.
        bound = min((one.last for one in open_files), default=-1)
        while waiting and (not open_files or waiting[-1].first_offset <= bound):
            file = waiting.pop()
            opened = _Pending(_read(file, lineage.at, start, selection, share=len(open_files) + 1))
            open_files += [] if opened.is_over else [opened]
            bound = min((one.last for one in open_files), default=-1)
        found = _in_order([one.up_to(bound) for one in open_files])
        open_files = [one for one in open_files if not one.is_over]
        if found.num_rows:
            offsets = found.column("offset").to_numpy()
            if offsets[0] <= last or not np.all(np.diff(offsets) > 0):
                raise LakeDamaged(Path(lineage.files[0].path).parent, f"it has offsets of {lineage.at} twice")
            last = int(offsets[-1])
            yield found


_NOTHING = pa.RecordBatch.from_pylist([], SCHEMA)
_END = (1 << 63) - 1


class _Pending:
    """A file that is being read: what was decoded of it and has not had its turn."""

    def __init__(self, rest: Iterator[pa.RecordBatch]) -> None:
        self._rest = rest
        self._head = _NOTHING
        self.is_over = False
        self.last = _END
        """The offset of the last record that was decoded."""
        self._advance()

    def up_to(self, bound: int) -> pa.RecordBatch:
        """Takes the records up to that offset, which does not lie behind the last one decoded."""
        offsets = self._head.column("offset").to_numpy()
        cut = int(np.searchsorted(offsets, bound, side="right"))
        found, self._head = self._head.slice(0, cut), self._head.slice(cut)
        if not self._head.num_rows:
            self._advance()
        return found

    def _advance(self) -> None:
        head = next(self._rest, None)
        self.is_over = head is None
        self._head = _NOTHING if head is None else head
        self.last = _END if head is None else int(head.column("offset")[-1].as_py())


def _in_order(pieces: Iterable[pa.RecordBatch]) -> pa.RecordBatch:
    filled = [piece for piece in pieces if piece.num_rows]
    if len(filled) <= 1:
        return filled[0] if filled else _NOTHING
    together = pa.concat_batches(filled)
    return together.take(pc.sort_indices(together.column("offset")))


def _read(
    file: SourceFile, at: TopicPartition, start: int, selection: Selection, *, share: int
) -> Iterator[pa.RecordBatch]:
    """The selected records of one file; `share` files are in memory together."""
    path = require_inside(Path(file.root), Path(file.path))
    try:
        if file.sha256 and digests.of_file(path) != file.sha256:  # before a parser sees it
            raise LakeDamaged(
                file.root,
                f"the bytes of {path.name} are not those that were written: it is damaged, or was replaced; see 'ottla"
                " lake verify --deep'",
            )
        with pq.ParquetFile(path) as parquet:
            for piece in _pieces(parquet, file, start, share):
                rows = _complete(_plain(piece), file, at)
                rows = selection.of(rows.filter(pc.greater_equal(rows.column("offset"), start)))
                if rows.num_rows:
                    yield rows
    except (OSError, pa.ArrowException) as error:
        raise LakeDamaged(Path(file.path).parent, f"{Path(file.path).name} cannot be read: {error}") from error


def _pieces(parquet: Any, file: SourceFile, start: int, share: int) -> Iterator[pa.RecordBatch]:
    names = parquet.schema_arrow.names
    columns = [name for name in (*_READ, *(("topic", "partition") if file.is_mixed else ())) if name in names]
    if not file.is_sorted:
        # Somebody else's file: there is no other way than to have all of it.
        yield from _plain(parquet.read(columns=columns)).sort_by("offset").combine_chunks().to_batches()
        return
    known = {number: parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)}
    groups = [number for number, group in known.items() if _may_follow(group, start)]
    if not groups:
        return
    size = sum(known[number].total_byte_size for number in groups)
    count = sum(known[number].num_rows for number in groups)
    at_once = max(1, min(_MOST_ROWS, _BATCH_BYTES // share * count // max(1, size)))
    yield from parquet.iter_batches(batch_size=at_once, row_groups=groups, columns=columns)


def _plain(rows: T) -> T:
    """Of types that rows can be chosen from."""
    return type(rows).from_arrays(list(map(without_views, rows.columns)), names=rows.schema.names)


def _may_follow(group: Any, start: int) -> bool:
    """Whether a row group can have offsets from `start` on."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "offset" and column.is_stats_set and column.statistics.has_min_max:
            return bool(column.statistics.max >= start)
    return True


def _complete(piece: pa.RecordBatch, file: SourceFile, at: TopicPartition) -> pa.RecordBatch:
    """All columns of an archive, with their types: what the lineage says, and nulls for what the file does not have."""
    if file.is_mixed:
        for name, value in at._asdict().items():
            if name in piece.schema.names:  # else it is a folder, and the same for all
                piece = piece.filter(pc.equal(piece.column(name), value))
    count = piece.num_rows
    known: dict[str, pa.Array] = {
        "topic": pa.repeat(pa.scalar(at.topic, pa.string()), count),
        "partition": pa.repeat(pa.scalar(at.partition, pa.int32()), count),
    }
    for name in _READ:
        kind = SCHEMA.field(name).type
        if name in piece.schema.names:
            known[name] = piece.column(name).cast(kind)
        else:
            known[name] = pa.nulls(count, kind)
    return pa.record_batch(known)
