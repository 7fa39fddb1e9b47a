# ruff: noqa: N802 - the names are Spark's
"""The lag of streaming queries, as events: a listener for Spark's progress reports.

Progress reports come in on the driver after every batch, including the last one; `BatchDone` and `LagMeasured` events
go out. The listener can also commit the progress for a consumer group. It estimates lag in seconds from when the end of
each log passed an offset, so it sends no request to measure it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from ottla.admin.committed import Committed, commit
from ottla.errors import ConfigError, OttlaError
from ottla.events import BatchDone, Events, LagMeasured, Sink
from ottla.model import GroupMember, TopicPartition
from ottla.net.access import ClusterAccess
from ottla.net.deadline import Deadline
from ottla.spark.offsets import Offsets
from ottla.spark.options import cluster_access
from ottla.spark.stream_position import offsets_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_COMMIT_SECONDS = 10.0
_REMEMBERED = 512
"""Observations kept per partition: enough for a lag of hours of batches."""
_log = logging.getLogger(__name__)


class EndHistory:
    """Where the end of one log was, and when. Pure: times come in as arguments."""

    def __init__(self) -> None:
        self._observed: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)

    def add(self, end: int, now: float) -> None:
        """Record that the log ends at `end` now."""
        if self._observed and end < self._observed[-1][1]:
            self._observed.clear()  # the topic was deleted and created again
        self._observed.append((now, end))

    def seconds_behind(self, offset: int, now: float) -> float:
        """Seconds since the end of the log passed `offset`, 0 if it has not. Interpolates between observations.

        For records older than the first observation, this is the time since that observation: a lower bound.
        """
        if not self._observed or self._observed[-1][1] <= offset:
            return 0.0
        earlier_time, earlier_end = self._observed[0]
        if earlier_end > offset:
            return now - earlier_time
        for moment, end in self._observed:
            if end > offset:
                fraction = (offset - earlier_end) / (end - earlier_end)
                return now - (earlier_time + fraction * (moment - earlier_time))
            earlier_time, earlier_end = moment, end
        return 0.0


class LagListener(StreamingQueryListener):
    """`spark.streams.addListener(LagListener(events))`: emits the lag of all queries that read with `ottla`.

    `events` is a hub or a sink. `commit` takes options of the source (`kafka.bootstrap.servers` and the like, and
    `commitGroup`). With it, the listener commits the end of every batch for that group at once; the source itself does
    so only when the next batch begins. `query` restricts this to the query of that name. `clock` returns seconds since
    1970. Raises `ConfigError` if `commit` has no `commitGroup` or a wrong option.
    """

    def __init__(
        self,
        events: Events | Sink,
        *,
        commit: Mapping[str, str] | None = None,
        query: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._events = events if isinstance(events, Events) else Events(events)
        self._group, self._access = _group_and_access(commit)
        self._query = query
        self._clock = clock
        self._lock = threading.Lock()
        self._histories: dict[tuple[str, TopicPartition], EndHistory] = {}
        """By query id and partition."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to report yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Emit the events of a committed batch."""
        progress = event.progress
        query = progress.name or str(progress.id)
        seconds = progress.batchDuration / 1000
        rate = progress.numInputRows / seconds if seconds else 0.0
        self._events.emit(BatchDone(query, progress.batchId, progress.numInputRows, seconds, rate))
        for source in progress.sources:
            end, latest = _offsets(source.endOffset), _offsets(source.latestOffset)
            self._measure(str(progress.id), query, end, latest)
            if self._group is not None and self._query in (None, progress.name):
                self._publish(end)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to report."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Forget the query."""
        with self._lock:
            ended = str(event.id)
            self._histories = {key: history for key, history in self._histories.items() if key[0] != ended}

    def _measure(self, query_id: str, query: str, end: Offsets, latest: Offsets) -> None:
        now = self._clock()
        for partition, offset in sorted(end.items()):
            last = latest.get(partition, offset)
            with self._lock:
                history = self._histories.setdefault((query_id, partition), EndHistory())
                history.add(last, now)
                seconds = history.seconds_behind(offset, now)
            self._events.emit(LagMeasured(query, *partition, max(0, last - offset), seconds))

    def _publish(self, offsets: Offsets) -> None:
        assert self._group is not None
        assert self._access is not None
        committed = {partition: Committed(offset) for partition, offset in offsets.items()}
        try:
            with self._access.cluster() as cluster:
                commit(cluster, GroupMember(self._group), committed, deadline=Deadline.after(_COMMIT_SECONDS))
        except OttlaError as exc:
            _log.warning("cannot publish the progress as group %s: %s", self._group, exc)


def _group_and_access(options: Mapping[str, str] | None) -> tuple[str | None, ClusterAccess | None]:
    if options is None:
        return None, None
    group = next((value.strip() for name, value in options.items() if name.lower() == "commitgroup"), "")
    if not group:
        raise ConfigError("LagListener(commit=...) needs the option commitGroup with the name of a consumer group")
    return group, cluster_access(options)


def _offsets(text: Any) -> Offsets:
    """The offsets in a progress report; empty for other kinds of sources."""
    try:
        return offsets_of(json.loads(text)) if text else {}
    except (ValueError, TypeError, AttributeError):
        return {}
