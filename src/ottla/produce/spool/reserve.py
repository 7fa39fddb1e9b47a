"""Space on the disk that is kept free for what must be written on a full one: marks, copies, entries for others.

Comes in: how much is needed at most. Goes out: a file of that size whose blocks are allocated, and, when it is given
up, room that was not there before. What it holds means nothing. Best effort: a file system that copies on write, or
another program that is faster, may still take the room away; then the spool waits for the disk as any other program.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

FILE = "reserve"
_STEP = 64 << 10
"""Sizes are multiples of this, and this much more than one entry: marks and file headers need some, too."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_ZEROS = bytes(_STEP)


def is_full(error: OSError) -> bool:
    """Whether the disk, or this user's share of it, has no room."""
    return error.errno in _NO_ROOM


class Reserve:
    """The file `reserve` of one spool. `most_bytes` is what it may take at most, None for no limit."""

    def __init__(self, directory: Path, *, most_bytes: int | None) -> None:
        self._path = directory / FILE
        self._most_bytes = most_bytes
        self.size_bytes = _allocated(self._path)

    def missing(self, entry_bytes: int) -> int:
        """How much larger it should be, for an entry of this size to be written in any case."""
        wanted = (entry_bytes // _STEP + 2) * _STEP
        wanted = wanted if self._most_bytes is None else min(wanted, self._most_bytes)
        return max(0, wanted - self.size_bytes)

    def hold(self, entry_bytes: int) -> None:
        """Keeps room for an entry of this size, and a bit; raises `OSError` when the disk does not have it."""
        missing = self.missing(entry_bytes)
        if not missing:
            return
        wanted = self.size_bytes + missing
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _allocate(fd, self.size_bytes, wanted)
        except OSError:
            os.ftruncate(fd, self.size_bytes)
            raise
        finally:
            os.close(fd)
        self.size_bytes = wanted

    def release(self) -> bool:
        """Gives the room back to the disk, for the next write; whether there was any."""
        freed, self.size_bytes = self.size_bytes, 0
        try:
            os.unlink(self._path)
        except OSError:
            return False
        return freed > 0


def _allocated(path: Path) -> int:
    """How much of the file is really there: a copy of a spool may have a hole in its place."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0
    return min(found.st_size, found.st_blocks * 512)


def _allocate(fd: int, start: int, stop: int) -> None:
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, start, stop - start)
            return
        except OSError as exc:
            if exc.errno not in _NOT_SUPPORTED:
                raise
    for at in range(start, stop, _STEP):
        piece = _ZEROS[: stop - at]
        if os.pwrite(fd, piece, at) < len(piece):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
