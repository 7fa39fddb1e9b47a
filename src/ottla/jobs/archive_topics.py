"""Decides which of several topics can be archived now: one that is gone or was created again must not stop the others.

A survey of the brokers and a lake come in. The logs of the healthy topics go out, and events for the others. It is an
error if no topic is healthy.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from ottla.errors import (
    ArchiveIncomplete,
    AuthenticationFailed,
    BrokerError,
    DeadlineExceeded,
    NetworkError,
    NoBrokerReachable,
    OttlaError,
    SecurityMismatch,
    StoreUnavailable,
)
from ottla.events import Events, TopicResumed, TopicSuspended
from ottla.fetch.options import OnLost
from ottla.jobs.archive_plan import Logs, Survey, faults, joined
from ottla.lake.lake import Lake

_AGAIN_SECONDS = 10.0
"""How often a failed topic is looked at again. A look takes seconds: a topic counts as gone only after retries."""


def is_outage(error: BaseException) -> bool:
    """Return whether brokers or a fleet's store are away, so that waiting can help."""
    if isinstance(error, AuthenticationFailed | SecurityMismatch):
        return False
    if isinstance(error, BrokerError):
        # An unknown topic is retriable for Kafka, but not an outage: it was deleted.
        return error.retriable and error.row.name not in ("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID")
    if isinstance(error, ArchiveIncomplete):
        return any(is_outage(trouble) for trouble in error.troubles.values())
    return isinstance(error, NoBrokerReachable | DeadlineExceeded | NetworkError | StoreUnavailable)


class Topics:
    """The topics of an archiver, and the errors of those that cannot be archived."""

    def __init__(self, survey: Survey, lake: Lake, topics: tuple[str, ...], *, on_lost: OnLost, events: Events) -> None:
        self.troubles: dict[str, OttlaError] = {}
        """Topics that are left out, with the error of each."""
        self._reported: dict[str, str] = {}
        """The last reason that was emitted as an event, by topic."""
        self._unread: set[str] = set()
        """Topics whose records could not be read. They resume once a read succeeds: metadata proves little."""
        self._looked = float("-inf")
        self._survey = survey
        self._lake = lake
        self._topics = topics
        self._on_lost = on_lost
        self._events = events

    def look(self) -> Logs:
        """Return the logs of the healthy topics. Looks at the others again every ten seconds or so.

        Raises the error of the topic, or `ArchiveIncomplete`, if none is healthy, and `NoBrokerReachable` if no broker
        answers.
        """
        last = self._lake.ledger.last()  # read before the logs, which only grow: so positions cannot be ahead of them
        positions, ids = ({}, {}) if last is None else (last.positions, last.topics)
        before = self.troubles
        again = time.monotonic() >= self._looked + _AGAIN_SECONDS or len(before) == len(self._topics)
        if again:
            self._looked = time.monotonic()
        self.troubles = {} if again else dict(before)
        try:
            logs = joined([self._jointly(before), *(self._single(topic) for topic in before if again)])
        except OttlaError:
            self.troubles = before
            raise
        self.troubles |= faults(positions, ids, logs, on_lost=self._on_lost)
        self._emit_changes()
        if len(self.troubles) == len(self._topics):
            self.require_none()
        return self._survey.sized(logs.without(self.troubles))

    def suspend(self, topic: str, error: OttlaError) -> None:
        """Leave the topic out until a later look finds it healthy. Raises the error if no topic is left."""
        self.troubles[topic] = error
        self._unread.add(topic)
        self._emit_changes()
        if len(self.troubles) == len(self._topics):
            self.require_none()

    def archived(self, topics: Iterable[str]) -> None:
        """Note that records of these topics were archived, so their logs can be read."""
        self._unread.difference_update(topics)
        self._emit_changes()

    def _emit_changes(self) -> None:
        for topic in [topic for topic in self._reported if topic not in self.troubles and topic not in self._unread]:
            del self._reported[topic]
            self._events.emit(TopicResumed(topic))
        for topic, error in self.troubles.items():
            if self._reported.get(topic) != str(error):
                self._reported[topic] = str(error)
                self._events.emit(TopicSuspended(topic, str(error)))

    def require_none(self) -> None:
        """Raise the error of the only topic, or `ArchiveIncomplete`, if a topic cannot be archived."""
        if not self.troubles:
            return
        if len(self._topics) == 1:
            raise self.troubles[self._topics[0]].with_traceback(None)
        raise ArchiveIncomplete(self._lake.path, self.troubles)

    def _jointly(self, left_out: Collection[str]) -> Logs:
        topics = [topic for topic in self._topics if topic not in left_out]
        if not topics:
            return joined([])
        try:
            return self._survey.logs(topics)
        except OttlaError as error:
            if len(self._topics) == 1 or isinstance(error, NoBrokerReachable):
                raise
        # One topic may be the cause: ask for each alone to find out which.
        return joined([self._single(topic) for topic in topics])

    def _single(self, topic: str) -> Logs:
        try:
            return self._survey.logs([topic])
        except NoBrokerReachable:
            raise
        except OttlaError as error:
            self.troubles[topic] = error
            return joined([])
