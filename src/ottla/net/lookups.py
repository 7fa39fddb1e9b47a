"""Carries out lookups of metadata beside a loop, and tells of addresses at which nobody answers.

`Lookup` values come in, `LookupResult` values go out, each exactly once. `refresh.py` decides which
topics.
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
    """Used by the thread of the loop."""

    def __init__(self, cluster: Cluster, *, background: BackgroundTasks, events: Events) -> None:
        self._cluster = cluster
        self._background = background
        self._events = events
        self._done: deque[LookupResult] = deque()
        self._unreachable: dict[str, float] = {}
        """Bootstrap addresses that did not answer, and since when."""
        self._told_at = 0.0

    def run(self, lookup: Lookup) -> None:
        """Asks the cluster; what it answers comes with a later call of `done`."""
        unknown = OnUnknownTopic.CREATE if lookup.create else OnUnknownTopic.REFUSE

        def learned(metadata: Metadata) -> None:
            self._tell_reachable()
            self._done.append(LookupResult(lookup, metadata, None))

        def failed(error: OttlaError) -> None:
            if isinstance(error, NoBrokerReachable):
                self._tell_unreachable(error)
            self._done.append(LookupResult(lookup, None, error))

        self._background.run(
            "metadata",
            lambda: self._cluster.metadata(lookup.topics, deadline=Deadline.after(lookup.seconds), unknown=unknown),
            done=learned,
            failed=failed,
        )

    def done(self) -> Iterator[LookupResult]:
        """What came of lookups since the last time."""
        while self._done:
            yield self._done.popleft()

    def forget(self) -> None:
        """Nothing comes of what was asked so far."""
        self._done.clear()

    def _tell_unreachable(self, error: NoBrokerReachable) -> None:
        """Of addresses that no broker is known by yet; links tell of the others."""
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

    def _tell_reachable(self) -> None:
        now = time.monotonic()
        for address, since in self._unreachable.items():
            self._events.emit(events.TimeDown(None, address, now - since))
        self._unreachable.clear()
