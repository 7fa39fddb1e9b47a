"""Disk space kept free for what must be written on a full disk: marks, copies, replacements.

How much is needed comes in; a file of that size with allocated blocks goes out, and, when it is released, room that was
not there before. Its content means nothing. Best effort: on a copy-on-write file system, or if another program is
faster, the room may still be gone; then the spool waits for the disk like any other program.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

FILE = "reserve"
"""The name of the file."""
_STEP = 64 << 10
"""Sizes are multiples of this, and at least this much more than one entry: marks and file headers need room too."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk, and of a quota that is used up."""
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
"""Error numbers of a file system without fallocate."""
_ZEROS = bytes(_STEP)


def is_full(error: OSError) -> bool:
    """Whether the disk, or the user's quota, has no room."""
    return error.errno in _NO_ROOM


class Reserve:
    """The file `reserve` of one spool. `most_bytes` is its maximum size, None for no limit."""

    def __init__(self, directory: Path, *, most_bytes: int | None) -> None:
        self._path = directory / FILE
        self._most_bytes = most_bytes
        self.size_bytes = _allocated(self._path)

    def missing(self, entry_bytes: int) -> int:
        """How much larger it must be for an entry of this size to be written in any case."""
        target = (entry_bytes // _STEP + 2) * _STEP
        target = target if self._most_bytes is None else min(target, self._most_bytes)
        return max(0, target - self.size_bytes)

    def hold(self, entry_bytes: int) -> None:
        """Reserve room for an entry of this size and a bit more. Raises `OSError` if the disk does not have it."""
        missing = self.missing(entry_bytes)
        if not missing:
            return
        target = self.size_bytes + missing
        fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _allocate(fd, self.size_bytes, target)
        except OSError:
            os.ftruncate(fd, self.size_bytes)
            raise
        finally:
            os.close(fd)
        self.size_bytes = target

    def release(self) -> bool:
        """Give the room back to the disk for the next write. Returns whether there was any."""
        freed, self.size_bytes = self.size_bytes, 0
        try:
            os.unlink(self._path)
        except OSError:
            return False
        return freed > 0


def _allocated(path: Path) -> int:
    """How much of the file is really allocated: a copy of a spool may have a sparse file in its place."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0
    return min(status.st_size, status.st_blocks * 512)


def _allocate(fd: int, start: int, stop: int) -> None:
    """Allocate blocks for the file, by writing zeros where the file system has no fallocate. Raises `OSError`."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, start, stop - start)
            return
        except OSError as exc:
            if exc.errno not in _NOT_SUPPORTED:
                raise
    for position in range(start, stop, _STEP):
        zeros = _ZEROS[: stop - position]
        if os.pwrite(fd, zeros, position) < len(zeros):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
