"""What comes after a batch query was planned: tasks that read on from there to where the logs end when they run.

Spark plans a DataFrame once and keeps the plan for all its uses, also where the same DataFrame is counted an hour
later. What was there at the planning is in slices of its own, the same in every use; here is the rest: where each
partition ended comes in, ranges go out that begin there, found by the task. Partitions that were added meanwhile, and
topics that fit a pattern, are read by the first of these tasks.
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
from ottla.spark.read_options import Assigned, End, Limit, Places, ReadOptions, Times
from ottla.spark.reading import client

_TASKS = 4
"""At the first use they find little or nothing, and a task costs some 20 ms."""
_EXECUTION = "spark.sql.execution.id"
_log = logging.getLogger(__name__)


class OpenEnd(InputPartition):
    """Partitions to be read on from where they ended; `known` are all that were planned, where others are looked for.

    A value, and small: it travels with every task.
    """

    def __init__(self, ends: Mapping[TopicPartition, int], known: frozenset[TopicPartition] | None) -> None:
        super().__init__(ends)
        self.ends = ends
        self.known = known


def open_ends(wanted: ReadOptions, ends: Offsets) -> list[OpenEnd]:
    """The tasks for what comes later, none where the options say once and for all where to end."""
    moving = [at for at, end in sorted(ends.items()) if _moves(wanted.stop, at, end)]
    grows = not isinstance(wanted.what, Assigned) and not isinstance(wanted.stop, Places)
    count = min(len(moving), _TASKS) or int(grows)
    return [
        OpenEnd({at: ends[at] for at in moving[number::count]}, frozenset(ends) if grows and number == 0 else None)
        for number in range(count)
    ]


def find_later(wanted: ReadOptions, one: OpenEnd) -> list[OffsetRange]:
    """In a task: what there is now of what came after the planning.

    Jobs outside of a SQL execution (`df.rdd`) read what was planned: an RDD is computed again and again, and must be
    the same each time.
    """
    context = TaskContext.get()
    if context is None or context.getLocalProperty(_EXECUTION) is None:
        return []
    logs = Logs(client(wanted).cluster, wanted.what, isolation=wanted.isolation)
    return later(logs, wanted, one)


def later(logs: Logs, wanted: ReadOptions, one: OpenEnd) -> list[OffsetRange]:
    """The ranges behind the ends that were planned, without empty ones."""
    there = logs.partitions()
    added = [] if one.known is None else [at for at in there if at not in one.known]
    wanted_now = sorted({*one.ends, *added} & set(there))
    stop = _stops(logs, wanted, wanted_now, there)
    begin = {at: one.ends[at] for at in wanted_now if at in one.ends}
    if isinstance(wanted.start, Times):  # where no record was as new, it may begin behind what came since
        found = logs.resolve(wanted.start, list(begin), among=there)
        begin = {at: max(end, found[at]) for at, end in begin.items()}
    begin |= logs.resolve(wanted.start, added, among=there)
    ranges = []
    for at in wanted_now:
        if stop[at] < one.ends.get(at, 0):
            _lose(wanted, at, stop[at], one.ends[at])
        elif begin[at] < stop[at]:
            ranges.append(OffsetRange(*at, begin[at], stop[at]))
    return ranges


def _moves(stop: Limit, at: TopicPartition, end: int) -> bool:
    """Whether a partition may end elsewhere later: also one whose end was beyond its log, which is allowed."""
    return not isinstance(stop, Places) or stop.offsets[at] != end


def _stops(
    logs: Logs, wanted: ReadOptions, partitions: Collection[TopicPartition], there: Collection[TopicPartition]
) -> Offsets:
    stop = logs.resolve(wanted.stop, partitions, among=there)
    if not isinstance(wanted.stop, Places):
        return stop
    last = logs.at(End.LATEST, partitions)
    return {at: min(offset, last[at]) for at, offset in stop.items()}


def _lose(wanted: ReadOptions, at: TopicPartition, stop: int, end: int) -> None:
    reason = f"the log ends at {stop} by now, it was cut back, or the topic was deleted and created again"
    if wanted.on_lost is OnLost.ERROR:
        raise OffsetsLost(*at, start=stop, stop=end, resume=stop, reason=reason)
    _log.warning("%s: offsets [%d, %d) are left out: %s", at, stop, end, reason)
