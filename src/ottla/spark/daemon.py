"""Spark's Python daemon, silent about workers that Spark has let go.

Spark runs this module in the place of its own (`spark.python.daemon.module`); `ottla.spark.idle_workers` says why.
"""

from __future__ import annotations

from pyspark import daemon

from ottla.spark.idle_workers import silent

if __name__ == "__main__":
    daemon.worker = silent(daemon.worker)  # type: ignore[assignment]  # by position, as it is called
    daemon.manager()
