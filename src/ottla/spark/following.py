"""How far a streaming query may read next, and which ranges that is: the driver's side of a query, without Spark.

Offsets of the last batch come in, offsets and ranges of the next one go out. What happens to topics meanwhile
(partitions added, records gone, a topic deleted or created again) is noticed here, and is an error or is told, as the
query wants it; nothing is passed over in silence. What must survive a restart is in the marks that Spark keeps in its
checkpoint, not here.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from ottla.admin.committed import Committed, commit
from ottla.errors import ConfigError, OffsetsLost, OttlaError
from ottla.fetch.options import OnLost
from ottla.model import GroupMember, OffsetRange, TopicPartition
from ottla.net.deadline import Deadline
from ottla.net.metadata import Topic
from ottla.plan import limit, limit_bytes
from ottla.spark.batch_source import cut_for_tasks
from ottla.spark.marks import Mark
from ottla.spark.offsets import Logs, Offsets, is_gone
from ottla.spark.read_options import End, ReadOptions

_COMMIT_SECONDS = 10.0
"""Publishing progress must not hold the query up for long."""
_SECOND_LOOKS = 3
_BETWEEN_LOOKS = 0.3
"""Seconds. A new leader may not know the end of its log for a moment."""
_AGAIN = "the topic was deleted and created again"
_SHORTER = "the log was cut back: another broker became leader that did not have them"
_OTHER = "the log was cut back, or the topic was deleted and created again"
_NOWHERE = (
    "the first batch of this checkpoint is not finished, and where it began is not in it: it is that of Spark's Kafka"
    " connector, which keeps that elsewhere. Let the connector finish the batch, or begin with a new checkpointLocation"
)
_log = logging.getLogger(__name__)


class Follower:
    """One query. It owns nothing but what it remembers of earlier calls."""

    def __init__(self, logs: Logs, wanted: ReadOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logs = logs
        self._wanted = wanted
        self._clock = clock
        self._first: Mark | None = None
        self._until: _Sight | None = None
        self._stops = False
        self._ids: Mapping[str, str] = {}
        self._seen: Offsets = {}
        self._last_batch = -math.inf
        self._published: Offsets = {}

    @property
    def seen(self) -> Offsets:
        """Where the logs ended at the last look."""
        return self._seen

    def first(self) -> Mark:
        """Where a new query begins."""
        topics = self._logs.topics()
        offsets = self._logs.resolve(self._wanted.start, self._logs.partitions(topics))
        self._first = Mark(offsets, _ids(topics))
        return self._first

    def stop_at_present(self) -> None:
        """Batches end where the logs end now, from the next look on."""
        self._stops = True

    def latest(self, start: Mark, *, everything: bool) -> Mark:
        """Where the next batch ends, if it begins at `start`; `everything` sets the limits of the query aside."""
        self._check_same_topics(start)
        now = self._until or self._look(start)
        if self._stops:
            self._until = now
        self.publish(start)
        replaced = start.replaced_in(now.ids)
        for topic in sorted(replaced):
            self._lose(TopicPartition(topic, 0), 0, 0, 0, _AGAIN)
        begin = self._begin(start, now, replaced)
        end = now.offsets if everything else self._portion(begin, now.offsets)
        found = Mark(start.offsets, {**now.ids, **start.ids}) if end is None else Mark(end, now.ids)
        if start == self._first:
            return replace(found, begins=start.offsets) if self._is_passing() else found
        return start if found.same_place(start) else found

    def ranges(self, start: Mark, end: Mark) -> list[OffsetRange]:
        """What lies between two marks that `latest` gave, or an earlier run of the query, cut for tasks."""
        begin = end.begins or start.offsets
        if start == self._first and start.offsets and self._is_passing() and not end.begins:
            raise ConfigError(_NOWHERE)
        gone = sorted(begin.keys() - end.offsets.keys())
        if gone:
            self._lose(gone[0], begin[gone[0]], begin[gone[0]], 0, f"{_named(gone)} no longer there, or not subscribed")
        vanished = end.replaced_in(_ids(self._there()))
        for topic in sorted(vanished):
            at = TopicPartition(topic, 0)
            self._lose(at, begin.get(at, 0), end.offsets.get(at, 0), 0, _AGAIN)
        stops = {at: stop for at, stop in sorted(end.offsets.items()) if at.topic not in vanished}
        earliest = self._logs.at(End.EARLIEST, stops)
        replaced = start.replaced_in(end.ids)
        begin = {at: offset for at, offset in begin.items() if at.topic not in replaced}
        ranges = [
            self._range(at, begin.get(at), stop, earliest[at], same=_is_same(at, start, end))
            for at, stop in stops.items()
        ]
        return cut_for_tasks(self._logs, [one for one in ranges if len(one)], self._wanted.portions)

    def publish(self, mark: Mark) -> None:
        """Tells the group how far the query is. What goes wrong with that is told and does not end the query."""
        group = self._wanted.group
        replaced = mark.replaced_in(self._ids)
        new = {
            at: offset
            for at, offset in mark.offsets.items()
            if self._published.get(at) != offset and at.topic not in replaced
        }
        if group is None or not new or mark == self._first:
            return
        try:
            commit(
                self._logs.cluster,
                GroupMember(group),
                {at: Committed(offset) for at, offset in new.items()},
                deadline=Deadline.after(_COMMIT_SECONDS),
            )
        except OttlaError as exc:
            _log.warning("the progress of the query was not published as group %s: %s", group, exc)
            return
        self._published.update(new)

    # What is there

    def _look(self, start: Mark) -> _Sight:
        """Where the logs end."""
        topics = self._there()
        self._ids = _ids(topics)
        partitions = self._logs.partitions(topics)
        replaced = start.replaced_in(self._ids)
        end = self._logs.at(End.LATEST, partitions)
        for _ in range(_SECOND_LOOKS):
            if all(end.get(at, offset) >= offset for at, offset in start.offsets.items() if at.topic not in replaced):
                break
            time.sleep(_BETWEEN_LOOKS)
            end = self._logs.at(End.LATEST, partitions)
        self._seen = end
        return _Sight(end, self._ids)

    def _there(self) -> dict[str, Topic]:
        try:
            return self._logs.topics()
        except OttlaError as exc:
            if not is_gone(exc) or self._wanted.on_lost is OnLost.ERROR:
                raise
            _log.warning("a topic of the query is gone: %s", exc)
            return self._logs.topics_there()

    def _check_same_topics(self, start: Mark) -> None:
        """A checkpoint of other topics is a mistake, not a loss."""
        named = sorted({at.topic for at in start.offsets})
        if named and not any(self._logs.subscribed(topic) for topic in named):
            raise ConfigError(
                f"the checkpoint is that of a query on {', '.join(named)}, none of which is read now:"
                " give this query a checkpointLocation of its own"
            )

    def _is_passing(self) -> bool:
        """Whether the same option would mean other offsets later; the beginning of a log seldom moves."""
        return self._wanted.start is not End.EARLIEST

    # How much of it

    def _begin(self, start: Mark, now: _Sight, replaced: Collection[str]) -> Offsets:
        """Where each partition is really read from: new ones, and those of topics created again, from their start."""
        begun: Offsets = {}
        for at, last in now.offsets.items():
            offset = start.offsets.get(at)
            if offset is not None and at.topic not in replaced and (offset <= last or at.topic in start.ids):
                begun[at] = min(offset, last)
        return begun | self._logs.at(End.EARLIEST, [at for at in now.offsets if at not in begun])

    def _portion(self, begin: Offsets, end: Offsets) -> Offsets | None:
        """The end of the next batch, None where it should wait for more."""
        portions = self._wanted.portions
        now = self._clock()
        waiting = sum(max(0, stop - begin[at]) for at, stop in end.items())
        early = now - self._last_batch < portions.max_delay
        if portions.min_records is not None and waiting < portions.min_records and early:
            return None
        self._last_batch = now
        if portions.max_records is not None:
            end = limit(begin, end, portions.max_records)
        if portions.max_bytes is not None:
            sizes = self._logs.record_bytes()
            if sizes is None:
                raise ConfigError("option maxBytesPerTrigger needs the sizes of partitions, which brokers do not tell")
            end = limit_bytes(begin, end, portions.max_bytes, sizes)
        return end

    # What is lost

    def _range(self, at: TopicPartition, start: int | None, stop: int, earliest: int, *, same: bool) -> OffsetRange:
        if start is None:
            if earliest > 0:
                self._lose(at, 0, earliest, earliest, "the partition is new, and its first records are gone already")
            begin = earliest
        elif stop < start:
            self._lose(at, stop, start, stop if same else earliest, _SHORTER if same else _OTHER)
            begin = stop if same else earliest
        elif start < earliest and start < stop:
            self._lose(at, start, min(stop, earliest), earliest, "they are older than what the topic keeps")
            begin = earliest
        else:
            begin = start
        return OffsetRange(*at, min(begin, stop), stop)

    def _lose(self, at: TopicPartition, start: int, stop: int, resume: int, reason: str) -> None:
        if self._wanted.on_lost is OnLost.ERROR:
            raise OffsetsLost(*at, start=start, stop=stop, resume=resume, reason=reason)
        _log.warning("%s: offsets [%d, %d) are lost: %s; going on at %d", at, start, stop, reason, resume)


class _Sight(NamedTuple):
    """Where the logs ended at a look, and which they were."""

    offsets: Offsets
    ids: Mapping[str, str]


def _ids(topics: Mapping[str, Topic]) -> dict[str, str]:
    return {name: topic.id.hex for name, topic in topics.items() if topic.id is not None}


def _is_same(at: TopicPartition, start: Mark, end: Mark) -> bool:
    """Whether both marks are known to be of one log."""
    return at.topic in start.ids and start.ids[at.topic] == end.ids.get(at.topic)


def _named(partitions: list[TopicPartition]) -> str:
    some = ", ".join(map(str, partitions[:5]))
    return f"{some}{' and more' if len(partitions) > 5 else ''} {'are' if len(partitions) > 1 else 'is'}"
