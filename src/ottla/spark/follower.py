"""The driver's side of a streaming query, without Spark: how far to read next, and which ranges that is.

The position after the last batch comes in; the position and the ranges of the next batch go out. Changes to topics
(partitions added, records gone, a topic deleted or created again) are detected here and are an error or a warning, as
the query's options say; none goes unnoticed. Anything that must survive a restart is in the positions that Spark keeps
in its checkpoint, never in this object.
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
from ottla.spark.offsets import Logs, Offsets, is_unknown_topic
from ottla.spark.read_options import End, ReadOptions
from ottla.spark.stream_position import StreamPosition

_COMMIT_SECONDS = 10.0
"""Publishing progress must not delay the query for long."""
_SECOND_LOOKS = 3
_BETWEEN_LOOKS = 0.3
"""Seconds. A new leader may not know the end of its log for a moment."""
_RECREATED = "the topic was deleted and created again"
_TRUNCATED = "the log was truncated: a broker became leader that did not have them"
_TRUNCATED_OR_RECREATED = "the log was truncated, or the topic was deleted and created again"
_UNKNOWN_BEGINNING = (
    "the first batch of this checkpoint is not finished, and the checkpoint does not say where it began: it was written"
    " by Spark's Kafka connector, which stores that elsewhere. Let the connector finish the batch, or start with a new"
    " checkpointLocation"
)
_log = logging.getLogger(__name__)


class Follower:
    """Plans the batches of one query. It holds only what it remembers from earlier calls.

    Methods also raise the errors of `Logs` when brokers fail.
    """

    def __init__(self, logs: Logs, options: ReadOptions, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._logs = logs
        self._options = options
        self._clock = clock
        self._first: StreamPosition | None = None
        self._final: _LogEnds | None = None
        self._stops = False
        self._ids: Mapping[str, str] = {}
        self._log_ends: Offsets = {}
        self._last_batch = -math.inf
        self._published: Offsets = {}

    @property
    def log_ends(self) -> Offsets:
        """Where the logs ended at the last look."""
        return self._log_ends

    def first(self) -> StreamPosition:
        """Where a new query begins. Raises `ConfigError` if the start option does not fit the partitions."""
        topics = self._logs.topics()
        offsets = self._logs.resolve(self._options.start, self._logs.partitions(topics))
        self._first = StreamPosition(offsets, _ids(topics))
        return self._first

    def stop_at_present(self) -> None:
        """End all batches where the logs end at the next look."""
        self._stops = True

    def latest(self, start: StreamPosition, *, everything: bool) -> StreamPosition:
        """Where the next batch ends if it begins at `start`. `everything` ignores the query's limits.

        Raises `ConfigError` if the checkpoint is of other topics, and `OffsetsLost` if a topic was recreated and loss
        is an error.
        """
        self._check_same_topics(start)
        now = self._final or self._look(start)
        if self._stops:
            self._final = now
        self.publish(start)
        recreated = start.replaced_in(now.ids)
        for topic in sorted(recreated):
            self._lose(TopicPartition(topic, 0), 0, 0, 0, _RECREATED)
        begin = self._begin(start, now, recreated)
        end = now.offsets if everything else self._limited(begin, now.offsets)
        if end is None:
            position = StreamPosition(start.offsets, {**now.ids, **start.ids})
        else:
            position = StreamPosition(end, now.ids)
        if start == self._first:
            return replace(position, begins=start.offsets) if self._start_may_move() else position
        # Spark compares positions as text: return the same one if nothing changed, or it would run an empty batch.
        return start if position.same_place(start) else position

    def ranges(self, start: StreamPosition, end: StreamPosition) -> list[OffsetRange]:
        """The ranges between two positions, cut for tasks. The positions may come from an earlier run of the query.

        Raises `OffsetsLost` if records are gone and that is an error, and `ConfigError` if the checkpoint does not say
        where the first batch began.
        """
        begin = end.begins or start.offsets
        if start == self._first and start.offsets and self._start_may_move() and not end.begins:
            raise ConfigError(_UNKNOWN_BEGINNING)
        gone = sorted(begin.keys() - end.offsets.keys())
        if gone:
            self._lose(
                gone[0], begin[gone[0]], begin[gone[0]], 0, f"{_listed(gone)} no longer there, or not subscribed"
            )
        recreated_since = end.replaced_in(_ids(self._topics()))
        for topic in sorted(recreated_since):
            tp = TopicPartition(topic, 0)
            self._lose(tp, begin.get(tp, 0), end.offsets.get(tp, 0), 0, _RECREATED)
        stops = {tp: stop for tp, stop in sorted(end.offsets.items()) if tp.topic not in recreated_since}
        earliest = self._logs.at(End.EARLIEST, stops)
        recreated = start.replaced_in(end.ids)
        begin = {tp: offset for tp, offset in begin.items() if tp.topic not in recreated}
        ranges = [
            self._range(tp, begin.get(tp), stop, earliest[tp], same_log=_is_same_log(tp, start, end))
            for tp, stop in stops.items()
        ]
        return cut_for_tasks(self._logs, [item for item in ranges if len(item)], self._options.limits)

    def publish(self, position: StreamPosition) -> None:
        """Commit the position for the query's group, if it has one. Errors are logged and do not end the query."""
        group = self._options.group
        recreated = position.replaced_in(self._ids)
        new = {
            tp: offset
            for tp, offset in position.offsets.items()
            if self._published.get(tp) != offset and tp.topic not in recreated
        }
        if group is None or not new or position == self._first:
            return
        try:
            commit(
                self._logs.cluster,
                GroupMember(group),
                {tp: Committed(offset) for tp, offset in new.items()},
                deadline=Deadline.after(_COMMIT_SECONDS),
            )
        except OttlaError as exc:
            _log.warning("cannot publish the progress of the query as group %s: %s", group, exc)
            return
        self._published.update(new)

    # Topics and ends of logs

    def _look(self, start: StreamPosition) -> _LogEnds:
        """Find out where the logs end."""
        topics = self._topics()
        self._ids = _ids(topics)
        partitions = self._logs.partitions(topics)
        recreated = start.replaced_in(self._ids)
        ends = self._logs.at(End.LATEST, partitions)
        for _ in range(_SECOND_LOOKS):
            if all(ends.get(tp, offset) >= offset for tp, offset in start.offsets.items() if tp.topic not in recreated):
                break
            time.sleep(_BETWEEN_LOOKS)
            ends = self._logs.at(End.LATEST, partitions)
        self._log_ends = ends
        return _LogEnds(ends, self._ids)

    def _topics(self) -> dict[str, Topic]:
        try:
            return self._logs.topics()
        except OttlaError as exc:
            if not is_unknown_topic(exc) or self._options.on_lost is OnLost.ERROR:
                raise
            _log.warning("a topic of the query is gone: %s", exc)
            return self._logs.existing_topics()

    def _check_same_topics(self, start: StreamPosition) -> None:
        """Refuse the checkpoint of a query on other topics: that is a mistake, not a loss of records."""
        named = sorted({tp.topic for tp in start.offsets})
        if named and not any(self._logs.subscribed(topic) for topic in named):
            raise ConfigError(
                f"the checkpoint belongs to a query on {', '.join(named)}; this query reads none of these topics:"
                " give it its own checkpointLocation"
            )

    def _start_may_move(self) -> bool:
        """Whether the start option would mean other offsets later. The beginning of a log seldom moves."""
        return self._options.start is not End.EARLIEST

    # Size of the next batch

    def _begin(self, start: StreamPosition, now: _LogEnds, recreated: Collection[str]) -> Offsets:
        """Where each partition is really read from: new ones and those of recreated topics, from their beginning."""
        begin: Offsets = {}
        for tp, last in now.offsets.items():
            offset = start.offsets.get(tp)
            if offset is not None and tp.topic not in recreated and (offset <= last or tp.topic in start.ids):
                begin[tp] = min(offset, last)
        return begin | self._logs.at(End.EARLIEST, [tp for tp in now.offsets if tp not in begin])

    def _limited(self, begin: Offsets, end: Offsets) -> Offsets | None:
        """The end of the next batch within the query's limits; None if it should wait for more records."""
        limits = self._options.limits
        now = self._clock()
        backlog = sum(max(0, stop - begin[tp]) for tp, stop in end.items())
        is_early = now - self._last_batch < limits.max_delay
        if limits.min_records is not None and backlog < limits.min_records and is_early:
            return None
        self._last_batch = now
        if limits.max_records is not None:
            end = limit(begin, end, limits.max_records)
        if limits.max_bytes is not None:
            sizes = self._logs.record_bytes()
            if sizes is None:
                raise ConfigError(
                    "option maxBytesPerTrigger needs partition sizes, and the brokers do not report them: allow this"
                    " user to describe the cluster, or use maxOffsetsPerTrigger"
                )
            end = limit_bytes(begin, end, limits.max_bytes, sizes)
        return end

    # Lost records

    def _range(self, tp: TopicPartition, start: int | None, stop: int, earliest: int, *, same_log: bool) -> OffsetRange:
        if start is None:
            if earliest > 0:
                self._lose(tp, 0, earliest, earliest, "the partition is new, and its first records are gone already")
            begin = earliest
        elif stop < start:
            reason = _TRUNCATED if same_log else _TRUNCATED_OR_RECREATED
            self._lose(tp, stop, start, stop if same_log else earliest, reason)
            begin = stop if same_log else earliest
        elif start < earliest and start < stop:
            self._lose(tp, start, min(stop, earliest), earliest, "they are older than what the topic keeps")
            begin = earliest
        else:
            begin = start
        return OffsetRange(*tp, min(begin, stop), stop)

    def _lose(self, tp: TopicPartition, start: int, stop: int, resume: int, reason: str) -> None:
        if self._options.on_lost is OnLost.ERROR:
            raise OffsetsLost(*tp, start=start, stop=stop, resume=resume, reason=reason)
        _log.warning("%s: offsets [%d, %d) are lost: %s; resuming at %d", tp, start, stop, reason, resume)


class _LogEnds(NamedTuple):
    """Where the logs ended at a look, and the ids of their topics."""

    offsets: Offsets
    ids: Mapping[str, str]


def _ids(topics: Mapping[str, Topic]) -> dict[str, str]:
    return {name: topic.id.hex for name, topic in topics.items() if topic.id is not None}


def _is_same_log(tp: TopicPartition, start: StreamPosition, end: StreamPosition) -> bool:
    """Whether both positions are known to be in the same log."""
    return tp.topic in start.ids and start.ids[tp.topic] == end.ids.get(tp.topic)


def _listed(partitions: list[TopicPartition]) -> str:
    first_few = ", ".join(map(str, partitions[:5]))
    return f"{first_few}{' and more' if len(partitions) > 5 else ''} {'are' if len(partitions) > 1 else 'is'}"
