"""The job that archives one range: reads it from the brokers and writes it as Parquet into the lake's staging folder.

An `OffsetRange` comes in, `Archived` goes out: the receipt and the staged files. They belong to the archive once an
entry of its ledger records them. The job can be pickled, knows no engine, and leaves nothing behind when it fails.
"""

from __future__ import annotations

import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa

from ottla.errors import OttlaError
from ottla.fetch.reader import Reader
from ottla.jobs import event_time
from ottla.jobs.brokers import Brokers
from ottla.lake import contents
from ottla.lake.lake import Lake
from ottla.lake.layout import LakeSettings
from ottla.lake.values import Archived
from ottla.lake.writer import FileOptions, RangeFiles, as_numbers
from ottla.model import Fingerprint, OffsetRange, Receipt

__all__ = ["ArchiveRange", "Archived", "Brokers", "Stopped"]

_LOOK_SECONDS = 0.1


class Stopped(Exception):
    """The job was asked to stop before the end of its range."""


def _never() -> bool:
    return False


def _unseen(span: OffsetRange, records: int) -> None:
    """The default: no progress is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRange:
    """Archives the range it is called with."""

    brokers: Brokers
    path: str
    """The folder of the archive, the same on every machine."""
    settings: LakeSettings
    options: FileOptions = field(default_factory=FileOptions)
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Part of the name of everything that is staged, so that a run can remove what its dead tasks left."""
    is_stopped: Callable[[], bool] = _never
    seen: Callable[[OffsetRange, int], None] = _unseen
    """Called with the range and its next records, on the threads of the engine; for progress in this process."""

    # `until` and `undo` are the engines' contract for jobs that can stop early and discard their results.

    def until(self, is_stopped: Callable[[], bool]) -> ArchiveRange:
        """Return the same job, which raises `Stopped` soon after `is_stopped` returns True."""
        return replace(self, is_stopped=is_stopped)

    def undo(self, done: Archived) -> None:
        """Remove the files of a result that no entry will record."""
        Lake(Path(self.path), self.settings).discard([done])

    def __call__(self, span: OffsetRange) -> Archived:
        """Read the range and write its files. Return when they are on disk.

        Raises `Stopped` if asked to stop, `LakeError` if a file cannot be written, and the errors of `Reader`.
        """
        started, began = time.time(), time.monotonic()
        tally = _Tally()
        times = event_time.parse(self.settings.event_time).reader() if self.settings.needs_time else None
        with (
            self.brokers.reader() as reader,
            _Watch(reader, self.is_stopped),  # entered second, so that its thread ends before the reader closes
            RangeFiles(Path(self.path), self.settings, span, options=self.options, run=self.run) as files,
        ):
            for stretch in reader.decoded(span):
                if self.is_stopped():
                    raise Stopped
                tally.add(stretch.records, stretch.fingerprint)
                self.seen(span, stretch.records.num_rows)
                files.add(stretch.records, times(stretch.records) if times is not None else None)
            staged = files.close(tally.fingerprint)
        receipt = tally.receipt(span, started=started, seconds=time.monotonic() - began)
        return Archived(receipt, staged, files.untimed, tally.stored)


class _Watch:
    """Closes the reader when the job is asked to stop, so that it stops waiting for brokers."""

    def __init__(self, reader: Reader, is_stopped: Callable[[], bool]) -> None:
        self._reader = reader
        self._is_stopped = is_stopped
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._is_stopped is not _never:
            self._thread = threading.Thread(target=self._look, name="ottla-archive-stop", daemon=True)
            self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if isinstance(error, OttlaError) and self._is_stopped():
            raise Stopped from error  # the error is only that the reader was closed

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            if self._is_stopped():
                self._reader.close()
                return


class _Tally:
    """Adds up the content of a receipt."""

    def __init__(self) -> None:
        self.fingerprint = Fingerprint()
        self._stored = Fingerprint()
        self._bytes = 0
        self._first = np.iinfo(np.int64).max
        self._last = np.iinfo(np.int64).min

    def add(self, records: pa.RecordBatch, fingerprint: Fingerprint | None) -> None:
        assert fingerprint is not None
        self.fingerprint += fingerprint
        self._stored += contents.fingerprint(records) if contents.has_replaced_names(records) else fingerprint
        self._bytes += sum(_content_bytes(records.column(name)) for name in ("key", "value"))
        headers = records.column("headers").flatten()
        self._bytes += sum(_content_bytes(headers.field(number)) for number in (0, 1)) if len(headers) else 0
        times = as_numbers(records.column("timestamp"))
        self._first, self._last = min(self._first, int(times.min())), max(self._last, int(times.max()))

    @property
    def stored(self) -> Fingerprint | None:
        """The fingerprint of the columns; None if it is that of the log.

        It differs where header names are not UTF-8: columns have replacement characters there.
        """
        return None if self._stored == self.fingerprint else self._stored

    def receipt(self, span: OffsetRange, *, started: float, seconds: float) -> Receipt:
        is_empty = self.fingerprint.count == 0
        return Receipt(
            range=span,
            fingerprint=self.fingerprint,
            size_bytes=self._bytes,
            first_time=None if is_empty else self._first / 1e6,
            last_time=None if is_empty else self._last / 1e6,
            host=socket.gethostname(),
            started=started,
            seconds=seconds,
        )


def _content_bytes(column: pa.Array) -> int:
    """Return the bytes in a column, from the offsets of its first and last value alone."""
    ends = np.frombuffer(column.buffers()[1], np.int32)
    return int(ends[column.offset + len(column)] - ends[column.offset])
