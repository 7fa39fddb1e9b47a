"""Plans a call of a reader: topics with bounds, or ranges, come in; a cursor for each partition goes out.

Everything is planned as the brokers say at this moment, never from cached metadata: a partition that is missing here
would be missing from a proof. It reads no records.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from ottla import events
from ottla.errors import InputError, OffsetsLost
from ottla.events import Events
from ottla.fetch import bounds, losses
from ottla.fetch.bounds import Bound
from ottla.fetch.cursor import Cursor
from ottla.fetch.options import OnLost
from ottla.model import Isolation, OffsetRange, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline

What = str | Iterable[str] | OffsetRange | Iterable[OffsetRange]
"""Topics by name, or offset ranges."""
Ids = Mapping[str, UUID | None]
"""Topic ids by name."""


class ReadPlan(NamedTuple):
    """What a call reads. Partitions that are added later to `followed` topics are read, too."""

    cursors: list[Cursor]
    followed: frozenset[str] = frozenset()


class ReadPlanner:
    """Plans with the settings of one reader."""

    def __init__(self, cluster: Cluster, *, isolation: Isolation, on_lost: OnLost, events: Events) -> None:
        self._cluster = cluster
        self._isolation = isolation
        self._on_lost = on_lost
        self._events = events

    def plan(
        self,
        what: What,
        start: Bound,
        stop: Bound | None,
        partitions: Collection[int] | None,
        deadline: Deadline,
    ) -> ReadPlan:
        """Plan a call. Raises `InputError` if an argument is wrong, and `OffsetsLost` if a start is past the end."""
        sources = [what] if isinstance(what, str | OffsetRange) or not isinstance(what, Iterable) else list(what)
        ranges = [source for source in sources if isinstance(source, OffsetRange)]
        names = [source for source in sources if isinstance(source, str)]
        if len(ranges) == len(sources):
            if (start, stop, partitions) != ("earliest", "latest", None):
                raise InputError("a range has its own start and stop: leave out start, stop and partitions")
            return ReadPlan(_cursors(ranges, {}))  # no ids: a range belongs to the topic that has the name now
        if len(names) != len(sources):
            raise InputError(f"what to read is {what!r}; accepted are names of topics, or OffsetRange values")
        if stop is not None:
            return ReadPlan(_cursors(*self.between(names, start, stop, partitions, deadline)))
        bounds.check(start, "start")
        selected, ids = self._partitions(names, partitions, start, deadline)
        starts = self._resolve(selected, start, ids, deadline)
        cursors = [Cursor(tp, offset, topic_id=ids[tp.topic]) for tp, offset in starts.items()]
        is_whole = partitions is None and bounds.named_partitions(start) is None
        return ReadPlan(cursors, frozenset(names) if is_whole else frozenset())

    def offsets(self, topic: str, at: Bound, deadline: Deadline) -> dict[TopicPartition, int]:
        """Return the offset of a bound in each partition. Raises `InputError` if it is not a bound."""
        bounds.check(at, "at")
        selected, ids = self._partitions([topic], None, at, deadline)
        return self._resolve(selected, at, ids, deadline)

    def between(
        self,
        names: Collection[str],
        start: Bound,
        stop: Bound,
        partitions: Collection[int] | None,
        deadline: Deadline,
    ) -> tuple[list[OffsetRange], Ids]:
        """Return a range for each partition, and the ids of the topics. Raises as `plan` does."""
        bounds.check(start, "start")
        bounds.check(stop, "stop")
        if isinstance(start, int) and isinstance(stop, int) and stop < start:
            raise InputError(f"stop {stop} lies before start {start}")
        selected, ids = self._partitions(names, partitions, start, deadline)
        # Starts first: logs grow meanwhile, and a "latest" that is looked up later is never before an earlier one.
        starts = self._resolve(selected, start, ids, deadline)
        stops = self._resolve(selected, stop, ids, deadline)
        # A log may end before a stop that is an offset, and each partition is to be compared with one start for all.
        is_known = isinstance(stop, str | datetime) or not isinstance(start, int)
        beyond = self._beyond_end(start, starts, stops if is_known else {}, deadline)
        if isinstance(start, int) and len(beyond) < len(starts):
            stops |= {entry.partition: entry.offset for entry in beyond}  # some partition has it: nothing to read here
        else:
            # The others are read, and reading reports them.
            self._report_beyond_end(entry for entry in beyond if entry.offset > stops[entry.partition])
        return bounds.ranges_between(starts, stops), ids

    def _beyond_end(
        self,
        bound: Bound,
        starts: Mapping[TopicPartition, int],
        reached: Mapping[TopicPartition, int],
        deadline: Deadline,
    ) -> list[bounds.BeyondEnd]:
        """Return the starts behind the end of their logs. Those that are `reached` by partition are not asked for."""
        suspects = {tp: offset for tp, offset in starts.items() if offset > reached.get(tp, 0)}
        if not suspects or isinstance(bound, str | datetime):
            return []
        return bounds.beyond_end(self._cluster, suspects, deadline=deadline)

    def _report_beyond_end(self, starts: Iterable[bounds.BeyondEnd]) -> None:
        """Report starts behind the end of their logs like any other loss: nothing is read there."""
        for partition, offset, extent in starts:
            loss = losses.outside(Cursor(partition, offset), extent, self._on_lost)
            if loss is None:
                continue
            if self._on_lost is OnLost.ERROR:
                raise OffsetsLost(*partition, start=loss.start, stop=loss.stop, resume=loss.resume, reason=loss.reason)
            self._events.emit(events.RangeLost(*partition, loss.start, loss.stop, offset, loss.reason))

    def _partitions(
        self, topics: Collection[str], only: Collection[int] | None, bound: Bound, deadline: Deadline
    ) -> tuple[list[TopicPartition], Ids]:
        """Return the partitions to read, as the brokers have them now, and the ids of the topics."""
        named = bounds.named_partitions(bound)
        if only is not None and not isinstance(only, Collection):
            raise InputError(f"partitions is {only!r}; accepted is a collection of numbers, for example [0, 1]")
        selected: list[TopicPartition] = []
        metadata = self._cluster.topics(topics, deadline=deadline)
        ids = {name: topic.id for name, topic in metadata.items()}
        for name in topics:
            indexes = [partition.index for partition in metadata[name].partitions]
            missing = sorted(set(only or ()) - set(indexes))
            if missing:
                raise InputError(f"topic {name} has no partition {', '.join(map(str, missing))}; it has {len(indexes)}")
            selected += [TopicPartition(name, index) for index in indexes if only is None or index in only]
        if named is None:
            return selected, ids
        unknown = sorted(map(str, named - {*selected, *(tp.partition for tp in selected)}))
        if unknown:
            raise InputError(f"offsets are given for {', '.join(unknown)}, which is no partition of what is read")
        return [tp for tp in selected if tp in named or tp.partition in named], ids

    def _resolve(
        self, partitions: Collection[TopicPartition], bound: Bound, ids: Ids, deadline: Deadline
    ) -> dict[TopicPartition, int]:
        return bounds.resolve(self._cluster, partitions, bound, isolation=self._isolation, ids=ids, deadline=deadline)


def _cursors(ranges: Iterable[OffsetRange], ids: Ids) -> list[Cursor]:
    """Return a cursor for each range. A partition may have only one: two would be read at the same time."""
    cursors = [
        Cursor(span.topic_partition, span.start, span.stop, topic_id=ids.get(span.topic)) for span in sorted(ranges)
    ]
    for before, after in itertools.pairwise(cursors):
        if before.tp == after.tp:
            raise InputError(f"{before.tp} is named twice: read its ranges one after the other, or as one range")
    return cursors
