"""Writes the records of one range as Parquet files into a staging folder.

Record batches come in, in offset order, with the event times of their records if folders depend on them. `LakeFile`
values go out when the writer is closed. Nothing is visible to readers until a ledger entry records and publishes it.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ottla.config import check_whole
from ottla.errors import LakeError
from ottla.files import sync
from ottla.lake import layout
from ottla.lake.digests import of_file, of_footer
from ottla.lake.layout import LakeSettings
from ottla.lake.paths import located
from ottla.lake.values import LakeFile
from ottla.model import Fingerprint, OffsetRange

_log = logging.getLogger(__name__)
Times = npt.NDArray[np.int64]
NO_TIME = np.iinfo(np.int64).min
"""The value in `Times` of a record without a readable time."""
_SECOND = 1_000_000
_HOUR, _DAY = 3600 * _SECOND, 86400 * _SECOND
_LATEST = 253_402_300_800 * _SECOND
"""The year 10000, where dates end, in microseconds since 1970."""
_MOST_OPEN = 64
"""How many files of one range are open at a time. More wait in memory, up to a limit, or are finished early."""
_DELTA = "DELTA_BINARY_PACKED"
_PAGE_BYTES = 1 << 20
_FEWEST_ROWS, _MOST_ROWS = 1 << 10, 1 << 14
"""Bounds for the rows that Arrow writes at once; the lower one is its default."""
RANGE_KEY, FINGERPRINT_KEY = "ottla.range", "ottla.fingerprint"
"""Keys in a file's footer: its range, and the fingerprint of all records of that range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How to write files.

    `file_bytes` is the approximate size of a file. `row_group_bytes` is how much of a file is held in memory before it
    is compressed and written; all files of a range together hold at most twice that. `max_folders` is the largest
    number of folders for one range; further records go to the folder for records without a time. Raises `ConfigError`
    if a value is out of range.
    """

    file_bytes: int = 128 << 20
    row_group_bytes: int = 32 << 20
    max_folders: int = 400
    compression: str = "zstd"
    level: int | None = 1

    def __post_init__(self) -> None:
        check_whole("FileOptions(file_bytes=...)", self.file_bytes, lowest=1 << 16, highest=1 << 40)
        check_whole("FileOptions(row_group_bytes=...)", self.row_group_bytes, lowest=1 << 16, highest=1 << 30)
        check_whole("FileOptions(max_folders=...)", self.max_folders, lowest=1, highest=1 << 20)


class RangeFiles:
    """Writes the files of one range. Leaving the block with an error removes them."""

    def __init__(
        self, root: Path, settings: LakeSettings, span: OffsetRange, *, options: FileOptions, run: str = "attempt"
    ) -> None:
        self._root = root
        self._settings = settings
        self._range = span
        self._options = options
        self._attempt = f"{layout.STAGING}/{run}-{uuid.uuid4().hex}"
        self._open: dict[int, _File] = {}
        self._parts = 0
        self._done: list[LakeFile] = []
        self._folders: set[int] = set()
        self._crowded = 0
        self.untimed = 0
        """The number of records in the folder for records without a time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.discard()

    def add(self, records: pa.RecordBatch, times: Times | None) -> None:
        """Add records. `times` are their event times in microseconds; None if no folder depends on them.

        Raises `LakeError` if a file cannot be written.
        """
        if times is None:
            self._write(0, records)
            return
        width = _HOUR if "hour" in self._settings.partition_by else _DAY
        for bucket, part in _divided(records, self._bounded(_buckets(times, width))):
            if bucket == NO_TIME:
                self.untimed += part.num_rows
            self._write(bucket, part)
        self._relieve()

    def _bounded(self, buckets: Times) -> Times:
        """Limit the number of folders: keep those with the most records. Garbage times would make a file each."""
        values, counts = np.unique(buckets, return_counts=True)
        is_new = np.array([value != NO_TIME and int(value) not in self._folders for value in values], bool)
        fresh, sizes = values[is_new], counts[is_new]
        room = max(0, self._options.max_folders - len(self._folders))
        kept = fresh[np.argsort(-sizes, kind="stable")[:room]]
        self._folders.update(int(value) for value in kept)
        if len(kept) == len(fresh):
            return buckets
        is_dropped = np.isin(buckets, np.setdiff1d(fresh, kept))
        self._crowded += int(is_dropped.sum())
        return np.where(is_dropped, NO_TIME, buckets)

    def close(self, fingerprint: Fingerprint | None = None) -> tuple[LakeFile, ...]:
        """Finish the files, with the range's fingerprint in their footers. Return when they are on disk.

        Raises `LakeError` if a file cannot be written.
        """
        if self._crowded:
            _log.warning(
                "%s: event times need more than %d folders; %d records are in the folder for records without a time."
                " Check the event times, or raise max_folders",
                *(self._range, self._options.max_folders, self._crowded),
            )
        about = {} if fingerprint is None else {FINGERPRINT_KEY: str(fingerprint)}
        for bucket in list(self._open):
            self._finish(bucket, about)
        return tuple(self._done)

    def discard(self) -> None:
        """Remove everything that was written."""
        for file in self._open.values():
            file.abandon()
        self._open.clear()
        shutil.rmtree(located(self._root, self._attempt), ignore_errors=True)

    def _write(self, bucket: int, records: pa.RecordBatch) -> None:
        file = self._open.pop(bucket, None) or self._begin(bucket)
        self._open[bucket] = file
        if file.add(records) >= self._options.file_bytes:
            self._finish(bucket)

    def _relieve(self) -> None:
        """Bound the memory in use and the number of open files."""
        while sum(file.waiting_bytes for file in self._open.values()) > 2 * self._options.row_group_bytes:
            max(self._open.values(), key=lambda file: file.waiting_bytes).flush()
        begun = [bucket for bucket, file in self._open.items() if file.is_begun]
        for bucket in begun[:-_MOST_OPEN]:
            self._finish(bucket)  # least recently used first: `_write` moves a file to the end

    def _begin(self, bucket: int) -> _File:
        values = _values(self._settings, self._range, bucket)
        name = layout.file_name(self._range, self._parts, with_topic="topic" not in values)
        self._parts += 1
        folder = layout.folder(values)
        path = f"{folder}/{name}" if folder else name
        staged = f"{self._attempt}/{path}{layout.STAGED}"
        return _File(self._root, staged, path, values, self._range, self._settings, self._options)

    def _finish(self, bucket: int, about: Mapping[str, str] = MappingProxyType({})) -> None:
        self._done.append(self._open.pop(bucket).close(about))


class _File:
    """One Parquet file. Collects records until a row group is full."""

    def __init__(
        self,
        root: Path,
        staged: str,
        path: str,
        values: Mapping[str, str | None],
        span: OffsetRange,
        settings: LakeSettings,
        options: FileOptions,
    ) -> None:
        self._target = located(root, staged)
        self._staged = staged
        self._path = path
        self._values = values
        self._range = span
        self._options = options
        self._schema = settings.file_schema
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0
        self._rows = 0
        self._offsets = (-1, -1)
        self._times = (np.iinfo(np.int64).max, np.iinfo(np.int64).min)
        self._root = root
        self._sink: tuple[Any, Any] | None = None

    @property
    def is_begun(self) -> bool:
        """Whether the file is open on disk."""
        return self._sink is not None

    def _begun(self) -> tuple[Any, Any]:
        """Return the file and its writer. Opens them when the first row group is written, so that few are open."""
        if self._sink is None:
            try:
                self._target.parent.mkdir(parents=True, exist_ok=True)
                file = pa.OSFile(str(self._target), "wb")
            except OSError as error:
                raise LakeError(self._root, f"{self._staged} cannot be written: {error}") from error
            rows = sum(batch.num_rows for batch in self._waiting)
            encoding = _encoding(self._schema, self._options, row_bytes=self.waiting_bytes / max(rows, 1))
            self._sink = file, pq.ParquetWriter(file, self._schema, **encoding)
        return self._sink

    def add(self, records: pa.RecordBatch) -> int:
        """Add records. Return the approximate size of the file on disk."""
        offsets = records.column("offset")
        first = self._offsets[0] if self._rows else offsets[0].as_py()
        self._offsets = (first, offsets[len(offsets) - 1].as_py())
        times = as_numbers(records.column("timestamp"))
        self._times = (min(self._times[0], int(times.min())), max(self._times[1], int(times.max())))
        self._rows += records.num_rows
        self._waiting.append(records.select(self._schema.names))
        self.waiting_bytes += records.nbytes
        if self.waiting_bytes >= self._options.row_group_bytes:
            self.flush()
        return 0 if self._sink is None else int(self._sink[0].tell())

    def close(self, about: Mapping[str, str]) -> LakeFile:
        try:
            self.flush()
            file, writer = self._begun()
            writer.add_key_value_metadata({RANGE_KEY: str(self._range), **about})
            writer.close()
            file.close()
            sync(self._target)
            size = os.stat(self._target).st_size
            whole, footer = of_file(self._target), of_footer(self._target)
        except OSError as error:
            raise LakeError(self._root, f"{self._staged} cannot be written: {error}") from error
        return LakeFile(
            path=self._path,
            staged=self._staged,
            range=self._range,
            rows=self._rows,
            size_bytes=size,
            values=self._values,
            first_offset=self._offsets[0],
            last_offset=self._offsets[1],
            first_time=self._times[0] / _SECOND,
            last_time=self._times[1] / _SECOND,
            sha256=whole,
            footer_sha256=footer,
        )

    def abandon(self) -> None:
        self._waiting.clear()
        try:
            for closeable in reversed(self._sink or ()):
                closeable.close()
        except (OSError, pa.ArrowException):
            pass

    def flush(self) -> None:
        """Write the waiting records as a row group."""
        if not self._waiting:
            return
        _, writer = self._begun()
        table = pa.Table.from_batches(self._waiting)
        self._waiting.clear()
        self.waiting_bytes = 0
        try:
            writer.write_table(table, row_group_size=table.num_rows)
        except OSError as error:
            raise LakeError(self._root, f"{self._staged} cannot be written: {error}") from error


def as_numbers(column: pa.Array) -> Times:
    """Return a timestamp column without nulls as microseconds, without copying."""
    numbers: Times = column.view(pa.int64()).to_numpy()
    return numbers


def _encoding(schema: pa.Schema, options: FileOptions, *, row_bytes: float) -> dict[str, object]:
    """Return the settings of Parquet's writer.

    Offsets and timestamps grow, so they are delta-encoded. A dictionary of payloads would cost more than it saves.
    Arrow checks the size of a page only after each batch of rows, so a batch is at most about one page.
    """
    repeated = [name for name in ("topic", "partition", "timestampType") if name in schema.names]
    return {
        "compression": options.compression,
        "compression_level": options.level,
        "use_dictionary": [*repeated, "headers.list.element.key"],
        "column_encoding": {"offset": _DELTA, "timestamp": _DELTA},
        "write_statistics": ["partition", "offset", "timestamp", "topic"],
        "data_page_size": _PAGE_BYTES,
        "write_batch_size": int(min(max(_PAGE_BYTES / max(row_bytes, 1), _FEWEST_ROWS), _MOST_ROWS)),
        "store_schema": False,
    }


def _buckets(times: Times, width: int) -> Times:
    """Return the hour or day of each time; `NO_TIME` where it is not a date."""
    readable = (times >= 0) & (times < _LATEST)
    return np.where(readable, times // width, NO_TIME)


def _divided(records: pa.RecordBatch, buckets: Times) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Divide the records by bucket, in order."""
    edges = np.flatnonzero(np.diff(buckets)) + 1
    if len(edges) + 1 == len(np.unique(buckets)):  # each bucket is contiguous: slice, without copying
        for start, stop in zip((0, *edges), (*edges, len(buckets)), strict=True):
            yield int(buckets[start]), _slice(records, start, stop)
        return
    for bucket in np.unique(buckets):
        yield int(bucket), records.filter(pa.array(buckets == bucket))


def _slice(records: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
    """Return a slice, or a copy if it is small: a slice keeps the memory of all records alive."""
    if (stop - start) * 4 < records.num_rows:
        return records.take(pa.array(np.arange(start, stop)))
    return records.slice(start, stop - start)


def _values(settings: LakeSettings, span: OffsetRange, bucket: int) -> dict[str, str | None]:
    """Return the folder values of a bucket."""
    values: dict[str, str | None] = {}
    for name in settings.partition_by:
        if name == "topic":
            values[name] = span.topic
        elif name == "partition":
            values[name] = str(span.partition)
        elif bucket == NO_TIME and settings.no_date is None:
            values[name] = None
        elif bucket == NO_TIME:
            values[name] = settings.no_date if name == "date" else layout.NO_HOUR
        else:
            width = _HOUR if "hour" in settings.partition_by else _DAY
            moment = datetime.fromtimestamp(bucket * (width // _SECOND), UTC)
            values[name] = f"{moment:%Y-%m-%d}" if name == "date" else f"{moment:%H}"
    return values
