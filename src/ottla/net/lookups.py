"""Runs the metadata lookups of a loop in the background, and emits events about addresses that do not answer.

`Lookup` values come in, `LookupResult` values go out, each exactly once. What to look up is decided in `refresh.py`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from ottla import events
from ottla.errors import NoBrokerReachable, OttlaError
from ottla.events import Events
from ottla.net.background import BackgroundTasks
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.discovery import OnUnknownTopic
from ottla.net.links import STILL_DOWN_EVERY
from ottla.net.metadata import Metadata
from ottla.net.refresh import Lookup, LookupResult


class Lookups:
    """The metadata lookups of one loop. Only for the loop's thread."""

    def __init__(self, cluster: Cluster, *, background: BackgroundTasks, events: Events) -> None:
        self._cluster = cluster
        self._background = background
        self._events = events
        self._done: deque[LookupResult] = deque()
        self._unreachable: dict[str, float] = {}
        """Bootstrap addresses that do not answer, and since when."""
        self._told_at = 0.0

    def run(self, lookup: Lookup) -> None:
        """Start a lookup. A later call of `done` yields its result."""
        unknown = OnUnknownTopic.CREATE if lookup.create else OnUnknownTopic.REFUSE

        def learned(metadata: Metadata) -> None:
            self._emit_reachable()
            self._done.append(LookupResult(lookup, metadata, None))

        def failed(error: OttlaError) -> None:
            if isinstance(error, NoBrokerReachable):
                self._emit_unreachable(error)
            self._done.append(LookupResult(lookup, None, error))

        self._background.run(
            "metadata",
            lambda: self._cluster.metadata(lookup.topics, deadline=Deadline.after(lookup.seconds), unknown=unknown),
            done=learned,
            failed=failed,
        )

    def done(self) -> Iterator[LookupResult]:
        """Yield the results of lookups that finished since the last call."""
        while self._done:
            yield self._done.popleft()

    def forget(self) -> None:
        """Drop the results that were not collected."""
        self._done.clear()

    def _emit_unreachable(self, error: NoBrokerReachable) -> None:
        """Emit events about addresses that belong to no known broker. `Links` does so for the others."""
        now = time.monotonic()
        known = {str(broker.address) for broker in self._cluster.known.brokers.values()}
        for attempt in error.attempts:
            if attempt.address in known:
                continue
            if attempt.address not in self._unreachable:
                self._unreachable[attempt.address] = self._told_at = now
                self._events.emit(events.ConnectionDown(None, attempt.address, attempt.reason))
            elif now - self._told_at >= STILL_DOWN_EVERY:
                since = self._unreachable[attempt.address]
                self._events.emit(events.StillDown(None, attempt.address, now - since, attempt.reason))
        if now - self._told_at >= STILL_DOWN_EVERY:
            self._told_at = now

    def _emit_reachable(self) -> None:
        now = time.monotonic()
        for address, since in self._unreachable.items():
            self._events.emit(events.TimeDown(None, address, now - since))
        self._unreachable.clear()
