"""A batch query: what lies between two places, planned on the driver and cut into tasks of about equal size.

What is wanted comes in; slices go out, then rows of each. Everything that can be known to be wrong is told while
planning, before a task starts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from ottla.errors import ConfigError, OffsetsLost
from ottla.fetch.options import OnLost
from ottla.model import OffsetRange
from ottla.plan import cut
from ottla.spark.offsets import Logs
from ottla.spark.pruning import Narrowing, take
from ottla.spark.reading import Slice, Task
from ottla.spark.wanted import End, Portions, Wanted

_WORTH_CUTTING = 50_000
"""Offsets: with fewer, a second task costs more than it saves, and nobody is asked how large records are."""
_log = logging.getLogger(__name__)


class _Unannounced:
    """A method `pushFilters` that looks as if it was not overridden.

    Spark refuses to read at all from a source that overrides it while spark.sql.python.filterPushdown.enabled is off,
    which is its default. Without filters everything is read and Spark filters, so there is nothing to refuse.
    """

    def __init__(self, function: Any) -> None:
        self._function = function

    def __get__(self, reader: Any, owner: type) -> Any:
        return _Bound(self._function, reader)


class _Bound:
    def __init__(self, function: Any, reader: Any) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._function = function
        self._reader = reader

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        left: Iterable[Filter] = self._function(self._reader, filters)
        return left


class BatchReader(DataSourceReader):
    """What Spark plans and reads a batch query with."""

    def __init__(self, wanted: Wanted, schema: StructType) -> None:
        self._task = Task(wanted, schema)
        self._narrowing = Narrowing()

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowing, left = take(filters)
        return left

    pushFilters: Any = _Unannounced(_push)  # noqa: N815

    def partitions(self) -> list[InputPartition]:
        """One slice for each task."""
        wanted = self._task.wanted
        with wanted.connection.cluster() as cluster:
            return [
                Slice(one)
                for one in plan(Logs(cluster, wanted.what, isolation=wanted.isolation), wanted, self._narrowing)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one slice."""
        return self._task.read(partition)


def plan(logs: Logs, wanted: Wanted, narrowing: Narrowing) -> list[OffsetRange]:
    """The ranges that a batch query reads, each for one task."""
    partitions = logs.partitions()
    start = logs.resolve(wanted.start, partitions)
    stop = logs.resolve(wanted.stop, partitions)
    ranges = []
    for at, first in start.items():
        if first > stop[at]:
            raise ConfigError(f"{at} would start at offset {first}, after its end {stop[at]}")
        ranges.append(OffsetRange(*at, first, stop[at]))
    narrowed = [one for one in narrowing.narrow(ranges) if len(one)]
    return cut_for_tasks(logs, _since(logs, narrowing, _present(logs, wanted, narrowed)), wanted.portions)


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
    partitions = [one.topic_partition for one in ranges]
    first, last = logs.at(End.EARLIEST, partitions), logs.at(End.LATEST, partitions)
    present = []
    for one in ranges:
        at = one.topic_partition
        if one.start < first[at]:
            lost, reason = (one.start, min(one.stop, first[at])), "they are older than what the topic keeps"
        elif one.stop > last[at]:
            lost, reason = (max(one.start, last[at]), one.stop), f"the log ends at {last[at]}"
        else:
            present.append(one)
            continue
        if wanted.on_lost is OnLost.ERROR:
            raise OffsetsLost(*at, start=lost[0], stop=lost[1], resume=first[at], reason=f"{reason} ({_HINT})")
        _log.warning("%s: offsets [%d, %d) are left out: %s", at, *lost, reason)
        start = min(max(one.start, first[at]), one.stop)
        present.append(OffsetRange(*at, start, max(start, min(one.stop, last[at]))))
    return present


_HINT = "option failOnDataLoss=false leaves them out"


def _since(logs: Logs, narrowing: Narrowing, ranges: list[OffsetRange]) -> list[OffsetRange]:
    if narrowing.since is None:
        return ranges
    found = logs.since(narrowing.since, [one.topic_partition for one in ranges])
    later = []
    for one in ranges:
        place = found[one.topic_partition]
        start = one.stop if place is None else min(max(one.start, place), one.stop)
        later.append(OffsetRange(one.topic, one.partition, start, one.stop))
    return later
