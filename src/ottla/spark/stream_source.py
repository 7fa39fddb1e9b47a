# ruff: noqa: N802 - the names are Spark's
"""A streaming query in the shape of Spark's Python API: offsets as JSON, read limits, partitions, rows.

Spark keeps one `StreamReader` for the life of a query, in a process beside the driver, and pickles another one to the
workers that read. This module only translates: `follower` decides what offsets mean, `read_task` reads the rows.
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
from ottla.spark.follower import Follower
from ottla.spark.offsets import Logs
from ottla.spark.read_options import ReadOptions
from ottla.spark.read_task import ReadTask, Slice
from ottla.spark.stream_position import StreamPosition
from ottla.spark.wording import in_options


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Runs a streaming query for Spark."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._task = ReadTask(options, schema)
        self._cluster: Cluster | None = None
        self._opened: Follower | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_task": self._task, "_cluster": None, "_opened": None}  # sockets stay in their process

    @in_options()
    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins. Raises `NoBrokerReachable` if no broker answers."""
        # With the short timeout of the options: a wrong address should fail sooner than a running query does.
        with self._task.options.access.cluster() as cluster:
            cluster.metadata()
        return self._follower.first().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """One of the limits of the query, so that Spark knows it has one.

        `Follower` applies all of them; Spark has no limit that combines several.
        """
        limits = self._task.options.limits
        if limits.max_records is not None:
            return ReadMaxRows(limits.max_records)
        if limits.max_bytes is not None:
            return ReadMaxBytes(limits.max_bytes)
        if limits.min_records is not None:
            return ReadMinRows(limits.min_records)
        return ReadAllAvailable()

    @in_options()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next batch ends. Raises what `Follower.latest` raises."""
        everything = isinstance(limit, ReadAllAvailable)
        return self._follower.latest(StreamPosition.from_json(start), everything=everything).to_json()

    @in_options()
    def prepareForTriggerAvailableNow(self) -> None:
        """Stop the query where the logs end at the next look."""
        self._follower.stop_at_present()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Where the logs end, for the query's progress report."""
        ends = self._follower.log_ends
        return StreamPosition(ends).to_json() if ends else None

    @in_options()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One slice per task of a batch. Raises what `Follower.ranges` raises."""
        ranges = self._follower.ranges(StreamPosition.from_json(start), StreamPosition.from_json(end))
        return [Slice(offset_range) for offset_range in ranges]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice, on an executor. Raises what `Reader.read` raises."""
        with in_options():
            yield from self._task.read(partition)

    @in_options()
    def commit(self, end: dict[str, Any]) -> None:
        """Publish a finished batch. Spark calls this when the next batch begins, so never for the last one."""
        self._follower.publish(StreamPosition.from_json(end))

    def stop(self) -> None:
        """Close the client. Spark often ends the process without calling this."""
        if self._cluster is not None:
            self._cluster.close()

    @property
    def _follower(self) -> Follower:
        if self._opened is None:
            options = self._task.options
            self._cluster = options.access.with_timeout(options.retry_timeout).cluster()
            self._opened = Follower(Logs(self._cluster, options.subscription, isolation=options.isolation), options)
        return self._opened
