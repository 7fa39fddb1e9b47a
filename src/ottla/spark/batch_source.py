"""A batch query: what lies between two places, planned on the driver and cut into tasks of about equal size.

What is wanted comes in; slices go out, then rows of each. Everything that can be known to be wrong is told while
planning, before a task starts. What is planned serves all uses of a DataFrame, so it says nothing of a single one:
filters are left to Spark, and ends that move are found by the tasks (`open_ends`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ottla.engines.settling import settle
from ottla.errors import ConfigError, OffsetsLost
from ottla.fetch.options import OnLost
from ottla.model import OffsetRange
from ottla.plan import cut
from ottla.spark.offsets import Logs, Offsets
from ottla.spark.open_ends import OpenEnd, find_later, open_ends
from ottla.spark.reading import Slice, Task
from ottla.spark.wanted import End, Portions, Wanted
from ottla.spark.wording import in_options

_WORTH_CUTTING = 50_000
"""Offsets: with fewer, a second task costs more than it saves, and nobody is asked how large records are."""
_AGAIN = "a DataFrame is planned at its first use: if that was before they were gone, load() it again"
_log = logging.getLogger(__name__)


class BatchReader(DataSourceReader):
    """What Spark plans and reads a batch query with.

    Spark plans a DataFrame once and keeps that for every further use of it: counts, views, both sides of a self-join.
    So `pushFilters` is not overridden: the filter of one use would be that of all others.
    """

    def __init__(self, wanted: Wanted, schema: StructType) -> None:
        self._task = Task(wanted, schema)

    @in_options()
    def partitions(self) -> list[InputPartition]:
        """One slice for each task, and some for what comes after the planning."""
        wanted = self._task.wanted
        with wanted.connection.cluster() as cluster:
            planned = plan(Logs(cluster, wanted.what, isolation=wanted.isolation), wanted)
        settle()
        return [*map(Slice, planned.ranges), *open_ends(wanted, planned.ends)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice."""
        try:
            with in_options():
                for one in self._ranges(partition):
                    yield from self._task.read(Slice(one))
        except OffsetsLost as lost:
            lost.args = (f"{lost}; {_AGAIN}",)
            raise

    def _ranges(self, partition: InputPartition) -> list[OffsetRange]:
        match partition:
            case Slice():
                return [partition.range]
            case OpenEnd():
                return find_later(self._task.wanted, partition)
        return []  # Spark's own, where there is nothing to read


@dataclass(frozen=True, slots=True)
class Plan:
    """The ranges that a batch query reads, each for one task, and where each partition ends in them."""

    ranges: list[OffsetRange]
    ends: Offsets


def plan(logs: Logs, wanted: Wanted) -> Plan:
    """What there is now."""
    partitions = logs.partitions()
    start = logs.resolve(wanted.start, partitions)
    stop = logs.resolve(wanted.stop, partitions)
    ranges = []
    for at, first in start.items():
        if first > stop[at]:
            raise ConfigError(f"{at} would start at offset {first}, after its end {stop[at]}")
        ranges.append(OffsetRange(*at, first, stop[at]))
    present = _present(logs, wanted, ranges)
    ends = {one.topic_partition: one.stop for one in present}
    return Plan(cut_for_tasks(logs, [one for one in present if len(one)], wanted.portions), ends)


def cut_for_tasks(logs: Logs, ranges: list[OffsetRange], portions: Portions) -> list[OffsetRange]:
    """As many tasks as were asked for, and none that is much larger than the others."""
    sizes = logs.record_bytes() if sum(map(len, ranges)) >= _WORTH_CUTTING else None
    return cut(
        ranges,
        at_least=portions.tasks_at_least,
        max_records=portions.task_records,
        max_bytes=None if sizes is None else portions.task_bytes,
        record_bytes=1.0 if sizes is None else sizes,
    )


def _present(logs: Logs, wanted: Wanted, ranges: list[OffsetRange]) -> list[OffsetRange]:
    """The ranges as far as the logs still have them: the rest is an error, or told and left out."""
    partitions = [one.topic_partition for one in ranges if len(one)]
    first, last = logs.at(End.EARLIEST, partitions), logs.at(End.LATEST, partitions)
    present = []
    for one in ranges:
        at = one.topic_partition
        if at not in first:
            present.append(one)
            continue
        if one.start < first[at]:
            lost, reason = (one.start, min(one.stop, first[at])), "they are older than what the topic keeps"
        elif one.stop > last[at]:
            lost, reason = (max(one.start, last[at]), one.stop), f"the log ends at {last[at]}"
        else:
            present.append(one)
            continue
        if wanted.on_lost is OnLost.ERROR:
            raise OffsetsLost(*at, start=lost[0], stop=lost[1], resume=first[at], reason=reason)
        _log.warning("%s: offsets [%d, %d) are left out: %s", at, *lost, reason)
        start = min(max(one.start, first[at]), one.stop)
        present.append(OffsetRange(*at, start, max(start, min(one.stop, last[at]))))
    return present
