"""Programs that tests start have what users have, but begin sooner.

They do without hypothesis, which kio loads where it can: 0.3 s each. Those that Spark starts do without the archives of
its modules, which Python would compile again in each of them: 0.6 s. Ottla's own daemon for Spark must leave them
out by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

GENERATING = frozenset({"consume", "fetch", "fuzz", "wire"})
"""Folders with programs that import helpers which make examples."""

# Python imports it before anything else.
_AT_START = """
import sys

if "ottla.spark.daemon" in sys.orig_argv:
    import numpy, pyarrow  # once, and not in each of the workers that it forks
else:
    sys.path[:] = [path for path in sys.path if "/pyspark/python/lib/" not in path]
"""


@contextmanager
def lean_children(folder: Path) -> Iterator[None]:
    """Python processes that are started meanwhile have no hypothesis, and no archives of what is installed."""
    (folder / "hypothesis.py").write_text("raise ImportError('not for programs')\n")
    (folder / "sitecustomize.py").write_text(_AT_START)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
        yield
