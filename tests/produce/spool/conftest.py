"""A place for tests that make thousands of files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
"""Linux keeps files there in memory, and fsync costs nothing; what it promises is not what these tests are about."""


def quick_directory() -> tempfile.TemporaryDirectory[str]:
    """A new directory, in memory where there is such a place."""
    return tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)


@pytest.fixture
def quick() -> Iterator[Path]:
    with quick_directory() as name:
        yield Path(name)
