"""Records that arrive after a batch query was planned: tasks that read from the planned ends to the current ends.

Spark plans a DataFrame once and reuses the plan, even if the same DataFrame is counted again an hour later. Everything
that existed at planning is in ordinary slices, the same for every use. This module covers the rest: the planned end of
each partition comes in; ranges that begin there go out, found by the task when it runs. The first of these tasks also
reads partitions that were added since, and new topics that match a pattern.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from ottla.errors import OffsetsLost
from ottla.fetch.options import OnLost
from ottla.model import OffsetRange, TopicPartition
from ottla.spark.offsets import Logs, Offsets
from ottla.spark.read_options import Assigned, Bound, End, FixedOffsets, ReadOptions, Times
from ottla.spark.read_task import shared_reader

_TASKS = 4
"""At the first use they find little or nothing, and a task costs about 20 ms."""
_EXECUTION = "spark.sql.execution.id"
_log = logging.getLogger(__name__)


class OpenEnd(InputPartition):
    """Partitions to read from their planned ends. Small, because it travels with every task.

    `known` are all planned partitions if this task also looks for new ones, otherwise None.
    """

    def __init__(self, ends: Mapping[TopicPartition, int], known: frozenset[TopicPartition] | None) -> None:
        super().__init__(ends)
        self.ends = ends
        self.known = known


def open_ends(options: ReadOptions, ends: Offsets) -> list[OpenEnd]:
    """The tasks for records that arrive later; none if the options fix where to end."""
    moving = [partition for partition, end in sorted(ends.items()) if _moves(options.stop, partition, end)]
    grows = not isinstance(options.subscription, Assigned) and not isinstance(options.stop, FixedOffsets)
    count = min(len(moving), _TASKS) or int(grows)
    return [
        OpenEnd(
            {partition: ends[partition] for partition in moving[number::count]},
            frozenset(ends) if grows and number == 0 else None,
        )
        for number in range(count)
    ]


def find_new_ranges(options: ReadOptions, open_end: OpenEnd) -> list[OffsetRange]:
    """In a task: the ranges that arrived after planning. Raises what `new_ranges` raises.

    Jobs outside a SQL execution (`df.rdd`) read only what was planned: Spark may recompute an RDD at any time and
    needs the same rows each time.
    """
    context = TaskContext.get()
    if context is None or context.getLocalProperty(_EXECUTION) is None:
        return []
    logs = Logs(shared_reader(options).cluster, options.subscription, isolation=options.isolation)
    return new_ranges(logs, options, open_end)


def new_ranges(logs: Logs, options: ReadOptions, open_end: OpenEnd) -> list[OffsetRange]:
    """The non-empty ranges after the planned ends.

    Raises `OffsetsLost` if a log is shorter than planned and that is an error.
    """
    existing = logs.partitions()
    added = [] if open_end.known is None else [tp for tp in existing if tp not in open_end.known]
    to_read = sorted({*open_end.ends, *added} & set(existing))
    stop = _stops(logs, options, to_read, existing)
    begin = {tp: open_end.ends[tp] for tp in to_read if tp in open_end.ends}
    if isinstance(options.start, Times):
        # If no record was new enough at planning, the range began at the end. The first record that is may come later.
        resolved = logs.resolve(options.start, list(begin), among=existing)
        begin = {tp: max(end, resolved[tp]) for tp, end in begin.items()}
    begin |= logs.resolve(options.start, added, among=existing)
    ranges = []
    for tp in to_read:
        if stop[tp] < open_end.ends.get(tp, 0):
            _lose(options, tp, stop[tp], open_end.ends[tp])
        elif begin[tp] < stop[tp]:
            ranges.append(OffsetRange(*tp, begin[tp], stop[tp]))
    return ranges


def _moves(stop: Bound, partition: TopicPartition, end: int) -> bool:
    """Whether the end may be elsewhere later. A fixed end may be beyond the log, and the log may still reach it."""
    return not isinstance(stop, FixedOffsets) or stop.offsets[partition] != end


def _stops(
    logs: Logs, options: ReadOptions, partitions: Collection[TopicPartition], existing: Collection[TopicPartition]
) -> Offsets:
    stop = logs.resolve(options.stop, partitions, among=existing)
    if not isinstance(options.stop, FixedOffsets):
        return stop
    last = logs.at(End.LATEST, partitions)
    return {partition: min(offset, last[partition]) for partition, offset in stop.items()}


def _lose(options: ReadOptions, partition: TopicPartition, stop: int, end: int) -> None:
    reason = f"the log now ends at {stop}: it was truncated, or the topic was deleted and created again"
    if options.on_lost is OnLost.ERROR:
        raise OffsetsLost(*partition, start=stop, stop=end, resume=stop, reason=reason)
    _log.warning("%s: offsets [%d, %d) are left out: %s", partition, stop, end, reason)
