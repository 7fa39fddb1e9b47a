"""Writes events to files of JSON lines in a folder: a new file after some bytes or time, the old ones compressed.

Each process writes its own files, `events-HOST-PID-NUMBER.jsonl`, and holds a lock on the one it writes. A file without
such a lock is complete, or was left behind by a process that died: the next process that rotates compresses it. Files
with other names must not be touched.
"""

from __future__ import annotations

import fcntl
import gzip
import logging
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ottla import config
from ottla.errors import ConfigError, OttlaError
from ottla.events.event import Event
from ottla.events.sinks.file import JsonLinesSink
from ottla.files import sync

_log = logging.getLogger(__name__)
_NAME = re.compile(r"events-(?P<owner>.+-\d+)-(?P<number>\d+)\.jsonl(?P<ending>|\.gz|\.gz\.tmp)")
_NOT_IN_HOSTS = re.compile(r"[^A-Za-z0-9_.-]")


class RotatingFiles:
    """Writes events to files in `folder`, like `JsonLinesSink`.

    A file ends after about `max_bytes`, or with the first event `max_seconds` after it began, and is then compressed in
    a background thread. The oldest files of all processes are deleted if the folder has more than `keep_bytes` of them,
    and so are files whose last event is older than `keep_seconds`; None means no limit. Raises `ConfigError` for a
    limit of 0 or less.
    """

    def __init__(
        self,
        folder: config.Path,
        *,
        max_bytes: int = 16_000_000,
        max_seconds: float = 3600.0,
        keep_bytes: int | None = 1_000_000_000,
        keep_seconds: float | None = None,
    ) -> None:
        limits = {
            "max_bytes": max_bytes,
            "max_seconds": max_seconds,
            "keep_bytes": keep_bytes,
            "keep_seconds": keep_seconds,
        }
        for name, value in limits.items():
            if value is not None and not value > 0:
                raise ConfigError(f"RotatingFiles({name}=...) must be above 0, got {value!r}")
        self._folder = Path(folder).absolute()  # the program may change directory
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._keep = _Keep(keep_bytes, keep_seconds)
        self._lock = threading.Lock()
        self._open: _Open | None = None
        self._tidy_thread: threading.Thread | None = None
        self._closed = False

    def __call__(self, event: Event) -> None:
        with self._lock:
            if self._closed:
                return
            try:
                self._ready().sink(event)
            except OSError as error:
                raise OttlaError(f"cannot write events to {self._folder}: {error.strerror or error}") from error

    def close(self) -> None:
        """Complete and compress the last file. Later events are ignored."""
        with self._lock:
            self._closed = True
            last, self._open = self._open, None
            if last is not None:
                last.end()
            if self._tidy_thread is not None:
                self._tidy_thread.join()
            if last is not None:
                _tidy(self._folder, self._keep, [last.path])

    def _ready(self) -> _Open:
        """Return the file to write to, a new one if the current one is full."""
        current = self._open
        if current is not None and current.pid != os.getpid():
            current = self._open = None  # after a fork, the file belongs to the parent
        if current is not None and self._is_full(current):
            self._open = None
            current.end()
            self._tidy_in_background()
        if self._open is None:
            self._open = _begin(self._folder)
        return self._open

    def _is_full(self, current: _Open) -> bool:
        """Whether the file has reached its size or age."""
        return (
            os.fstat(current.lock).st_size >= self._max_bytes or time.monotonic() - current.began >= self._max_seconds
        )

    def _tidy_in_background(self) -> None:
        """Start compressing in the background. If that is already running, the next rotation does the rest."""
        if self._tidy_thread is None or not self._tidy_thread.is_alive():
            self._tidy_thread = threading.Thread(
                target=_tidy, args=(self._folder, self._keep), name="ottla-events-tidy", daemon=True
            )
            self._tidy_thread.start()


class _Keep(NamedTuple):
    """How much to keep."""

    size_bytes: int | None
    seconds: float | None


class _Open(NamedTuple):
    """The file that is being written."""

    path: Path
    lock: int
    """The handle that holds the lock."""
    sink: JsonLinesSink
    began: float
    pid: int

    def end(self) -> None:
        self.sink.close()
        os.close(self.lock)


def _begin(folder: Path) -> _Open:
    """Create a file that no other process has or had."""
    os.makedirs(folder, exist_ok=True)
    pid = os.getpid()
    owner = f"{_NOT_IN_HOSTS.sub('_', socket.gethostname())}-{pid}"
    number = max((int(match["number"]) for match in _matches(folder) if match["owner"] == owner), default=0)
    while True:
        number += 1
        path = folder / f"events-{owner}-{number:06}.jsonl"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            continue
        # Another process may have seen it before it was locked, and taken it for an abandoned one.
        if _is_locked(handle) and os.fstat(handle).st_nlink:
            return _Open(path, handle, JsonLinesSink(path), time.monotonic(), pid)
        os.close(handle)


def _matches(folder: Path) -> list[re.Match[str]]:
    """Return the names in the folder that are ours, parsed."""
    return [match for entry in os.listdir(folder) if (match := _NAME.fullmatch(entry))]


def _is_locked(handle: int) -> bool:
    """Lock a file without waiting. False if another process holds the lock."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _tidy(folder: Path, keep: _Keep, only: list[Path] | None = None) -> None:
    """Compress complete files (or `only` these), then delete what exceeds the limits. Never raises."""
    try:
        ended = [folder / match[0] for match in _matches(folder) if not match["ending"]] if only is None else only
        for path in ended:
            with _taken(path) as is_ours:
                if is_ours:
                    _compress(path)
        _delete(folder, keep)
    except OSError as error:
        _log.warning("cannot compress or delete all old event files in %s: %s", folder, error)


@contextmanager
def _taken(path: Path) -> Iterator[bool]:
    """Whether the file is ours while the block runs: no process writes, compresses or deletes it."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _is_locked(handle) and os.fstat(handle).st_nlink > 0
    finally:
        os.close(handle)


def _compress(path: Path) -> None:
    """Compress a file. At every moment one of the two files is whole; after a crash, the next process repeats it."""
    temporary, packed = path.with_name(f"{path.name}.gz.tmp"), path.with_name(f"{path.name}.gz")
    with open(path, "rb") as plain, open(temporary, "wb") as file:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as target:
            shutil.copyfileobj(plain, target, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
        # The compressed file keeps the time of the last event, by which files are deleted.
        written = os.fstat(plain.fileno())
    os.utime(temporary, ns=(written.st_atime_ns, written.st_mtime_ns))
    os.rename(temporary, packed)
    sync(path.parent)
    path.unlink(missing_ok=True)


def _delete(folder: Path, keep: _Keep) -> None:
    """Delete the oldest files first, until the rest is within the limits. Files being written stay, and count."""
    files = sorted(_sizes(folder))
    total = sum(size for _, size, _ in files)
    oldest = -1.0 if keep.seconds is None else time.time() - keep.seconds
    for modified, size, path in files:
        is_over_limit = keep.size_bytes is not None and total > keep.size_bytes
        if not is_over_limit and modified >= oldest:
            return
        if path.suffix == ".gz":
            path.unlink(missing_ok=True)
            total -= size
            continue
        with _taken(path) as is_ours:
            if is_ours:
                path.unlink(missing_ok=True)
                total -= size


def _sizes(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """Yield time, size and path of each file. Removes abandoned temporary files."""
    for match in _matches(folder):
        path = folder / match[0]
        try:
            status = path.stat()
        except FileNotFoundError:
            continue
        if match["ending"] != ".gz.tmp":
            yield status.st_mtime, status.st_size, path
        elif not path.with_name(path.name.removesuffix(".gz.tmp")).exists():
            path.unlink(missing_ok=True)  # the file it was compressed from is gone
