"""The brokers of a loop: the connection to each, its requests in flight, and how long it has been down.

Brokers come in from metadata; changed links and events go out. Connections are opened by background tasks. It decides
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
"""Seconds between two `StillDown` events of a broker."""


class Link:
    """The state of one broker."""

    def __init__(self, broker: Broker, *, most_requests: int) -> None:
        self.broker = broker
        self.most_requests = most_requests
        self.connection: Connection | None = None
        self.requests = 0
        """The number of requests in flight."""
        self.failures = 0
        """Failures to connect, in a row."""
        self.resume_at = 0.0
        """When the next attempt to connect is allowed, by `time.monotonic`."""
        self.down_since: float | None = None
        self.error: OttlaError | None = None
        self.told_at = 0.0
        """When the last event about it being down was emitted."""

    @property
    def is_up(self) -> bool:
        """Whether it is connected."""
        return self.connection is not None and not self.connection.closed

    @property
    def is_away(self) -> bool:
        """Whether the last attempt to reach the broker failed."""
        return self.down_since is not None

    @property
    def has_room(self) -> bool:
        """Whether another request may be sent."""
        connection = self.connection
        return connection is not None and not connection.closed and self.requests < self.most_requests

    def __str__(self) -> str:
        if not self.is_away:
            return str(self.broker)
        return f"{self.broker}, down for {time.monotonic() - (self.down_since or 0):.1f} s: {self.error}"


class Links:
    """The brokers that the loop has used so far. Only for the loop's thread.

    `channel` names the connections of this loop. Each has at most `most_requests` in flight: a broker handles one at a
    time, the others wait in its socket.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        channel: str,
        most_requests: int,
        background: BackgroundTasks,
        events: Events,
        chance: random.Random,
    ) -> None:
        self._cluster = cluster
        self._channel = channel
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
        """Yield the links that came up, were lost, or were closed while idle, since the last call."""
        while self._changed:
            yield self._changed.popleft()

    def next_at(self, now: float) -> float:
        """Return when the next broker that is down may be tried again."""
        return min((link.resume_at for link in self if link.resume_at > now), default=math.inf)

    def get(self, broker_id: int) -> Link | None:
        """Return the link to a broker, created if the metadata names the broker, or None."""
        broker = self._cluster.known.brokers.get(broker_id)
        link = self._links.get(broker_id)
        if broker is None:
            return link
        if link is None:
            link = self._links[broker_id] = Link(broker, most_requests=self._most_requests)
        link.broker = broker
        return link

    def find(self, broker_id: int) -> Link | None:
        """Return the link to a broker that was used before, or None. For any thread."""
        return self._links.get(broker_id)

    def connect(self, link: Link, now: float) -> None:
        """Start connecting, unless that is under way or the backoff is not over."""
        if link.is_up or now < link.resume_at:
            return
        started = time.monotonic()
        broker = link.broker
        self._background.run(
            ("connect", broker.id),
            lambda: self._cluster.connection(
                broker, channel=self._channel, deadline=Deadline.after(self._cluster.timeouts.connect)
            ),
            done=lambda connection: self._connected(link, connection, time.monotonic() - started),
            failed=lambda error: self.lost(link, error),
        )

    def idled(self, link: Link) -> None:
        """Record that the broker closed an idle connection. That is no failure: the next use opens another."""
        link.connection = None
        self._changed.append(link)

    def lost(self, link: Link, error: OttlaError) -> None:
        """Record that the connection ended or could not be opened."""
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
            seconds_down = time.monotonic() - link.down_since
            link.down_since = None
            self._events.emit(events.TimeDown(link.broker.id, str(link.broker.address), seconds_down))
        self._changed.append(link)
