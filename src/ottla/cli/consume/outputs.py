"""Where `ottla consume` writes records: to standard output, or a file of Parquet, Arrow or JSON lines.

A file is written under a temporary name and renamed when it is complete, so a file under its own name is always valid.
After a failure nothing is left.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Protocol, Self

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from ottla.cli.consume.formats import Format, JsonObjects, blocks
from ottla.cli.errors import CommandFailed, UsageError
from ottla.wire.decode import COLUMNS, SCHEMA

_GROUP_BYTES = 64 << 20
_GROUP_ROWS = 1 << 20


class Output(Protocol):
    """Takes batches of records; leaving the block completes it."""

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it needs."""

    def write(self, records: pa.RecordBatch) -> None:
        """Write records; standard output has them when this returns."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class StandardOutput:
    """Text or bytes for pipes and people. Nothing is buffered, so nothing is left when the reader goes away."""

    def __init__(self, form: Format) -> None:
        if sys.stdout is None:
            raise UsageError("standard output is closed: write a file with --output")
        self._format = form
        self._file = getattr(sys.stdout.buffer, "raw", sys.stdout.buffer)

    def __enter__(self) -> Self:
        sys.stdout.flush()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @property
    def columns(self) -> frozenset[str]:
        """The columns that it needs."""
        return self._format.columns

    def write(self, records: pa.RecordBatch) -> None:
        """Write records; the operating system has all of them afterwards."""
        for block in blocks(self._format, records):
            self._write(block)

    def _write(self, rest: memoryview) -> None:
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandFailed(f"cannot write to standard output: {error.strerror}") from error


class _Writer(Protocol):
    def write(self, records: pa.RecordBatch) -> None: ...
    def finish(self) -> None: ...
    def drop(self) -> None: ...


class FileOutput:
    """A file; the suffix selects the format."""

    columns = frozenset(COLUMNS)

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._make = WRITERS[path.suffix]
        self.is_complete = False
        self._file: BinaryIO | None = None
        self._writer: _Writer | None = None

    def __enter__(self) -> Self:
        try:
            self._file = open(self._part, "xb")
            self._writer = self._make(self._file)
        except OSError as error:
            raise self._failure(error) from error
        return self

    def write(self, records: pa.RecordBatch) -> None:
        """Write records."""
        assert self._writer is not None
        try:
            self._writer.write(records.select(list(COLUMNS)))
        except OSError as error:
            raise self._failure(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._drop()
            return
        try:
            self._finish()
        except BaseException as failed:
            self._drop()
            if isinstance(failed, OSError):
                raise self._failure(failed) from failed
            raise

    def _finish(self) -> None:
        assert self._writer is not None
        assert self._file is not None
        self._writer.finish()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._part, self._path)
        self.is_complete = True

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.drop()
        with suppress(OSError):  # it may still buffer what the disk had no room for
            if self._file is not None:
                self._file.close()
        with suppress(OSError):
            self._part.unlink()

    def _failure(self, error: OSError) -> CommandFailed:
        reason = error.strerror or str(error)
        return CommandFailed(f"cannot write {self._path}: {reason}; no partial file is left")


class _Parquet:
    """Row groups of bounded size, so that writers and readers need bounded memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._writer = pa.parquet.ParquetWriter(
            file,
            SCHEMA,
            compression="zstd",
            use_dictionary=["topic", "partition", "timestampType", "key"],
            column_encoding={"offset": "DELTA_BINARY_PACKED", "timestamp": "DELTA_BINARY_PACKED"},
        )
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    def write(self, records: pa.RecordBatch) -> None:
        self._waiting.append(records)
        self._rows += records.num_rows
        self._bytes += records.nbytes
        if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._waiting, SCHEMA), row_group_size=self._rows)
        self._waiting.clear()
        self._rows = self._bytes = 0

    def finish(self) -> None:
        if self._waiting:
            self._write_group()
        self._writer.close()

    def drop(self) -> None:
        self._writer.is_open = False  # else it would write its footer when it is garbage-collected


class _Arrow:
    def __init__(self, file: BinaryIO) -> None:
        self._writer = pa.ipc.new_file(file, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4"))

    def write(self, records: pa.RecordBatch) -> None:
        self._writer.write_batch(records)

    def finish(self) -> None:
        self._writer.close()

    def drop(self) -> None:
        return None


class _JsonLines:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._format = JsonObjects()

    def write(self, records: pa.RecordBatch) -> None:
        for block in blocks(self._format, records):
            self._file.write(block)

    def finish(self) -> None:
        return None

    def drop(self) -> None:
        return None


WRITERS: dict[str, Callable[[BinaryIO], _Writer]] = {".parquet": _Parquet, ".arrow": _Arrow, ".jsonl": _JsonLines}
