"""Ensures one owner per spool directory, with the file `owner`, which is locked for as long as the owner lives.

A directory comes in. Out goes an `Ownership`, released by `close` or by the kernel when the process dies, or
`SpoolInUse` that names the owner. The lock belongs to the open file, so a second owner in this process is refused too.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import time
import weakref
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from uuid import UUID

from ottla.errors import SpoolFailed, SpoolInUse
from ottla.produce.spool.layout import VERSION
from ottla.produce.spool.values import Owner
from ottla.wire.checksums import crc32c

FILE = "owner"
"""The name of the file."""
_RECORD_BYTES = 512  # a fixed size, so that rewriting it needs no space on a full disk
_PATIENCE = 0.1  # seconds: `observe` holds the lock for a moment to find out whether it is taken


@dataclass(frozen=True, slots=True)
class Record:
    """The content of the file. `tail_segment` is the last segment that is no longer written to; it ends before
    `tail_id`.

    Without it, a last segment that was truncated at the end of an entry would look like a whole one.
    """

    version: int
    spool: str
    pid: int
    started: float
    host: str
    next_id: int = 1
    tail_segment: int = 0
    tail_id: int = 0

    @property
    def owner(self) -> Owner:
        """The process that wrote it."""
        return Owner(self.pid, self.started, self.host)

    def pack(self) -> bytes:
        """A line of JSON with its checksum, padded with spaces."""
        text = json.dumps(asdict(self))
        return f"{text} {crc32c(text.encode()):08x}".ljust(_RECORD_BYTES - 1).encode() + b"\n"


def parse_record(data: bytes) -> Record | None:
    """The record, or None if it is empty or damaged."""
    try:
        text, _, crc = data.decode().rstrip().rpartition(" ")
        if int(crc, 16) != crc32c(text.encode()):
            return None
        record = Record(**json.loads(text))
        UUID(record.spool)
    except (ValueError, TypeError):
        return None
    return record


class Ownership:
    """The lock on a directory, held. `before` is the record of the last owner."""

    def __init__(self, directory: Path, file: FileIO, before: Record | None) -> None:
        self.directory = directory
        self.before = before
        self._file = file
        self._since = time.time()
        _held.add(self)

    @classmethod
    def take(cls, directory: Path) -> Ownership:
        """Become the owner. Raises `SpoolInUse` if the spool has one, `SpoolFailed` if the file cannot be opened."""
        path = directory / FILE
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            file = FileIO(fd, "r+")
            try:
                if not _lock(fd):
                    raise _in_use(directory, fd)
                return cls(directory, file, _read(fd))
            except BaseException:
                file.close()
                raise
        except OSError as exc:
            raise SpoolFailed(path, _explain(exc)) from exc

    def write(self, spool: UUID, *, next_id: int, tail: tuple[int, int]) -> None:
        """Write down the owner and where the spool ends. Raises `SpoolFailed`."""
        record = Record(VERSION, str(spool), os.getpid(), self._since, _host(), next_id, *tail)
        try:
            os.pwrite(self._file.fileno(), record.pack(), 0)
        except OSError as exc:
            raise SpoolFailed(self.directory / FILE, f"cannot be written: {exc.strerror}") from exc

    def is_still_there(self) -> bool:
        """Whether the locked file is still the one in the directory: if not, another process may own the spool too."""
        try:
            status = os.stat(self.directory / FILE, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(status, os.fstat(self._file.fileno()))

    def close(self) -> None:
        """Release the lock. In a forked child the parent keeps it."""
        self._file.close()


def observe(directory: Path) -> tuple[Record | None, bool]:
    """The content of the owner file, and whether a process holds the lock now."""
    try:
        fd = os.open(directory / FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None, False
    with FileIO(fd, "r"):
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as exc:
            return _read(fd), exc.errno in (errno.EWOULDBLOCK, errno.EACCES)
        return _read(fd), False


def _lock(fd: int) -> bool:
    """Try to lock the file, for as long as another process may be observing it."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as exc:
            if exc.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
        if time.monotonic() > deadline:
            return False
        time.sleep(_PATIENCE / 10)


def _in_use(directory: Path, fd: int) -> SpoolInUse:
    """The error that names the owner, if its record can be read."""
    record = _read(fd)
    if record is None:
        return SpoolInUse(directory, pid=None)
    return SpoolInUse(directory, pid=record.pid, host=record.host, started=record.started)


def _read(fd: int) -> Record | None:
    """The record in the file, None if it cannot be read."""
    try:
        return parse_record(os.pread(fd, _RECORD_BYTES, 0))
    except OSError:
        return None


def _host() -> str:
    return socket.gethostname()[:64]


def _explain(exc: OSError) -> str:
    """Why the owner file cannot be opened."""
    if exc.errno == errno.ELOOP:
        return "is a symbolic link; a spool's files are never links"
    return f"cannot be opened: {exc.strerror}"


_held: weakref.WeakSet[Ownership] = weakref.WeakSet()


def _release_in_child() -> None:
    """Close the owner files in a forked child."""
    # The child shares the lock through its copy of the open file, and would keep it after the parent has died.
    for ownership in list(_held):
        ownership.close()


os.register_at_fork(after_in_child=_release_in_child)
