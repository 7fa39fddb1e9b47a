"""Programs that tests start have what users have, and not hypothesis, which kio loads where it can: 0.3 s each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GENERATING = frozenset({"consume", "fetch", "fuzz", "wire"})
"""Folders with programs that import helpers which make examples."""


@contextmanager
def lean_children(folder: Path) -> Iterator[None]:
    """Python processes that are started meanwhile have no hypothesis."""
    (folder / "hypothesis.py").write_text("raise ImportError('not for programs')\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
        yield
