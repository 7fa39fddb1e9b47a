"""Files that are there whole or not at all, also after a power cut.

Paths and content come in; nothing is read. Errors are the system's own: whoever calls knows what the file is for.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path


def create_whole(path: Path, content: bytes) -> None:
    """Creates a file with all of its content, on the disk when this returns. FileExistsError if there is one."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)  # unlike a rename, it fails if somebody was faster
    finally:
        draft.unlink(missing_ok=True)
    sync(path.parent)


def sync(path: Path) -> None:
    """What was written to the file, or created, renamed or removed in the folder, stays so after a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
