"""Finds out what the cluster looks like: partitions, their leaders, and producer ids.

Topics whose leaders are in doubt come in; metadata is asked for beside the loop, and topics learn how many partitions
they have, who leads them, and which can take records now. It decides nothing about batches.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable

from ottla.config import Retry
from ottla.errors import BrokerError, ErrorCode, NoBrokerReachable, OttlaError
from ottla.events import ConnectionDown, Events, StillDown, TimeDown
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.net.discovery import OnUnknownTopic
from ottla.net.effort import FINAL
from ottla.net.errands import Errands
from ottla.net.links import STILL_DOWN_EVERY, Link, Links
from ottla.net.metadata import Metadata
from ottla.produce.identity import new_producer_id
from ottla.produce.lanes import Lanes
from ottla.produce.packing import Topic
from ottla.produce.route import Partitions

_FIRST_LOOK_SECONDS = 0.5
_UNKNOWN_PATIENCE = 5.0
"""Seconds for which a topic may be unknown before its records are refused: a new one takes a while to be known."""


class Scout:
    """Keeps the topics of one producer up to date; used by the sender's thread."""

    def __init__(
        self,
        cluster: Cluster,
        topics: dict[str, Topic],
        *,
        errands: Errands,
        events: Events,
        retry: Retry,
        chance: random.Random,
        known: Callable[[Topic], None],
        refused: Callable[[Topic, OttlaError], None],
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._errands = errands
        self._events = events
        self._retry = retry
        self._chance = chance
        self._known = known
        """Told when the partitions of a topic are known, each time."""
        self._refused = refused
        """Told when a topic does not exist; nothing more is asked about it."""
        self.links: Links | None = None
        """Set once by the owner: links tell the scout of changes, and the scout asks them who is away."""
        self.error: OttlaError | None = None
        """Why nothing is known, when nothing is."""
        self._doubted: set[str] = set()
        self._unreachable: dict[str, float] = {}
        """Bootstrap addresses that did not answer, and since when."""
        self._told_at = 0.0
        self._look_at = 0.0
        self._failures = 0
        self._refresh_at = math.inf
        self._identify_at = 0.0

    def doubt(self, topic: str) -> None:
        """The leaders of the topic are looked up again."""
        self._doubted.add(topic)

    def look(self, now: float) -> None:
        """Asks for metadata when something is in doubt, or old."""
        if now < self._look_at or self._errands.busy("metadata"):
            return
        names = self._doubted & self._topics.keys()
        if not names and now >= self._refresh_at:
            names = set(self._topics)
        if not names:
            return
        create = {n for n in names if self._topics[n].settings.unknown_topic is OnUnknownTopic.CREATE}
        unknown = OnUnknownTopic.CREATE if create else OnUnknownTopic.REFUSE
        asked = create or names
        self._doubted = names - asked
        # Short at first, so that the reason is known soon when nobody answers.
        seconds = min(self._cluster.timeouts.total, _FIRST_LOOK_SECONDS * 2 ** min(self._failures, 8))
        self._errands.run(
            "metadata",
            lambda: self._cluster.metadata(asked, deadline=Deadline.after(seconds), unknown=unknown),
            done=self._learn,
            failed=lambda error: self._not_learned(asked, error),
        )

    def remember(self, topic: Topic) -> None:
        """What the cluster client knows already, for a topic that is used for the first time."""
        self._apply(self._cluster.known, topic)

    def link_changed(self, link: Link) -> None:
        """A broker is back, or away: its partitions may move, and records without a key avoid them."""
        for topic in self._topics.values():
            if link.broker.id in topic.leaders.values():
                self._weigh(topic)
                if link.is_away:
                    self.doubt(topic.name)

    def leads(self, link: Link) -> bool:
        """Whether the broker leads a partition of a topic in use."""
        return any(link.broker.id in topic.leaders.values() for topic in self._topics.values())

    def identify(self, lanes: Lanes, now: float) -> None:
        """Asks for a producer id when a lane needs one."""
        if not lanes.need_identity or now < self._identify_at:
            return
        lanes.producer = None

        def done(producer_id: int) -> None:
            lanes.producer = producer_id, 0

        def failed(error: OttlaError) -> None:
            self.error = error
            self._identify_at = time.monotonic() + self._retry.maximum

        self._errands.run("identity", lambda: new_producer_id(self._cluster), done=done, failed=failed)

    def _learn(self, metadata: Metadata) -> None:
        now = time.monotonic()
        self.error = None
        self._tell_reachable()
        failures, self._failures = self._failures, 0
        self._look_at = now + self._retry.initial
        self._refresh_at = now + self._cluster.timeouts.metadata_age
        for name, found in metadata.topics.items():
            topic = self._topics.get(name)
            if topic is None:
                continue
            if not found.partitions:
                self._unknown(topic, found.error, now)
                continue
            topic.unknown_since = None
            self._apply(metadata, topic)
            self._known(topic)
            if any(not self._is_named(leader) for leader in topic.leaders.values()):
                self._failures = max(self._failures, failures)
                self._look_again(name, now)

    def _is_named(self, broker_id: int) -> bool:
        return self.links is not None and self.links.get(broker_id) is not None

    def _look_again(self, topic: str, now: float) -> None:
        self._failures += 1
        self._look_at = now + self._retry.wait(self._failures, self._chance.random())
        self.doubt(topic)

    def _not_learned(self, names: set[str], error: OttlaError) -> None:
        self.error = error
        if isinstance(error, NoBrokerReachable):
            self._tell_unreachable(error)
        for name in names:
            topic = self._topics.get(name)
            if isinstance(error, FINAL) and topic is not None and topic.partitions is None:
                # A wrong password stays wrong: who never got in need not wait for the deadline to hear of it.
                self._refused(topic, error)
            else:
                self._look_again(name, time.monotonic())

    def _tell_unreachable(self, error: NoBrokerReachable) -> None:
        """Of addresses that no broker is known by yet; links tell of the others."""
        now = time.monotonic()
        known = {str(broker.address) for broker in self._cluster.known.brokers.values()}
        for attempt in error.attempts:
            if attempt.address in known:
                continue
            if attempt.address not in self._unreachable:
                self._unreachable[attempt.address] = self._told_at = now
                self._events.emit(ConnectionDown(None, attempt.address, attempt.reason))
            elif now - self._told_at >= STILL_DOWN_EVERY:
                since = self._unreachable[attempt.address]
                self._events.emit(StillDown(None, attempt.address, now - since, attempt.reason))
        if now - self._told_at >= STILL_DOWN_EVERY:
            self._told_at = now

    def _tell_reachable(self) -> None:
        now = time.monotonic()
        for address, since in self._unreachable.items():
            self._events.emit(TimeDown(None, address, now - since))
        self._unreachable.clear()

    def _apply(self, metadata: Metadata, topic: Topic) -> None:
        found = metadata.topics.get(topic.name)
        if found is not None and found.partitions:
            topic.leaders = {p.index: p.leader for p in found.partitions}
            self._weigh(topic)

    def _weigh(self, topic: Topic) -> None:
        """Which partitions can take records without a key."""
        if topic.leaders:
            up = (p for p, leader in topic.leaders.items() if leader >= 0 and not self._is_away(leader))
            topic.partitions = Partitions(len(topic.leaders), tuple(sorted(up)))

    def _is_away(self, broker_id: int) -> bool:
        return self.links is not None and self.links.is_away(broker_id)

    def _unknown(self, topic: Topic, code: ErrorCode, now: float) -> None:
        """The cluster does not know the topic: records that were never in a partition are refused after a while."""
        topic.unknown_since = now if topic.unknown_since is None else topic.unknown_since
        error = BrokerError(code, f"topic {topic.name}")
        final = not error.retriable or now - topic.unknown_since >= _UNKNOWN_PATIENCE
        if topic.partitions is None and topic.waiting:
            self.error = error
        if final and topic.partitions is None:
            topic.unknown_since = None
            self._refused(topic, error)
        elif topic.waiting or any(not lane.is_idle for lane in topic.lanes.values()):
            self._look_again(topic.name, now)
