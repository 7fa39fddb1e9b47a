"""Files that exist whole or not at all, even after a power loss.

Comes in: paths and content. It must not read files. Errors are the system's own: the caller knows what the file is for.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def create_whole(path: Path, content: bytes) -> None:
    """Create a file with all of its content, on disk when this returns. Raises `FileExistsError` if it exists."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)  # unlike a rename, this fails if another process was faster
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def replace_whole(path: Path, content: bytes) -> None:
    """Write a file with all of its content in place of an older one: a reader sees either of the two.

    What is no regular file (a device, a pipe) is written to and stays what it is; a link stays a link.
    """
    if path.exists() and not path.is_file():
        path.write_bytes(content)
        return
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or what was created, renamed or removed in a folder, so that it survives a power loss."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
