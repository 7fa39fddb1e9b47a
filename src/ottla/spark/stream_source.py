# ruff: noqa: N802 - the names are Spark's
"""A streaming query as Spark's Python API wants it: offsets as JSON, limits, partitions, rows.

Spark keeps one of these for the life of a query in a process of its own beside the driver, and pickles another one to
the workers that read. It translates; what the offsets mean is in `following`, how rows are read in `reading`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ottla.net import Cluster
from ottla.spark.following import Follower
from ottla.spark.marks import Mark
from ottla.spark.offsets import Logs
from ottla.spark.read_options import ReadOptions
from ottla.spark.reading import Slice, Task
from ottla.spark.wording import in_options


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark runs a streaming query with."""

    def __init__(self, wanted: ReadOptions, schema: StructType) -> None:
        self._task = Task(wanted, schema)
        self._cluster: Cluster | None = None
        self._opened: Follower | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_task": self._task, "_cluster": None, "_opened": None}

    @in_options()
    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins. Brokers that are not there are told sooner than to a query that runs."""
        with self._task.wanted.connection.cluster() as cluster:
            cluster.metadata()
        return self._follower.first().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """That there is a limit; how much that is, is decided here, since Spark has no limit for all of it."""
        portions = self._task.wanted.portions
        if portions.max_records is not None:
            return ReadMaxRows(portions.max_records)
        if portions.max_bytes is not None:
            return ReadMaxBytes(portions.max_bytes)
        if portions.min_records is not None:
            return ReadMinRows(portions.min_records)
        return ReadAllAvailable()

    @in_options()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends."""
        everything = isinstance(limit, ReadAllAvailable)
        return self._follower.latest(Mark.from_json(start), everything=everything).to_json()

    @in_options()
    def prepareForTriggerAvailableNow(self) -> None:
        """The query ends at what there is at its first look."""
        self._follower.stop_at_present()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the logs end, for the progress of the query."""
        seen = self._follower.seen
        return Mark(seen).to_json() if seen else None

    @in_options()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One slice for each task of a batch."""
        return [Slice(one) for one in self._follower.ranges(Mark.from_json(start), Mark.from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice, on an executor."""
        with in_options():
            yield from self._task.read(partition)

    @in_options()
    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done: Spark says so when the next one begins."""
        self._follower.publish(Mark.from_json(end))

    def stop(self) -> None:
        """The query has ended; Spark seldom gets to say so."""
        if self._cluster is not None:
            self._cluster.close()

    @property
    def _follower(self) -> Follower:
        if self._opened is None:
            wanted = self._task.wanted
            self._cluster = wanted.connection.patient(wanted.patience).cluster()
            self._opened = Follower(Logs(self._cluster, wanted.what, isolation=wanted.isolation), wanted)
        return self._opened
