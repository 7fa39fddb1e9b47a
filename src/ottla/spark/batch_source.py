"""A batch query: the records between two bounds, planned on the driver and cut into tasks of about equal size.

`ReadOptions` come in; slices go out, then the rows of each. Every error that can be known is raised while planning,
before a task starts. Spark reuses a plan for all uses of a DataFrame, so the plan must not depend on one of them: Spark
applies filters itself, and tasks find moving ends when they run (`open_ends`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ottla.engines.gc_freeze import freeze_once
from ottla.errors import ConfigError, OffsetsLost
from ottla.fetch.options import OnLost
from ottla.model import OffsetRange
from ottla.plan import cut
from ottla.spark.offsets import Logs, Offsets
from ottla.spark.open_ends import OpenEnd, find_new_ranges, open_ends
from ottla.spark.read_options import BatchLimits, End, ReadOptions
from ottla.spark.read_task import ReadTask, Slice
from ottla.spark.wording import in_options

_WORTH_CUTTING = 50_000
"""Offsets. With fewer, a second task costs more than it saves, so record sizes are not looked up."""
_RELOAD = "a DataFrame is planned at its first use: if that was before they were gone, load() it again"
_log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """Plans and reads a batch query for Spark.

    Spark plans a DataFrame once and reuses the plan for counts, views and both sides of a self-join. So `pushFilters`
    is not overridden: the filter of one use would apply to all others.
    """

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._task = ReadTask(options, schema)

    @in_options()
    def partitions(self) -> list[InputPartition]:
        """One slice per task, plus a few for records that arrive after planning.

        Raises `ConfigError` if a start is after its end, and `OffsetsLost` if records are gone and that is an error.
        """
        options = self._task.options
        with options.access.cluster() as cluster:
            planned = plan(Logs(cluster, options.subscription, isolation=options.isolation), options)
        freeze_once()
        return [*map(Slice, planned.ranges), *open_ends(options, planned.ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one slice, on an executor. Raises `OffsetsLost` if records are gone by now."""
        try:
            with in_options():
                for offset_range in self._ranges(partition):
                    yield from self._task.read(Slice(offset_range))
        except OffsetsLost as lost:
            lost.args = (f"{lost}; {_RELOAD}",)
            raise

    def _ranges(self, partition: InputPartition) -> list[OffsetRange]:
        match partition:
            case Slice():
                return [partition.range]
            case OpenEnd():
                return find_new_ranges(self._task.options, partition)
        return []  # Spark passes an empty partition if the plan has none


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges that a batch query reads, one per task, and where each partition ends in them."""

    ranges: list[OffsetRange]
    ends: Offsets


def plan(logs: Logs, options: ReadOptions) -> Plan:
    """Plan a query on the logs as they are now.

    Raises `ConfigError` if a start is after its end, and `OffsetsLost` if records are gone and that is an error.
    """
    partitions = logs.partitions()
    start = logs.resolve(options.start, partitions)
    stop = logs.resolve(options.stop, partitions)
    ranges = []
    for partition, first in start.items():
        if first > stop[partition]:
            raise ConfigError(f"{partition} would start at offset {first}, after its end {stop[partition]}")
        ranges.append(OffsetRange(*partition, first, stop[partition]))
    present = _present(logs, options, ranges)
    ends = {item.topic_partition: item.stop for item in present}
    return Plan(cut_for_tasks(logs, [item for item in present if len(item)], options.limits), ends)


def cut_for_tasks(logs: Logs, ranges: list[OffsetRange], limits: BatchLimits) -> list[OffsetRange]:
    """Cut ranges into at least as many tasks as asked for, none much larger than the others."""
    sizes = logs.record_bytes() if sum(map(len, ranges)) >= _WORTH_CUTTING else None
    return cut(
        ranges,
        at_least=limits.min_tasks,
        max_records=limits.task_records,
        max_bytes=None if sizes is None else limits.task_bytes,
        record_bytes=1.0 if sizes is None else sizes,
    )


def _present(logs: Logs, options: ReadOptions, ranges: list[OffsetRange]) -> list[OffsetRange]:
    """The parts of the ranges that the logs still have. Missing parts raise `OffsetsLost` or are logged."""
    partitions = [item.topic_partition for item in ranges if len(item)]
    first, last = logs.at(End.EARLIEST, partitions), logs.at(End.LATEST, partitions)
    present = []
    for item in ranges:
        partition = item.topic_partition
        if partition not in first:
            present.append(item)
            continue
        if item.start < first[partition]:
            lost, reason = (item.start, min(item.stop, first[partition])), "they are older than what the topic keeps"
        elif item.stop > last[partition]:
            lost, reason = (max(item.start, last[partition]), item.stop), f"the log ends at {last[partition]}"
        else:
            present.append(item)
            continue
        if options.on_lost is OnLost.ERROR:
            raise OffsetsLost(*partition, start=lost[0], stop=lost[1], resume=first[partition], reason=reason)
        _log.warning("%s: offsets [%d, %d) are left out: %s", partition, *lost, reason)
        start = min(max(item.start, first[partition]), item.stop)
        present.append(OffsetRange(*partition, start, max(start, min(item.stop, last[partition]))))
    return present
