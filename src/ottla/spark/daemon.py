"""Spark's Python daemon, silent about workers that Spark has let go, and sooner there.

Spark runs this module in the place of its own (`spark.python.daemon.module`); `ottla.spark.idle_workers` says why it
should be silent. Sooner: Spark puts an archive of its Python modules in front of everything, and what is in an archive
Python compiles at every start, for half a second.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from ottla.spark.idle_workers import silent

_ARCHIVE = ("pyspark", "python", "lib", "pyspark.zip")


def without_archive(paths: Sequence[str]) -> list[str]:
    """Where Python looks for modules, without an archive that is part of a package which it finds anyway.

    So it is where pip has installed Spark: the package has the same modules as files, which are compiled once. Any
    other archive stays: the package that it hides may be of another version.
    """

    def is_there_twice(path: str) -> bool:
        parts = Path(path).parts
        return parts[-4:] == _ARCHIVE and str(Path(*parts[:-4])) in paths

    return [path for path in paths if not is_there_twice(path)]


if __name__ == "__main__":
    sys.path[:] = without_archive(sys.path)
    from pyspark import daemon

    daemon.worker = silent(daemon.worker)  # type: ignore[assignment]  # by position, as it is called
    daemon.manager()
