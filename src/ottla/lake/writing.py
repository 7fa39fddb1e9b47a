"""Writes the records of one range as Parquet files into a staging folder of its own.

Record batches come in in the order of offsets, each with the event times of its records where folders need them;
`LakeFile` values go out when it is closed. Nothing here is visible to readers: that needs an entry in the ledger.
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
"""In `Times`: the record has no readable time."""
_SECOND = 1_000_000
_HOUR, _DAY = 3600 * _SECOND, 86400 * _SECOND
_LATEST = 253_402_300_800 * _SECOND
"""The year 10000, where dates end."""
_MOST_OPEN = 64
"""Files of one range that are written at a time; others wait in memory, up to a limit, or are finished."""
_DELTA = "DELTA_BINARY_PACKED"
_PAGE_BYTES = 1 << 20
_FEWEST_ROWS, _MOST_ROWS = 1 << 10, 1 << 14
"""That Arrow writes at once; the fewest are its default."""
RANGE_KEY, FINGERPRINT_KEY = "ottla.range", "ottla.fingerprint"
"""In the footer of a file: the range of which it is, and the fingerprint of all records of that range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How files are written. `file_bytes` is about how large one becomes, `row_group_bytes` how much of one is in
    memory before it is compressed and written; twice that of all files of a range. `max_folders` is how many folders a
    range may be divided into: what is beyond goes to the records without a time."""

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
    """The files of one range. Leaving the block with an error throws them away."""

    def __init__(
        self, root: Path, settings: LakeSettings, one: OffsetRange, *, options: FileOptions, run: str = "attempt"
    ) -> None:
        self._root = root
        self._settings = settings
        self._range = one
        self._options = options
        self._attempt = f"{layout.STAGING}/{run}-{uuid.uuid4().hex}"
        self._open: dict[int, _File] = {}
        self._parts = 0
        self._done: list[LakeFile] = []
        self._folders: set[int] = set()
        self._crowded = 0
        self.untimed = 0
        """Records without a readable time, and those whose time would have needed a folder too many."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.discard()

    def add(self, records: pa.RecordBatch, times: Times | None) -> None:
        """Some more records; `times` are their event times in microseconds, None where no folder depends on them."""
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
        """Times that are garbage would make a file each: of more folders than allowed, those with the most records."""
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
        """Finishes the files; returns when they are on the disk. The range's fingerprint goes into their footers."""
        if self._crowded:
            _log.warning(
                "%s: %d records have event times in more than %d folders, and are with those without a time: are their"
                " times right? max_folders allows more",
                *(self._range, self._crowded, self._options.max_folders),
            )
        about = {} if fingerprint is None else {FINGERPRINT_KEY: str(fingerprint)}
        for bucket in list(self._open):
            self._finish(bucket, about)
        return tuple(self._done)

    def discard(self) -> None:
        """Throws everything away."""
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
        """Bounds the memory that waits and the files that are open."""
        while sum(one.waiting_bytes for one in self._open.values()) > 2 * self._options.row_group_bytes:
            max(self._open.values(), key=lambda one: one.waiting_bytes).flush()
        begun = [bucket for bucket, one in self._open.items() if one.is_begun]
        for bucket in begun[:-_MOST_OPEN]:
            self._finish(bucket)  # those that got nothing for longest

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
    """One Parquet file: collects records until a row group is full."""

    def __init__(
        self,
        root: Path,
        staged: str,
        path: str,
        values: Mapping[str, str | None],
        one: OffsetRange,
        settings: LakeSettings,
        options: FileOptions,
    ) -> None:
        self._target = located(root, staged)
        self._staged = staged
        self._path = path
        self._values = values
        self._range = one
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
        """Whether something is on the disk, and a file is open."""
        return self._sink is not None

    def _begun(self) -> tuple[Any, Any]:
        """The file and its writer: opened when there is something to write, so that few are open."""
        if self._sink is None:
            try:
                self._target.parent.mkdir(parents=True, exist_ok=True)
                file = pa.OSFile(str(self._target), "wb")
            except OSError as error:
                raise LakeError(self._root, f"{self._staged} cannot be written: {error}") from error
            rows = sum(one.num_rows for one in self._waiting)
            encoding = _encoding(self._schema, self._options, row_bytes=self.waiting_bytes / max(rows, 1))
            self._sink = file, pq.ParquetWriter(file, self._schema, **encoding)
        return self._sink

    def add(self, records: pa.RecordBatch) -> int:
        """Returns about how many bytes the file has."""
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
            for one in reversed(self._sink or ()):
                one.close()
        except (OSError, pa.ArrowException):
            pass

    def flush(self) -> None:
        """Writes a row group of what waits."""
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
    """The microseconds of a column of timestamps, which has no nulls; nothing is copied."""
    numbers: Times = column.view(pa.int64()).to_numpy()
    return numbers


def _encoding(schema: pa.Schema, options: FileOptions, *, row_bytes: float) -> dict[str, object]:
    """Numbers that grow are kept as differences; a dictionary of payloads would cost more than it saves.

    Arrow looks at the size of a page after so many rows as it writes at once: not more than about a page has.
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
    """The hour or day of each time, `NO_TIME` where it is no date."""
    readable = (times >= 0) & (times < _LATEST)
    return np.where(readable, times // width, NO_TIME)


def _divided(records: pa.RecordBatch, buckets: Times) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The records by bucket; the order stays."""
    edges = np.flatnonzero(np.diff(buckets)) + 1
    if len(edges) + 1 == len(np.unique(buckets)):  # one stretch each: slices, nothing is copied
        for start, stop in zip((0, *edges), (*edges, len(buckets)), strict=True):
            yield int(buckets[start]), _slice(records, start, stop)
        return
    for bucket in np.unique(buckets):
        yield int(bucket), records.filter(pa.array(buckets == bucket))


def _slice(records: pa.RecordBatch, start: int, stop: int) -> pa.RecordBatch:
    """A slice keeps the memory of all records: little of them is copied."""
    if (stop - start) * 4 < records.num_rows:
        return records.take(pa.array(np.arange(start, stop)))
    return records.slice(start, stop - start)


def _values(settings: LakeSettings, one: OffsetRange, bucket: int) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    for name in settings.partition_by:
        if name == "topic":
            values[name] = one.topic
        elif name == "partition":
            values[name] = str(one.partition)
        elif bucket == NO_TIME and settings.no_date is None:
            values[name] = None
        elif bucket == NO_TIME:
            values[name] = settings.no_date if name == "date" else layout.NO_HOUR
        else:
            width = _HOUR if "hour" in settings.partition_by else _DAY
            moment = datetime.fromtimestamp(bucket * (width // _SECOND), UTC)
            values[name] = f"{moment:%Y-%m-%d}" if name == "date" else f"{moment:%H}"
    return values
