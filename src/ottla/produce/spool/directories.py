"""Prepares the directory of a spool: creates it, closes it to others, removes leftovers of a kill, and sizes segments.

A path and what was found there come in; a directory that can be used goes out, or `SpoolFailed` with the reason.
"""

from __future__ import annotations

import logging
import os
import shlex
import stat
from pathlib import Path

from ottla.errors import SpoolFailed
from ottla.produce.spool.contents import Contents, log_path
from ottla.produce.spool.scan import CUT_SHORT, Gap
from ottla.produce.spool.segment import sync_directory

logger = logging.getLogger(__name__)

SMALLEST_SEGMENT = 4096
"""The smallest size of a segment that can be configured."""
SHARES = 8
"""A limit, and a small disk, are divided among this many segments, so that deleting one makes room."""
_SMALLEST_SHARE_OF_DISK = 256 << 10
"""A disk that others have filled for now must not lead to thousands of files."""


def create(directory: Path) -> None:
    """Create the directory if needed. Raises `SpoolFailed`."""
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
    except OSError as exc:
        reason = "is not a directory" if os.path.exists(directory) else f"cannot be created: {exc.strerror}"
        raise SpoolFailed(directory, reason) from exc


def restrict_access(directory: Path) -> None:
    """Restrict an existing directory to its owner. Raises `SpoolFailed` if other users can write to it.

    Users who can only read it are shut out. Users who can write may have changed it before, and could at any time.
    """
    try:
        mode = stat.S_IMODE(os.stat(directory).st_mode)
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise SpoolFailed(
                directory,
                f"other users can write to it (mode {mode:04o}), and so read, change and add what is sent from it; if"
                f" they did not, chmod 700 {shlex.quote(str(directory))}, else use a new directory, maybe inside it",
            )
        if mode & 0o077:
            os.chmod(directory, 0o700)
            logger.info("spool %s had mode %04o and is now restricted to its owner", directory, mode)
    except OSError as exc:  # not ours: creating its files fails too, with a better error
        logger.debug("spool %s cannot be restricted to its owner: %s", directory, exc)


def segment_size(segment_bytes: int, contents: Contents, directory: Path, max_bytes: int | None) -> int:
    """The size of a segment: smaller than requested where there is little room, so that deleting one frees some."""
    if max_bytes is not None:
        segment_bytes = min(segment_bytes, max(max_bytes // SHARES, SMALLEST_SEGMENT))
    disk = os.statvfs(directory)
    room = disk.f_bavail * disk.f_frsize + sum(surveyed.scan.size_bytes for surveyed in contents.segments.values())
    return min(segment_bytes, max(room // SHARES, _SMALLEST_SHARE_OF_DISK))


def sync_names(directory: Path) -> None:
    """Sync the directory and its parent, in case the directory is new. Raises `SpoolFailed`."""
    try:
        sync_directory(directory.parent)
        sync_directory(directory)
    except OSError as exc:
        raise SpoolFailed(directory, f"fsync failed: {exc.strerror}") from exc


def tidy(directory: Path, contents: Contents) -> None:
    """Remove what a kill left behind: marks without a segment, incomplete copies, the torn end of the last segment."""
    last = contents.segments.get(max(contents.segments, default=0))
    torn = last.scan.parts[-1] if last is not None and last.scan.parts else None
    try:
        for path in contents.leftovers:
            os.unlink(path)
        if last is not None and isinstance(torn, Gap) and torn.reason == CUT_SHORT:
            os.truncate(log_path(directory, last.number), torn.start)
            last.scan.size_bytes = torn.start
    except OSError as exc:
        logger.warning("cannot remove leftovers in spool %s: %s", directory, exc)
