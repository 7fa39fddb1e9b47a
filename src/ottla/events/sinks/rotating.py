"""Events as files of JSON lines in a folder: a new one after some bytes or some time, the old ones compressed.

Each process writes files of its own, `events-HOST-PID-NUMBER.jsonl`, and holds a lock on the one it writes to. A file
without such a lock is complete, or was left behind by a process that has died: it is compressed by the next that
rotates. Names of any other form are left alone.
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
    """Writes events to files in `folder`, as `JsonLinesSink` does.

    A file ends after about `max_bytes`, or with the first event that comes `max_seconds` after it began; then it is
    compressed on a thread. The oldest files of all processes are deleted when the folder has more than `keep_bytes` of
    them, and those whose last event is older than `keep_seconds`; None means that nothing is deleted for that reason.
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
        self._folder = Path(folder).absolute()  # the program may go to another directory
        self._max_bytes = max_bytes
        self._max_seconds = max_seconds
        self._keep = _Keep(keep_bytes, keep_seconds)
        self._lock = threading.Lock()
        self._open: _Open | None = None
        self._tidying: threading.Thread | None = None
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
        """The last file is complete, and compressed; later events are ignored."""
        with self._lock:
            self._closed = True
            last, self._open = self._open, None
            if last is not None:
                last.end()
            if self._tidying is not None:
                self._tidying.join()
            if last is not None:
                _tidy(self._folder, self._keep, [last.path])

    def _ready(self) -> _Open:
        """The file to write to, a new one if it is time."""
        one = self._open
        if one is not None and one.pid != os.getpid():
            one = self._open = None  # after a fork, the file is the parent's
        if one is not None and self._is_full(one):
            self._open = None
            one.end()
            self._tidy_aside()
        if self._open is None:
            self._open = _begin(self._folder)
        return self._open

    def _is_full(self, one: _Open) -> bool:
        return os.fstat(one.lock).st_size >= self._max_bytes or time.monotonic() - one.began >= self._max_seconds

    def _tidy_aside(self) -> None:
        """What comes while an earlier one is at work is left to the next."""
        if self._tidying is None or not self._tidying.is_alive():
            self._tidying = threading.Thread(
                target=_tidy, args=(self._folder, self._keep), name="ottla-events-tidy", daemon=True
            )
            self._tidying.start()


class _Keep(NamedTuple):
    """What is not deleted."""

    size_bytes: int | None
    seconds: float | None


class _Open(NamedTuple):
    """A file that is written to."""

    path: Path
    lock: int
    """The handle that has the lock."""
    sink: JsonLinesSink
    began: float
    pid: int

    def end(self) -> None:
        self.sink.close()
        os.close(self.lock)


def _begin(folder: Path) -> _Open:
    """A file that nobody else has, nor had."""
    os.makedirs(folder, exist_ok=True)
    pid = os.getpid()
    owner = f"{_NOT_IN_HOSTS.sub('_', socket.gethostname())}-{pid}"
    number = max((int(name["number"]) for name in _names(folder) if name["owner"] == owner), default=0)
    while True:
        number += 1
        path = folder / f"events-{owner}-{number:06}.jsonl"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            continue
        # Another process may have found it before it was locked, and taken it for one left behind.
        if _is_locked(handle) and os.fstat(handle).st_nlink:
            return _Open(path, handle, JsonLinesSink(path), time.monotonic(), pid)
        os.close(handle)


def _names(folder: Path) -> list[re.Match[str]]:
    return [name for one in os.listdir(folder) if (name := _NAME.fullmatch(one))]


def _is_locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _tidy(folder: Path, keep: _Keep, only: list[Path] | None = None) -> None:
    """Compresses what is complete (or `only` these), then deletes what need not be kept. Never raises."""
    try:
        ended = [folder / name[0] for name in _names(folder) if not name["ending"]] if only is None else only
        for path in ended:
            with _taken(path) as is_ours:
                if is_ours:
                    _compress(path)
        _delete(folder, keep)
    except OSError as error:
        _log.warning("old events in %s are not all compressed or deleted: %s", folder, error)


@contextmanager
def _taken(path: Path) -> Iterator[bool]:
    """Whether nobody writes to the file, and nobody else compresses or deletes it as long as the block runs."""
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
    """At every moment there is one of the two files that is whole; after a crash, the next one does it again."""
    draft, packed = path.with_name(f"{path.name}.gz.tmp"), path.with_name(f"{path.name}.gz")
    with open(path, "rb") as plain, open(draft, "wb") as file:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as target:
            shutil.copyfileobj(plain, target, 1 << 20)
        file.flush()
        os.fsync(file.fileno())
        written = os.fstat(plain.fileno())
    os.utime(draft, ns=(written.st_atime_ns, written.st_mtime_ns))
    os.rename(draft, packed)
    sync(path.parent)
    path.unlink(missing_ok=True)


def _delete(folder: Path, keep: _Keep) -> None:
    """The oldest first, until what is left may stay. A file that somebody writes to stays, and counts."""
    found = sorted(_sizes(folder))
    total = sum(size for _, size, _ in found)
    oldest = -1.0 if keep.seconds is None else time.time() - keep.seconds
    for modified, size, path in found:
        is_too_much = keep.size_bytes is not None and total > keep.size_bytes
        if not is_too_much and modified >= oldest:
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
    for name in _names(folder):
        path = folder / name[0]
        try:
            found = path.stat()
        except FileNotFoundError:
            continue
        if name["ending"] != ".gz.tmp":
            yield found.st_mtime, found.st_size, path
        elif not path.with_name(path.name.removesuffix(".gz.tmp")).exists():
            path.unlink(missing_ok=True)  # what was to be compressed there has been deleted
