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
_SILENCE_PATIENCE = 5.0
"""Seconds without an answer after which metadata counts as not to be had; at once, when every address refuses."""


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
        known: Callable[[Topic, float], None],
        unavailable: Callable[[Topic], None],
        refused: Callable[[Topic, OttlaError], None],
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._errands = errands
        self._events = events
        self._retry = retry
        self._chance = chance
        self._known = known
        """Told when the partitions of a topic are known, each time, and when they were asked for."""
        self._unavailable = unavailable
        """Told when nobody can be asked for the partitions of a topic."""
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
        self._failed_at = -math.inf
        """When the last look failed; long ago when one has succeeded since."""
        self._silent_since = 0.0
        """Since when one look after the other failed."""
        self._was_dark = False
        """Whether the last look failed for want of somebody who answers."""

    @property
    def is_in_the_dark(self) -> bool:
        """Whether metadata cannot be had at the moment: nobody is there, nobody answers, or we are not let in."""
        # Only while it is tried again and again: with no topic in use, nobody has looked since.
        is_trying = self._errands.busy("metadata") or not self._doubted.isdisjoint(self._topics)
        return self._was_dark and is_trying

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
        # Only for the sake of records: a topic that was deleted is not created because somebody looks whether it grew.
        create = {n for n in names if _creates(self._topics[n]) and not self._topics[n].is_idle}
        unknown = OnUnknownTopic.CREATE if create else OnUnknownTopic.REFUSE
        asked = create or names
        self._doubted = names - asked
        # Short at first, so that the reason is known soon when nobody answers.
        seconds = min(self._cluster.timeouts.total, _FIRST_LOOK_SECONDS * 2 ** min(self._failures, 8))
        asked_at = time.monotonic()
        self._errands.run(
            "metadata",
            lambda: self._cluster.metadata(asked, deadline=Deadline.after(seconds), unknown=unknown),
            done=lambda metadata: self._learn(metadata, asked_at),
            failed=lambda error: self._not_learned(asked, error, asked_at),
        )

    def remember(self, topic: Topic) -> None:
        """What the cluster client knows already and trusts, for a topic that is used for the first time."""
        found = self._cluster.remembered(frozenset([topic.name]))
        if found is not None:
            self._apply(found, topic)

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

    def _learn(self, metadata: Metadata, asked_at: float) -> None:
        now = time.monotonic()
        self.error = None
        self._failed_at = -math.inf
        self._was_dark = False
        self._tell_reachable()
        failures, self._failures = self._failures, 0
        self._look_at = now + self._retry.initial
        self._refresh_at = now + self._cluster.timeouts.metadata_age
        for name, found in metadata.topics.items():
            topic = self._topics.get(name)
            if topic is None:  # idle, and forgotten after it was asked for
                self._cluster.forget([name])
                continue
            if not found.partitions:
                self._unknown(topic, found.error, now)
                continue
            topic.unknown_since = None
            self._apply(metadata, topic)
            self._known(topic, asked_at)
            if any(not self._is_named(leader) for leader in topic.leaders.values()):
                self._failures = max(self._failures, failures)
                self._look_again(name, now)

    def _is_named(self, broker_id: int) -> bool:
        return self.links is not None and self.links.get(broker_id) is not None

    def _look_again(self, topic: str, now: float) -> None:
        self._failures += 1
        self._look_at = now + self._retry.wait(self._failures, self._chance.random())
        self.doubt(topic)

    def _not_learned(self, names: set[str], error: OttlaError, asked_at: float) -> None:
        self.error = error
        if asked_at - self._failed_at > _SILENCE_PATIENCE:  # what was before that is another story
            self._silent_since = asked_at
        now = self._failed_at = time.monotonic()
        silent = now - self._silent_since
        self._was_dark = isinstance(error, FINAL) or _nobody_listens(error) or silent >= _SILENCE_PATIENCE
        if isinstance(error, NoBrokerReachable):
            self._tell_unreachable(error)
        if self._was_dark:
            for topic in list(self._topics.values()):
                self._unavailable(topic)
        for name in names:
            known = self._topics.get(name)
            if isinstance(error, FINAL) and known is not None and known.partitions is None:
                # A wrong password stays wrong: who never got in need not wait for the deadline to hear of it.
                self._refused(known, error)
            if name in self._topics:
                self._look_again(name, now)

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
        if topic.name in self._topics and not topic.is_idle:
            self._look_again(topic.name, now)


def _creates(topic: Topic) -> bool:
    return topic.settings.unknown_topic is OnUnknownTopic.CREATE


def _nobody_listens(error: OttlaError) -> bool:
    """Whether every address refused the connection: that is no broker that is slow."""
    if not isinstance(error, NoBrokerReachable) or not error.attempts:
        return False
    return all("refused" in attempt.reason for attempt in error.attempts)
