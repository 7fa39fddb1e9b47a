"""SHA-256 of Parquet files: of a whole file, and of its footer alone.

Paths come in, hexadecimal digits go out. Nothing is parsed: a damaged file is detected before a parser sees it.
"""

from __future__ import annotations

import hashlib
import os
from io import FileIO
from pathlib import Path

_MAGIC_BYTES = 8
"""The end of a Parquet file: four bytes with the length of the footer, and four of magic."""
_BLOCK = 1 << 18
"""Small enough for a processor's cache."""


def of_file(path: Path) -> str:
    """Return the digest of the whole file. Raises OSError if it cannot be read."""
    with path.open("rb", buffering=0) as file:
        return _rest(file)


def of_footer(path: Path) -> str:
    """Return the digest of the footer, whose length the file itself states. Raises OSError if it cannot be read."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(max(0, size - _MAGIC_BYTES))
        length = int.from_bytes(file.read(_MAGIC_BYTES)[:4], "little") + _MAGIC_BYTES
        file.seek(max(0, size - length))
        return _rest(file)


def _rest(file: FileIO) -> str:
    digest = hashlib.sha256()
    block = memoryview(bytearray(_BLOCK))
    while count := file.readinto(block):
        digest.update(block[:count])
    return digest.hexdigest()
