"""The brokers as a loop sees them: a connection or none, what is under way on it, and how long it has been away.

Brokers come in from metadata, connections are opened beside the loop; links that changed go out, and events. It decides
nothing about requests.
"""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Iterator

from ottla import events
from ottla.errors import OttlaError
from ottla.events import Events
from ottla.net.background import BackgroundTasks
from ottla.net.cluster import Cluster
from ottla.net.connection import Connection
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker

STILL_DOWN_EVERY = 5.0
"""Seconds."""


class Link:
    """One broker."""

    def __init__(self, broker: Broker, *, most_requests: int) -> None:
        self.broker = broker
        self.most_requests = most_requests
        self.connection: Connection | None = None
        self.requests = 0
        """In flight."""
        self.failures = 0
        self.resume_at = 0.0
        self.down_since: float | None = None
        self.error: OttlaError | None = None
        self.told_at = 0.0

    @property
    def is_up(self) -> bool:
        """Connected."""
        return self.connection is not None and not self.connection.closed

    @property
    def is_away(self) -> bool:
        """The last attempt to reach it failed."""
        return self.down_since is not None

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent."""
        connection = self.connection
        return connection is not None and not connection.closed and self.requests < self.most_requests

    def __str__(self) -> str:
        if not self.is_away:
            return str(self.broker)
        return f"{self.broker}, away for {time.monotonic() - (self.down_since or 0):.1f} s: {self.error}"


class Links:
    """All brokers of the cluster that were needed so far. Used by the thread of the loop.

    `lane` names the connections of this loop; on each at most `most_requests` are in flight: a broker works on one at a
    time, the others wait in its socket.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        lane: str,
        most_requests: int,
        background: BackgroundTasks,
        events: Events,
        chance: random.Random,
    ) -> None:
        self._cluster = cluster
        self._lane = lane
        self._most_requests = most_requests
        self._background = background
        self._events = events
        self._retry = cluster.retry
        self._chance = chance
        self._links: dict[int, Link] = {}
        self._changed: deque[Link] = deque()

    def __iter__(self) -> Iterator[Link]:
        return iter(self._links.values())

    def changed(self) -> Iterator[Link]:
        """The links that came up, were lost, or were closed because nobody used them, since the last time."""
        while self._changed:
            yield self._changed.popleft()

    def next_at(self, now: float) -> float:
        """When the next broker that is away may be tried again."""
        return min((link.resume_at for link in self if link.resume_at > now), default=math.inf)

    def get(self, broker_id: int) -> Link | None:
        """The link to a broker that the cluster names, or None."""
        broker = self._cluster.known.brokers.get(broker_id)
        link = self._links.get(broker_id)
        if broker is None:
            return link
        if link is None:
            link = self._links[broker_id] = Link(broker, most_requests=self._most_requests)
        link.broker = broker
        return link

    def find(self, broker_id: int) -> Link | None:
        """The link to a broker that was used already; any thread may ask."""
        return self._links.get(broker_id)

    def connect(self, link: Link, now: float) -> None:
        """Begins to connect, unless that is under way or was tried a moment ago."""
        if link.is_up or now < link.resume_at:
            return
        started = time.monotonic()
        broker = link.broker
        self._background.run(
            ("connect", broker.id),
            lambda: self._cluster.connection(
                broker, lane=self._lane, deadline=Deadline.after(self._cluster.timeouts.connect)
            ),
            done=lambda connection: self._connected(link, connection, time.monotonic() - started),
            failed=lambda error: self.lost(link, error),
        )

    def idled(self, link: Link) -> None:
        """The broker closed a connection that nobody used: no trouble, the next use opens another."""
        link.connection = None
        self._changed.append(link)

    def lost(self, link: Link, error: OttlaError) -> None:
        """The connection ended, or could not be made."""
        now = time.monotonic()
        link.connection = None
        link.failures += 1
        link.error = error
        link.resume_at = now + self._retry.wait(link.failures, self._chance.random())
        reason = getattr(error, "reason", str(error))
        if link.down_since is None:
            link.down_since = link.told_at = now
            self._events.emit(events.ConnectionDown(link.broker.id, str(link.broker.address), reason))
        elif now - link.told_at >= STILL_DOWN_EVERY:
            link.told_at = now
            self._events.emit(events.StillDown(link.broker.id, str(link.broker.address), now - link.down_since, reason))
        self._changed.append(link)

    def _connected(self, link: Link, connection: Connection, seconds: float) -> None:
        link.connection = connection
        link.failures = 0
        link.error = None
        if self._events.active:
            self._events.emit(events.ConnectionUp(link.broker.id, str(link.broker.address), seconds))
        if link.down_since is not None:
            away = time.monotonic() - link.down_since
            link.down_since = None
            self._events.emit(events.TimeDown(link.broker.id, str(link.broker.address), away))
        self._changed.append(link)
