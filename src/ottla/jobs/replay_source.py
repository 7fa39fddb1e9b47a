"""Reads an archive for a replay: its files by source partition, and their records in offset order.

The path of an archive comes in, or of a folder of Parquet files with the columns of Spark's Kafka connector. A `Source`
goes out, with one `SourcePartition` per partition of the archived topics; `records` yields a partition's selected
records as columns. This module writes nothing and contacts no broker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from ottla.errors import Advice, InputError, LakeDamaged, NotALake
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
"""About how much of a file is decoded at a time."""
_MOST_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which records to replay: by topic, by timestamp in `[start, stop)`, and by a condition."""

    topics: tuple[str, ...] = ()
    """Empty for all."""
    start: datetime | None = None
    stop: datetime | None = None
    where: Condition | None = None

    @property
    def is_everything(self) -> bool:
        """Whether every record of the selected topics is replayed."""
        return self.start is None and self.stop is None and self.where is None

    def may_hold(self, first: float, last: float) -> bool:
        """Return whether records between two times, in seconds since 1970, can be selected."""
        is_early = self.start is not None and last < self.start.timestamp()
        is_late = self.stop is not None and first >= self.stop.timestamp()
        return not is_early and not is_late

    def of(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected ones of these records."""
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
    """A file with records of a source partition."""

    root: str
    """The folder that no link may lead out of."""
    path: str
    rows: int
    """Rows of this source partition."""
    first_offset: int
    last_offset: int
    first_time: float
    last_time: float
    is_mixed: bool = False
    """Whether it also has records of other source partitions."""
    is_sorted: bool = True
    """Whether the records are in offset order."""
    sha256: str = ""
    """The expected digest of the file; empty if unknown."""


@dataclass(frozen=True, slots=True)
class SourcePartition:
    """A partition of an archived topic: its files, by offset."""

    topic_partition: TopicPartition
    files: tuple[SourceFile, ...]

    @property
    def range(self) -> OffsetRange:
        """From the first record to just after the last."""
        last = max(file.last_offset for file in self.files)
        return OffsetRange(*self.topic_partition, self.files[0].first_offset, last + 1)


@dataclass(frozen=True, slots=True)
class Source:
    """An archive as it was when it was opened."""

    path: str
    partitions: tuple[SourcePartition, ...]
    receipts: tuple[Receipt, ...]
    """The archive's receipts; none for a plain folder."""
    notes: str | None
    """The folder where replays of this archive keep notes; None for a plain folder."""
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    """The ids of the archived topics, by name; none for a plain folder."""

    def selected(self, selection: Selection) -> list[SourcePartition]:
        """Return the source partitions, with the files that may have selected records.

        Raises `InputError` if a selected topic is not in the archive, or if no file can have selected records.
        """
        archived = {partition.topic_partition.topic for partition in self.partitions}
        unknown = [topic for topic in selection.topics if topic not in archived]
        if unknown:
            known = ", ".join(sorted(archived)) or "none at all"
            raise InputError(f"{self.path} has no records of {', '.join(unknown)}; it has {known}")
        chosen = [
            partition
            for partition in self.partitions
            if not selection.topics or partition.topic_partition.topic in selection.topics
        ]
        narrowed = [_within(partition, selection) for partition in chosen]
        if not any(partition.files for partition in narrowed):
            raise InputError(f"nothing is selected: {self._time_span(chosen)}")
        return [partition for partition in narrowed if partition.files]

    def _time_span(self, partitions: Sequence[SourcePartition]) -> str:
        files = [file for partition in partitions for file in partition.files]
        if not files:
            return f"{self.path} has no records"
        first, last = min(file.first_time for file in files), max(file.last_time for file in files)
        return f"the records in {self.path} are from {shown_time(first)} to {shown_time(last)}"


def _within(partition: SourcePartition, selection: Selection) -> SourcePartition:
    files = tuple(file for file in partition.files if selection.may_hold(file.first_time, file.last_time))
    return SourcePartition(partition.topic_partition, files)


def shown_time(seconds: float) -> str:
    """Return a time as text. Record timestamps may be beyond what a date can express."""
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:.0f} s since 1970"


def open_source(path: str) -> Source:
    """Open the archive at the path, or a plain folder of Parquet files.

    Raises `NotALake` if it is neither, and `LakeDamaged` if a file of it cannot be read.
    """
    if (Path(path) / layout.SETTINGS).exists() or "://" in path or not Path(path).is_dir():
        return _from_lake(Lake.open(path))
    return _from_folder(Path(path).absolute())


# An archive of Ottla


def _from_lake(lake: Lake) -> Source:
    entries = list(lake.ledger.entries())
    if lake.settings.format is Format.DELTA:
        _require_live(lake, [file.path for entry in entries[:-1] for file in entry.files])
    files: dict[TopicPartition, list[SourceFile]] = defaultdict(list)
    for file in (file for entry in entries for file in entry.files):
        files[file.range.topic_partition].append(
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
    ids = entries[-1].topics if entries else {}
    return Source(str(lake.path), _partitions(files), receipts, str(located(lake.path, layout.REPLAYS)), ids)


def _require_live(lake: Lake, paths: list[str]) -> None:
    """Refuse a table in which records were deleted or rewritten: a replay must not bring them back.

    `paths` leaves out the last entry, which may not be in the table yet.
    """
    from ottla.lake import delta

    live = delta.live_files(lake.path) if paths else set()
    gone = [path for path in paths if path not in live]
    if gone:
        raise LakeDamaged(
            lake.path,
            f"{len(gone)} of its {len(paths)} files are not in its Delta table any more, for example {gone[0]}:"
            " records were deleted or rewritten there",
        )


def _partitions(by_partition: dict[TopicPartition, list[SourceFile]]) -> tuple[SourcePartition, ...]:
    return tuple(
        SourcePartition(tp, tuple(sorted(files, key=lambda file: (file.first_offset, file.path))))
        for tp, files in sorted(by_partition.items())
    )


# A plain folder, written by other tools


def _from_folder(root: Path) -> Source:
    visible = [path for path in sorted(root.rglob("*.parquet")) if not _is_hidden(path.relative_to(root))]
    paths = [str(require_inside(root, path)) for path in visible]
    if not paths:
        raise NotALake(root, "that is neither an archive of Ottla nor a folder of Parquet files")
    try:
        dataset = ds.dataset(paths, format="parquet", partitioning="hive", partition_base_dir=str(root))
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
    files: dict[TopicPartition, list[SourceFile]] = defaultdict(list)
    for fragment in fragments:
        for tp, file in _measured(root, dataset.schema, fragment):
            files[tp].append(file)
    return Source(str(root), _partitions(files), (), None)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.parts)


def _measured(root: Path, schema: pa.Schema, fragment: Any) -> Iterator[tuple[TopicPartition, SourceFile]]:
    """Yield the source partitions in a file, with their offsets and times. Reads only the small columns."""
    try:
        rows = fragment.to_table(schema=schema, columns=["topic", "partition", "offset", "timestamp"])
        rows = _typed(rows)
    except (OSError, pa.ArrowException) as error:
        raise LakeDamaged(root, f"{fragment.path} cannot be read: {error}") from error
    nulls = [name for name in rows.schema.names if rows.column(name).null_count]
    if nulls:
        raise LakeDamaged(root, f"{fragment.path} has records without {', '.join(nulls)}")
    rows = rows.set_column(rows.schema.names.index("timestamp"), "timestamp", rows["timestamp"].cast(pa.int64()))
    groups = rows.group_by(["topic", "partition"]).aggregate(
        [("offset", "min"), ("offset", "max"), ("offset", "count"), ("timestamp", "min"), ("timestamp", "max")]
    )
    is_mixed = groups.num_rows > 1
    for row in groups.to_pylist():
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
    """Cast to the connector's types. Other tools write other widths, and times without a zone, which are UTC."""
    return pa.table({name: rows.column(name).cast(SCHEMA.field(name).type) for name in rows.schema.names})


# The records of a source partition


def records(partition: SourcePartition, *, start: int, selection: Selection) -> Iterator[pa.RecordBatch]:
    """Yield the selected records from offset `start` on, in offset order.

    Merges the files of the partition. Raises `LakeDamaged` if a file cannot be read or an offset occurs twice.
    """
    tp = partition.topic_partition
    waiting = [file for file in partition.files if file.last_offset >= start][::-1]
    open_files: list[_OpenFile] = []
    last = start - 1
    while waiting or open_files:
        # A merge of sorted files. Files of one range interleave if their folders do (by hour, for example), so every
        # file that may have an offset up to the bound, the smallest last offset in memory, must be open.
        bound = min((file.last for file in open_files), default=-1)
        while waiting and (not open_files or waiting[-1].first_offset <= bound):
            opened = _OpenFile(_read(waiting.pop(), tp, start, selection, share=len(open_files) + 1))
            open_files += [] if opened.is_over else [opened]
            bound = min((file.last for file in open_files), default=-1)
        merged = _in_order([file.up_to(bound) for file in open_files])
        open_files = [file for file in open_files if not file.is_over]
        if merged.num_rows:
            offsets = merged.column("offset").to_numpy()
            if offsets[0] <= last or not np.all(np.diff(offsets) > 0):
                raise LakeDamaged(Path(partition.files[0].path).parent, f"it has offsets of {tp} twice")
            last = int(offsets[-1])
            yield merged


_NOTHING = pa.RecordBatch.from_pylist([], SCHEMA)
_END = (1 << 63) - 1


class _OpenFile:
    """A file that is being read, with the records that were decoded and not yet merged."""

    def __init__(self, rest: Iterator[pa.RecordBatch]) -> None:
        self._rest = rest
        self._head = _NOTHING
        self.is_over = False
        self.last = _END
        """The offset of the last decoded record."""
        self._advance()

    def up_to(self, bound: int) -> pa.RecordBatch:
        """Take the records up to that offset, which must not be after the last decoded one."""
        offsets = self._head.column("offset").to_numpy()
        cut = int(np.searchsorted(offsets, bound, side="right"))
        taken, self._head = self._head.slice(0, cut), self._head.slice(cut)
        if not self._head.num_rows:
            self._advance()
        return taken

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
    file: SourceFile, tp: TopicPartition, start: int, selection: Selection, *, share: int
) -> Iterator[pa.RecordBatch]:
    """Yield the selected records of one file. `share` files divide the memory."""
    path = require_inside(Path(file.root), Path(file.path))
    try:
        if file.sha256 and digests.of_file(path) != file.sha256:  # before a parser sees it
            raise LakeDamaged(
                file.root,
                f"the bytes of {path.name} are not those that were written: it is damaged, or was replaced:"
                f" {Advice.VERIFY_DEEP}",
            )
        with pq.ParquetFile(path) as parquet:
            for piece in _pieces(parquet, file, start, share):
                rows = _complete(_plain(piece), file, tp)
                rows = selection.of(rows.filter(pc.greater_equal(rows.column("offset"), start)))
                if rows.num_rows:
                    yield rows
    except (OSError, pa.ArrowException) as error:
        raise LakeDamaged(Path(file.path).parent, f"{Path(file.path).name} cannot be read: {error}") from error


def _pieces(parquet: Any, file: SourceFile, start: int, share: int) -> Iterator[pa.RecordBatch]:
    names = parquet.schema_arrow.names
    columns = [name for name in (*_READ, *(("topic", "partition") if file.is_mixed else ())) if name in names]
    if not file.is_sorted:
        # Only files of other tools are unsorted. Sorting one needs all of it in memory.
        yield from _plain(parquet.read(columns=columns)).sort_by("offset").combine_chunks().to_batches()
        return
    row_groups = {number: parquet.metadata.row_group(number) for number in range(parquet.num_row_groups)}
    needed = [number for number, group in row_groups.items() if _may_follow(group, start)]
    if not needed:
        return
    size = sum(row_groups[number].total_byte_size for number in needed)
    count = sum(row_groups[number].num_rows for number in needed)
    at_once = max(1, min(_MOST_ROWS, _BATCH_BYTES // share * count // max(1, size)))
    yield from parquet.iter_batches(batch_size=at_once, row_groups=needed, columns=columns)


def _plain(rows: T) -> T:
    """Replace view types: Arrow cannot filter them."""
    return type(rows).from_arrays(list(map(without_views, rows.columns)), names=rows.schema.names)


def _may_follow(group: Any, start: int) -> bool:
    """Return whether a row group can have offsets from `start` on, by its statistics."""
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "offset" and column.is_stats_set and column.statistics.has_min_max:
            return bool(column.statistics.max >= start)
    return True


def _complete(piece: pa.RecordBatch, file: SourceFile, tp: TopicPartition) -> pa.RecordBatch:
    """Return all columns of an archive, with their types: topic and partition as known, nulls for missing columns."""
    if file.is_mixed:
        for name, value in tp._asdict().items():
            if name in piece.schema.names:  # otherwise it is a folder, and the same for all records
                piece = piece.filter(pc.equal(piece.column(name), value))
    count = piece.num_rows
    columns: dict[str, pa.Array] = {
        "topic": pa.repeat(pa.scalar(tp.topic, pa.string()), count),
        "partition": pa.repeat(pa.scalar(tp.partition, pa.int32()), count),
    }
    for name in _READ:
        kind = SCHEMA.field(name).type
        if name in piece.schema.names:
            columns[name] = piece.column(name).cast(kind)
        else:
            columns[name] = pa.nulls(count, kind)
    return pa.record_batch(columns)
