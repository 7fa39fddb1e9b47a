"""A replacement for Spark's Python daemon that starts faster and keeps idle workers from printing tracebacks.

Spark runs this module instead of its own (`spark.python.daemon.module`); `ottla.spark.idle_workers` explains the
tracebacks. Faster: Spark puts a zip archive of its Python modules first in the path, and Python compiles modules from
an archive at every start, which takes half a second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ottla.spark.idle_workers import silent

_ARCHIVE = ("pyspark", "python", "lib", "pyspark.zip")


def without_archive(paths: Sequence[str]) -> list[str]:
    """Python's module path without Spark's archive, if the package that contains the archive is in the path, too.

    That is the case if pip installed Spark: the package has the same modules as files, which are compiled once. Any
    other archive stays, because the package that it hides may be of another version.
    """

    def is_redundant(path: str) -> bool:
        parts = Path(path).parts
        return parts[-4:] == _ARCHIVE and str(Path(*parts[:-4])) in paths

    return [path for path in paths if not is_redundant(path)]


if __name__ == "__main__":
    sys.path[:] = without_archive(sys.path)
    from pyspark import daemon

    daemon.worker = silent(daemon.worker)  # type: ignore[assignment]  # Spark calls it by position
    daemon.manager()
