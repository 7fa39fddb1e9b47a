"""Kafka on Spark without a jar: the data source `ottla`, sessions, pipelines.

Modules that need pyspark are imported on first use, so options can be checked without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla._lazy import lazy

if TYPE_CHECKING:
    from ottla.spark.archives import archive_stream
    from ottla.spark.archiving import ArchiveQuery
    from ottla.spark.lag import LagListener
    from ottla.spark.rollups import Rollup, rollup
    from ottla.spark.sessions import session
    from ottla.spark.source import OttlaSource, register

_HOMES = {
    "ArchiveQuery": "ottla.spark.archiving",
    "LagListener": "ottla.spark.lag",
    "OttlaSource": "ottla.spark.source",
    "Rollup": "ottla.spark.rollups",
    "archive_stream": "ottla.spark.archives",
    "register": "ottla.spark.source",
    "rollup": "ottla.spark.rollups",
    "session": "ottla.spark.sessions",
}

__all__ = ["ArchiveQuery", "LagListener", "OttlaSource", "Rollup", "archive_stream", "register", "rollup", "session"]

if not TYPE_CHECKING:  # otherwise every misspelled name would pass a type checker
    __getattr__, __dir__ = lazy(__name__, _HOMES)
