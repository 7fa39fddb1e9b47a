"""What a call of a reader reads: topics and places, or ranges, come in; cursors, one for each partition, go out.

Everything is as the brokers say at this moment, not as it is remembered: what is missing here is missing from a proof.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping
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
"""Of topics, by name."""


class ReadPlan(NamedTuple):
    """What a call reads. Of the topics that are `followed`, partitions that are added later, too."""

    cursors: list[Cursor]
    followed: frozenset[str] = frozenset()


class ReadPlanner:
    """With the settings of one reader."""

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
        """The cursors of a call."""
        given = [what] if isinstance(what, str | OffsetRange) or not isinstance(what, Iterable) else list(what)
        ranges = [one for one in given if isinstance(one, OffsetRange)]
        names = [one for one in given if isinstance(one, str)]
        if len(ranges) == len(given):
            if (start, stop, partitions) != ("earliest", "latest", None):
                raise InputError("ranges say where to start and stop themselves: leave out start, stop and partitions")
            return ReadPlan(_apart(ranges, {}))
        if len(names) != len(given):
            raise InputError(f"what to read is {what!r}; accepted are names of topics, or OffsetRange values")
        if stop is not None:
            return ReadPlan(_apart(*self.between(names, start, stop, partitions, deadline)))
        bounds.check(start, "start")
        wanted, ids = self._partitions(names, partitions, start, deadline)
        starts = self._resolve(wanted, start, ids, deadline)
        cursors = [Cursor(at, offset, topic_id=ids[at.topic]) for at, offset in starts.items()]
        whole = partitions is None and bounds.mentioned(start) is None
        return ReadPlan(cursors, frozenset(names) if whole else frozenset())

    def offsets(self, topic: str, at: Bound, deadline: Deadline) -> dict[TopicPartition, int]:
        """Where a place is in each partition."""
        bounds.check(at, "at")
        wanted, ids = self._partitions([topic], None, at, deadline)
        return self._resolve(wanted, at, ids, deadline)

    def between(
        self,
        names: Collection[str],
        start: Bound,
        stop: Bound,
        partitions: Collection[int] | None,
        deadline: Deadline,
    ) -> tuple[list[OffsetRange], Ids]:
        """A range for each partition, and of which topics they are."""
        bounds.check(start, "start")
        bounds.check(stop, "stop")
        if isinstance(start, int) and isinstance(stop, int) and stop < start:
            raise InputError(f"stop {stop} lies before start {start}")
        wanted, ids = self._partitions(names, partitions, start, deadline)
        starts = self._resolve(wanted, start, ids, deadline)
        stops = self._resolve(wanted, stop, ids, deadline)
        self._tell_beyond(bounds.beyond(self._cluster, start, starts, stops, deadline=deadline))
        return bounds.span(starts, stops), ids

    def _tell_beyond(self, lost: Iterable[bounds.Beyond]) -> None:
        """Nothing is read where a log has ended before; that is told as any other loss."""
        for at, offset, ends in lost:
            loss = losses.outside(Cursor(at, offset), ends, self._on_lost)
            if loss is None:
                continue
            if self._on_lost is OnLost.ERROR:
                raise OffsetsLost(*at, start=loss.start, stop=loss.stop, resume=loss.resume, reason=loss.reason)
            self._events.emit(events.RangeLost(*at, loss.start, loss.stop, offset, loss.reason))

    def _partitions(
        self, topics: Collection[str], only: Collection[int] | None, place: Bound, deadline: Deadline
    ) -> tuple[list[TopicPartition], Ids]:
        """As the brokers have them now: one that is missing here would be missing from a proof."""
        named = bounds.mentioned(place)
        if only is not None and not isinstance(only, Collection):
            raise InputError(f"partitions is {only!r}; accepted is a collection of numbers, for example [0, 1]")
        found: list[TopicPartition] = []
        present = self._cluster.topics(topics, deadline=deadline)
        ids = {name: topic.id for name, topic in present.items()}
        for name in topics:
            there = [partition.index for partition in present[name].partitions]
            missing = sorted(set(only or ()) - set(there))
            if missing:
                raise InputError(f"topic {name} has no partition {', '.join(map(str, missing))}; it has {len(there)}")
            found += [TopicPartition(name, index) for index in there if only is None or index in only]
        if named is None:
            return found, ids
        unknown = sorted(map(str, named - {*found, *(at.partition for at in found)}))
        if unknown:
            raise InputError(f"offsets are given for {', '.join(unknown)}, which is no partition of what is read")
        return [at for at in found if at in named or at.partition in named], ids

    def _resolve(
        self, wanted: Collection[TopicPartition], place: Bound, ids: Ids, deadline: Deadline
    ) -> dict[TopicPartition, int]:
        return bounds.resolve(self._cluster, wanted, place, isolation=self._isolation, ids=ids, deadline=deadline)


def _apart(ranges: Iterable[OffsetRange], ids: Ids) -> list[Cursor]:
    """A cursor for each range; two ranges of one partition would have to be one cursor after the other."""
    cursors = [Cursor(one.topic_partition, one.start, one.stop, topic_id=ids.get(one.topic)) for one in sorted(ranges)]
    for before, after in itertools.pairwise(cursors):
        if before.at == after.at:
            raise InputError(f"{before.at} is named twice: read its ranges one after the other, or as one range")
    return cursors
