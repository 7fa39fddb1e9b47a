"""A disk that is full soon, for writes below one directory, without mounting a file system."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

BLOCK = 4096


class SmallDisk:
    """Refuses what would take more blocks than it has, for the files below one directory."""

    def __init__(self, folder: Path, blocks: int, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.blocks = blocks
        self.tells_its_size = True
        for name in ("pwritev", "pwrite", "posix_fallocate"):
            patch.setattr(os, name, self._checked(name, getattr(os, name)))
        patch.setattr(os, "statvfs", self._size)

    @property
    def used(self) -> int:
        return sum(_blocks(file.stat().st_size) for file in self.folder.rglob("*") if file.is_file())

    def _size(self, path: object) -> os.statvfs_result:
        free = self.blocks - self.used if self.tells_its_size else 1 << 30
        return os.statvfs_result((BLOCK, BLOCK, self.blocks, free, free, 0, 0, 0, 0, 255))

    def _checked(self, name: str, real: Any) -> Any:
        def call(fd: int, *args: Any) -> Any:
            if name == "posix_fallocate":
                stop = args[0] + args[1]
            else:
                stop = args[1] + (sum(map(len, args[0])) if name == "pwritev" else len(args[0]))
            now = os.fstat(fd).st_size
            if self.used + _blocks(max(stop, now)) - _blocks(now) > self.blocks:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, *args)

        return call


def _blocks(size_bytes: int) -> int:
    return -(-size_bytes // BLOCK)
