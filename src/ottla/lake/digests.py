"""SHA-256 of Parquet files: of a whole file, and of its footer alone.

Paths come in, hexadecimal digits go out. No parser sees the bytes: a damaged file is told from a good one before
anything tries to understand it.
"""

from __future__ import annotations

import hashlib
import os
from io import FileIO
from pathlib import Path

_MAGIC_BYTES = 8
"""At the end: the length of the footer, and a magic word."""
_BLOCK = 1 << 18
"""Small enough for a processor's cache."""


def of_file(path: Path) -> str:
    """The digest of the whole file."""
    with path.open("rb", buffering=0) as file:
        return _rest(file)


def of_footer(path: Path) -> str:
    """The digest of the end of the file, as long as the file itself says that its footer is."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _MAGIC_BYTES))
        length = int.from_bytes(file.read(_MAGIC_BYTES)[:4], "little") + _MAGIC_BYTES
        file.seek(max(0, size - length))
        return _rest(file)


def _rest(file: FileIO) -> str:
    found = hashlib.sha256()
    block = memoryview(bytearray(_BLOCK))
    while count := file.readinto(block):
        found.update(block[:count])
    return found.hexdigest()
