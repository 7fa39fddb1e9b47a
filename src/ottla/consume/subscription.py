"""The subscription of a consumer, and its membership in the group.

Topic names or a pattern come in from the program. The group is joined when the program first asks for records, and gets
every later change. Topics that match a pattern are looked up periodically in the background.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable

from ottla.consume.membership import Membership
from ottla.consume.options import GroupOptions
from ottla.errors import OttlaError
from ottla.model import GroupMember, TopicPartition
from ottla.net import Cluster
from ottla.net.background import BackgroundTasks

_log = logging.getLogger(__name__)
_PATTERN_SECONDS = 10.0
"""Maximum seconds between two lookups of the topics that match a pattern."""


class Subscription:
    """Only the program's thread may use it. Without a group, `membership` stays None."""

    def __init__(
        self,
        cluster: Cluster,
        group: str | None,
        *,
        options: GroupOptions,
        background: BackgroundTasks,
        changed: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._options = options
        self._background = background
        self._changed = changed
        self._topics: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._match_at = math.inf
        self._checked: frozenset[str] | None = None
        """Topics that are known to exist."""
        self._check_error: OttlaError | None = None
        """Why that check failed; not raised yet."""
        self.membership: Membership | None = None
        """Set when the program first asks for records."""

    @property
    def has_subscribed(self) -> bool:
        """Whether the program ever subscribed."""
        return bool(self._topics) or self._pattern is not None or self.membership is not None

    @property
    def member(self) -> GroupMember:
        """The current membership of this consumer in its group."""
        return GroupMember(self._group or "") if self.membership is None else self.membership.member

    def keeps(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Return those of the partitions that no other member can have yet."""
        return partitions if self.membership is None else self.membership.keeps(partitions)

    def change(self, topics: frozenset[str] | re.Pattern[str]) -> None:
        """Replace the subscription. Raises `BrokerError` for a missing topic if the group is already joined."""
        if isinstance(topics, re.Pattern):
            self._pattern, self._topics, self._match_at = topics, frozenset(), 0.0
            return
        if self.membership is not None:
            self._check(topics - self._topics)
            self.membership.subscribe(topics)
        self._pattern, self._topics = None, topics

    def join(self) -> None:
        """Join the group. Does nothing if already joined, without a subscription, or until the topics are checked.

        Raises the error of that check once, for example for a missing topic; the next call checks again.
        """
        if self.membership is not None or not self.has_subscribed:
            return
        if self._check_error is not None:
            error, self._check_error = self._check_error, None
            raise error
        if self._topics and self._topics != self._checked:
            self._check_in_background(self._topics)
            return
        membership = Membership(self._cluster, self._group or "", options=self._options, changed=self._changed)
        try:
            self.membership = membership
            membership.subscribe(self._topics)
            membership.start()
        except BaseException:
            self.membership = None
            membership.leave(0.0)
            raise

    def match_topics(self, now: float) -> None:
        """Look up the topics that match the pattern, if it is time."""
        pattern = self._pattern
        if pattern is None or now < self._match_at:
            return
        self._match_at = now + min(_PATTERN_SECONDS, self._cluster.timeouts.metadata_age)

        def done(names: frozenset[str]) -> None:
            if pattern is self._pattern and self.membership is not None:
                self.membership.subscribe(names)

        def failed(error: OttlaError) -> None:
            _log.warning("could not look up the topics that match %s: %s", pattern.pattern, error)

        self._background.run(("match", pattern), lambda: self._matching_topics(pattern), done=done, failed=failed)

    def _matching_topics(self, pattern: re.Pattern[str]) -> frozenset[str]:
        topics = self._cluster.metadata(None).topics.values()
        return frozenset(topic.name for topic in topics if not topic.internal and pattern.fullmatch(topic.name))

    def _check_in_background(self, names: frozenset[str]) -> None:
        """Check in the background: the program's call may have less time than it takes to reach the brokers."""

        def done(_: None) -> None:
            self._checked = names

        def failed(error: OttlaError) -> None:
            if names == self._topics:
                self._check_error = error

        self._background.run(("topics", names), lambda: self._check(names), done=done, failed=failed)

    def _check(self, names: frozenset[str]) -> None:
        for name in names:
            self._cluster.topic(name)  # Raises for a missing topic.
