"""Who leads the partitions that are being read, and which partitions there are.

Courses whose leader is in doubt come in; metadata is asked for beside the loop, and courses learn whom to ask. A topic
that was deleted and created again is noticed here, by its id.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable

from ottla.errors import BrokerError, ErrorCode, OttlaError
from ottla.fetch.course import Course
from ottla.fetch.troubles import Troubles
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.net.errands import Errands
from ottla.net.links import Link
from ottla.net.metadata import Metadata

_GROWTH_SECONDS = 30.0
"""How often new partitions are looked for."""


class Leaders:
    """Used by the thread of the loop. `courses` is the loop's own; `add` is told of partitions that are new."""

    def __init__(
        self,
        cluster: Cluster,
        courses: dict[TopicPartition, Course],
        *,
        troubles: Troubles,
        errands: Errands,
        chance: random.Random,
        add: Callable[[list[Course]], None],
    ) -> None:
        self._cluster = cluster
        self._courses = courses
        self._troubles = troubles
        self._errands = errands
        self._chance = chance
        self._add = add
        self._doubted: set[str] = set()
        self._followed: frozenset[str] = frozenset()
        self._refresh_at = math.inf
        self._look_at = 0.0
        self._failures = 0

    @property
    def next_look(self) -> float:
        """When `look` has something to do."""
        return self._look_at if self._doubted else self._refresh_at

    def follow(self, topics: Iterable[str]) -> None:
        """Partitions that these topics get later are read, too, from their beginning."""
        self._followed = frozenset(topics)
        self._refresh_at = time.monotonic() + self._refresh_seconds

    @property
    def _refresh_seconds(self) -> float:
        return min(_GROWTH_SECONDS, self._cluster.timeouts.metadata_age)

    def link_changed(self, link: Link) -> None:
        """A broker is away, or back."""
        if not link.is_away:
            return
        now = time.monotonic()
        for course in self._courses.values():
            if course.leader == link.broker.id and not course.is_over:
                self.doubt(course)
                if link.error is not None and course.trouble_since > now:
                    self._troubles.stumble(course, link.error, now)

    def doubt(self, course: Course) -> None:
        """Its leader is looked up again."""
        course.leader = -1
        self._doubted.add(course.at.topic)

    def look(self, now: float) -> None:
        """Asks for metadata when something is in doubt, or new partitions may be there."""
        if self._followed and now >= self._refresh_at:
            self._refresh_at = now + self._refresh_seconds
            self._doubted |= self._followed
        if not self._doubted or now < self._look_at or self._errands.busy("metadata"):
            return
        names, self._doubted = self._doubted & ({at.topic for at in self._courses} | self._followed), set()
        if not names:
            return
        limit = Deadline.after(self._cluster.timeouts.request)

        def failed(error: OttlaError) -> None:
            self._look_again(names, error)

        self._errands.run(
            "metadata", lambda: self._cluster.metadata(names, deadline=limit), done=self._learn_all, failed=failed
        )

    def _look_again(self, names: set[str], error: OttlaError) -> None:
        now = time.monotonic()
        self._failures += 1
        self._look_at = now + self._cluster.retry.wait(self._failures, self._chance.random())
        for course in self._courses.values():
            if course.at.topic in names and course.leader < 0:
                self._troubles.stumble(course, error, now)
                self._doubted.add(course.at.topic)

    def _learn_all(self, metadata: Metadata) -> None:
        now = time.monotonic()
        self._add(
            [
                Course(TopicPartition(name, partition.index), 0)
                for name in self._followed & metadata.topics.keys()
                for partition in metadata.topics[name].partitions
                if TopicPartition(name, partition.index) not in self._courses
            ]
        )
        missing: dict[str, OttlaError] = {}
        for course in list(self._courses.values()):
            if course.at.topic in metadata.topics:
                error = self.learn(course, metadata)
                if error is not None:
                    missing[course.at.topic] = error
        if missing:
            for topic, error in missing.items():
                self._look_again({topic}, error)
        else:
            self._failures = 0
            self._look_at = now + self._cluster.retry.initial

    def learn(self, course: Course, metadata: Metadata) -> OttlaError | None:
        """Who leads the partition; the reason when that cannot be told."""
        at = course.at
        topic = metadata.topics.get(at.topic)
        if topic is not None and topic.id is not None and not course.is_over:
            if not course.is_certain:
                course.topic_id = topic.id
            elif topic.id != course.topic_id:
                self._troubles.suspect(course)  # whether or not the new topic has such a partition
        partition = topic.partition(at.partition) if topic is not None else None
        if topic is None or partition is None:
            self._doubted.add(at.topic)
            code = ErrorCode.unknown_topic_or_partition if topic is None or not topic.error else topic.error
            return BrokerError(int(code), f"reading {at}")
        if partition.leader < 0:
            self._doubted.add(at.topic)
            return BrokerError(int(partition.error) or int(ErrorCode.leader_not_available), f"reading {at}")
        course.leader, course.leader_epoch = partition.leader, partition.leader_epoch
        return None
