"""A fast directory for tests that create thousands of files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
"""Linux keeps these files in memory, where fsync costs nothing; these tests are not about what it guarantees."""


def quick_directory() -> tempfile.TemporaryDirectory[str]:
    """A new directory, in memory if possible."""
    return tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)


@pytest.fixture
def quick() -> Iterator[Path]:
    with quick_directory() as name:
        yield Path(name)
