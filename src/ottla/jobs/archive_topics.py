"""Which of several topics can be archived now: one that is gone, or is another one by now, must not stop the others.

A survey of the brokers and a lake come in; the logs of the topics that are in order go out, and events for those that
are not. When none is in order, that is an error.
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
"""Between looks at a topic that was not in order: a broker is asked for seconds before a topic counts as gone."""


def is_outage(error: BaseException) -> bool:
    """Whether the error says that brokers, or a fleet's store, are away: what can be waited for."""
    if isinstance(error, AuthenticationFailed | SecurityMismatch):
        return False
    if isinstance(error, BrokerError):
        # A topic that is not there is not away: somebody has deleted it.
        return error.retriable and error.row.name not in ("UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_ID")
    if isinstance(error, ArchiveIncomplete):
        return any(is_outage(one) for one in error.troubles.values())
    return isinstance(error, NoBrokerReachable | DeadlineExceeded | NetworkError | StoreUnavailable)


class Topics:
    """The topics of an archiver, and what is wrong with some of them."""

    def __init__(self, survey: Survey, lake: Lake, topics: tuple[str, ...], *, on_lost: OnLost, events: Events) -> None:
        self.troubles: dict[str, OttlaError] = {}
        """Why topics are not archived."""
        self._told: dict[str, str] = {}
        self._unread: set[str] = set()
        """Topics whose records could not be read: that their logs can be looked at says little."""
        self._looked = float("-inf")
        self._survey = survey
        self._lake = lake
        self._topics = topics
        self._on_lost = on_lost
        self._events = events

    def look(self) -> Logs:
        """The logs of the topics that are in order. Now and then, those that were not are looked at again.

        Raises what is wrong if that is so with all of them, or if no broker answers.
        """
        last = self._lake.ledger.last()  # before the logs, which only grow
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
        self._tell()
        if len(self.troubles) == len(self._topics):
            self.require_none()
        return self._survey.sized(logs.without(self.troubles))

    def suspend(self, topic: str, error: OttlaError) -> None:
        """Leaves the topic out until another look finds it in order; raises if no topic is left."""
        self.troubles[topic] = error
        self._unread.add(topic)
        self._tell()
        if len(self.troubles) == len(self._topics):
            self.require_none()

    def archived(self, topics: Iterable[str]) -> None:
        """Something of the topics has come into the archive."""
        self._unread.difference_update(topics)
        self._tell()

    def _tell(self) -> None:
        for topic in [topic for topic in self._told if topic not in self.troubles and topic not in self._unread]:
            del self._told[topic]
            self._events.emit(TopicResumed(topic))
        for topic, error in self.troubles.items():
            if self._told.get(topic) != str(error):
                self._told[topic] = str(error)
                self._events.emit(TopicSuspended(topic, str(error)))

    def require_none(self) -> None:
        """Raises what is wrong with topics, if there is something."""
        if not self.troubles:
            return
        if len(self._topics) == 1:
            raise self.troubles[self._topics[0]].with_traceback(None)
        raise ArchiveIncomplete(self._lake.path, self.troubles)

    def _jointly(self, left_out: Collection[str]) -> Logs:
        wanted = [topic for topic in self._topics if topic not in left_out]
        if not wanted:
            return joined([])
        try:
            return self._survey.logs(wanted)
        except OttlaError as error:
            if len(self._topics) == 1 or isinstance(error, NoBrokerReachable):
                raise
        # One of them may be what is wrong: each by itself tells which.
        return joined([self._single(topic) for topic in wanted])

    def _single(self, topic: str) -> Logs:
        try:
            return self._survey.logs([topic])
        except NoBrokerReachable:
            raise
        except OttlaError as error:
            self.troubles[topic] = error
            return joined([])
