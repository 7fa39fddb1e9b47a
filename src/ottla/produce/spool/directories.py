"""The directory of a spool before it is used: made, closed to others, rid of what a kill left, measured.

Comes in: a path, and what was found there. Goes out: a directory that can be used, or `SpoolFailed` with the reason.
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
SHARES = 8
"""A limit, and a small disk, are shared out over this many segments, so that deleting one makes room."""
_SMALLEST_SHARE_OF_DISK = 256 << 10
"""A disk that others have filled for now must not lead to thousands of files."""


def make(directory: Path) -> None:
    """There is a directory from now on; raises `SpoolFailed`."""
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
    except OSError as exc:
        reason = "is not a directory" if os.path.exists(directory) else f"cannot be made: {exc.strerror}"
        raise SpoolFailed(directory, reason) from exc


def shut_out_others(directory: Path) -> None:
    """An existing directory may be open to others. Who can only read it is shut out; who can write may have been there
    already, and could be at any time: such a directory is not used."""
    try:
        mode = stat.S_IMODE(os.stat(directory).st_mode)
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise SpoolFailed(
                directory,
                f"other users can write to it (mode {mode:04o}), and so read, change and add what is sent from it; if"
                f" nobody did: chmod 700 {shlex.quote(str(directory))}, else name a new directory, also inside it",
            )
        if mode & 0o077:
            os.chmod(directory, 0o700)
            logger.info("spool %s had mode %04o: it is now for its owner only", directory, mode)
    except OSError as exc:  # not ours: then its files cannot be made, which says more
        logger.debug("spool %s cannot be made accessible to its owner only: %s", directory, exc)


def share(segment_bytes: int, contents: Contents, directory: Path, max_bytes: int | None) -> int:
    """The size of a segment: smaller than asked for where there is little room, so that deleting one gives some."""
    if max_bytes is not None:
        segment_bytes = min(segment_bytes, max(max_bytes // SHARES, SMALLEST_SEGMENT))
    disk = os.statvfs(directory)
    room = disk.f_bavail * disk.f_frsize + sum(known.scan.size_bytes for known in contents.segments.values())
    return min(segment_bytes, max(room // SHARES, _SMALLEST_SHARE_OF_DISK))


def sync_names(directory: Path) -> None:
    """The directory itself may be new."""
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
        logger.warning("spool %s cannot be tidied up: %s", directory, exc)
