"""What a consumer has subscribed to, and the membership in its group that comes of it.

Names or a pattern come in from the program; the group is joined when the first records are asked for, and hears of
every change. Topics that match a pattern are looked for beside the program, again and again.
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
"""How often topics are matched with a pattern, at least."""


class Subscription:
    """Of one consumer, and used by the program's thread. Without a group there is never a membership."""

    def __init__(
        self,
        cluster: Cluster,
        group: str | None,
        *,
        options: GroupOptions,
        errands: BackgroundTasks,
        changed: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._options = options
        self._errands = errands
        self._changed = changed
        self._topics: frozenset[str] = frozenset()
        self._pattern: re.Pattern[str] | None = None
        self._match_at = math.inf
        self._checked: frozenset[str] | None = None
        """Topics that are known to exist."""
        self._unknown: OttlaError | None = None
        """Why it is not known whether they do; the program has not heard of it yet."""
        self.membership: Membership | None = None
        """There from the first time on that records were asked for."""

    @property
    def is_there(self) -> bool:
        """Whether the program has ever subscribed to something."""
        return bool(self._topics) or self._pattern is not None or self.membership is not None

    @property
    def member(self) -> GroupMember:
        """Who this consumer is in its group at the moment."""
        return GroupMember(self._group or "") if self.membership is None else self.membership.member

    def keeps(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Those that nobody else can have yet."""
        return partitions if self.membership is None else self.membership.keeps(partitions)

    def want(self, topics: frozenset[str] | re.Pattern[str]) -> None:
        """These instead of those before. A name that does not exist is told at once when the group is joined."""
        if isinstance(topics, re.Pattern):
            self._pattern, self._topics, self._match_at = topics, frozenset(), 0.0
            return
        if self.membership is not None:
            self._check(topics - self._topics)
            self.membership.subscribe(topics)
        self._pattern, self._topics = None, topics

    def join(self) -> None:
        """Becomes a member, unless it is one, or nothing is subscribed to, or it is not known yet whether that exists.

        Raises once when that cannot be found out, or one does not; the next time it is looked for again.
        """
        if self.membership is not None or not self.is_there:
            return
        if self._unknown is not None:
            error, self._unknown = self._unknown, None
            raise error
        if self._topics and self._topics != self._checked:
            self._look_up(self._topics)
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

    def look(self, now: float) -> None:
        """Looks for topics that match, now and then."""
        pattern = self._pattern
        if pattern is None or now < self._match_at:
            return
        self._match_at = now + min(_PATTERN_SECONDS, self._cluster.timeouts.metadata_age)

        def done(names: frozenset[str]) -> None:
            if pattern is self._pattern and self.membership is not None:
                self.membership.subscribe(names)

        def failed(error: OttlaError) -> None:
            _log.warning("topics could not be matched with %s: %s", pattern.pattern, error)

        self._errands.run(("match", pattern), lambda: self._matching(pattern), done=done, failed=failed)

    def _matching(self, pattern: re.Pattern[str]) -> frozenset[str]:
        topics = self._cluster.metadata(None).topics.values()
        return frozenset(topic.name for topic in topics if not topic.internal and pattern.fullmatch(topic.name))

    def _look_up(self, names: frozenset[str]) -> None:
        """Beside the program, whose call may have less time than brokers need that are away."""

        def done(_: None) -> None:
            self._checked = names

        def failed(error: OttlaError) -> None:
            if names == self._topics:
                self._unknown = error

        self._errands.run(("topics", names), lambda: self._check(names), done=done, failed=failed)

    def _check(self, names: frozenset[str]) -> None:
        for name in names:
            self._cluster.topic(name)  # a misspelt name is told at once
