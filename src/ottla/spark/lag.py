# ruff: noqa: N802 - the names are Spark's
"""How far streaming queries are behind, as events: a listener for Spark's progress reports.

Progress comes in after every batch, also the last one, in the driver's own process; `BatchDone` and `LagMeasured` go
out, and the progress is published as a consumer group where one is given. Lag in seconds is estimated from when the
ends of the logs were seen to pass an offset: brokers are asked nothing for it.
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
from ottla.net.deadline import Deadline
from ottla.spark.marks import offsets_of
from ottla.spark.offsets import Offsets
from ottla.spark.options import Connection, connection

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_COMMIT_SECONDS = 10.0
_REMEMBERED = 512
"""Sights of the end of a log that are kept for each partition: enough for hours of batches behind."""
_log = logging.getLogger(__name__)


class Sights:
    """When the end of one log was where. Pure: times come in as arguments."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=_REMEMBERED)

    def see(self, end: int, now: float) -> None:
        """The log ends at `end` now."""
        if self._seen and end < self._seen[-1][1]:
            self._seen.clear()  # the topic was created anew
        self._seen.append((now, end))

    def behind(self, offset: int, now: float) -> float:
        """Seconds since the end of the log passed `offset`, 0 if it has not; between two sights it moved evenly.

        For what was written before the first sight: since that one, at least.
        """
        if not self._seen or self._seen[-1][1] <= offset:
            return 0.0
        earlier = self._seen[0]
        if earlier[1] > offset:
            return now - earlier[0]
        for moment, end in self._seen:
            if end > offset:
                share = (offset - earlier[1]) / (end - earlier[1])
                return now - (earlier[0] + share * (moment - earlier[0]))
            earlier = (moment, end)
        return 0.0


class LagListener(StreamingQueryListener):
    """`spark.streams.addListener(LagListener(events))`: tells the lag of all queries that read with `ottla`.

    `events` is a hub or a sink. `commit` are options of a source (`kafka.bootstrap.servers` and the like, and
    `commitGroup`): the end of every batch is then committed for that group at once; the source itself does so when the
    next batch begins. `query` limits that to the query of this name.
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
        self._group, self._connection = _publishing(commit)
        self._query = query
        self._clock = clock
        self._lock = threading.Lock()
        self._sights: dict[tuple[str, TopicPartition], Sights] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to tell yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is committed."""
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
        """Nothing has happened."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """What is remembered of a query goes with it."""
        with self._lock:
            self._sights = {key: found for key, found in self._sights.items() if key[0] != str(event.id)}

    def _measure(self, number: str, query: str, end: Offsets, latest: Offsets) -> None:
        now = self._clock()
        for at, offset in sorted(end.items()):
            last = latest.get(at, offset)
            with self._lock:
                sights = self._sights.setdefault((number, at), Sights())
                sights.see(last, now)
                behind = sights.behind(offset, now)
            self._events.emit(LagMeasured(query, *at, max(0, last - offset), behind))

    def _publish(self, offsets: Offsets) -> None:
        assert self._group is not None
        assert self._connection is not None
        wanted = {at: Committed(offset) for at, offset in offsets.items()}
        try:
            with self._connection.cluster() as cluster:
                commit(cluster, GroupMember(self._group), wanted, deadline=Deadline.after(_COMMIT_SECONDS))
        except OttlaError as exc:
            _log.warning("the progress was not published as group %s: %s", self._group, exc)


def _publishing(options: Mapping[str, str] | None) -> tuple[str | None, Connection | None]:
    if options is None:
        return None, None
    group = next((value.strip() for name, value in options.items() if name.lower() == "commitgroup"), "")
    if not group:
        raise ConfigError("LagListener(commit=...) needs the option commitGroup with the name of a consumer group")
    return group, connection(options)


def _offsets(text: Any) -> Offsets:
    """The offsets in a progress report; empty for sources whose offsets look otherwise."""
    try:
        return offsets_of(json.loads(text)) if text else {}
    except (ValueError, TypeError, AttributeError):
        return {}
