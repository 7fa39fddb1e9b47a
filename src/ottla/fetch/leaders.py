"""Who leads the partitions that are being read, and which partitions there are.

Courses whose leader is in doubt come in, and metadata when a loop has looked it up; cursors learn whom to ask. A topic
that was deleted and created again is noticed here, by its id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from ottla.errors import BrokerError, ErrorCode, OttlaError
from ottla.fetch.cursor import UNKNOWN, Cursor
from ottla.model import TopicPartition
from ottla.net.metadata import Metadata
from ottla.net.refresh import Lookup, MetadataRefresh


class LeaderUpdate(NamedTuple):
    """What metadata says about a cursor."""

    error: OttlaError | None
    """Why its leader is not known; None when it is."""
    is_other: bool
    """The topic has another id than the one that is being read."""


class Leaders:
    """Of the cursors of one loop. `watch` says when topics are looked up."""

    def __init__(self, watch: MetadataRefresh, followed: frozenset[str] = frozenset()) -> None:
        self.watch = watch
        self.followed = followed

    def follow(self, topics: Iterable[str], now: float) -> None:
        """Partitions that these topics get later are read, too, from their beginning."""
        self.followed = frozenset(topics)
        self.watch.refresh(now)

    def doubt(self, cursor: Cursor) -> None:
        """Its leader is looked up again."""
        cursor.leader = UNKNOWN
        self.watch.doubt(cursor.tp.topic)

    def due(self, now: float, topics: frozenset[str]) -> Lookup | None:
        """What to look up now; `topics` are those that are being read."""
        return self.watch.due(now, topics | self.followed, refreshed=self.followed)

    def next_at(self, topics: frozenset[str]) -> float:
        """When `due` has something."""
        return self.watch.next_at(topics | self.followed)

    def newcomers(self, metadata: Metadata, read: Collection[TopicPartition]) -> list[Cursor]:
        """The partitions of followed topics that are not being read yet."""
        return [
            Cursor(TopicPartition(name, partition.index), 0)
            for name in self.followed & metadata.topics.keys()
            for partition in metadata.topics[name].partitions
            if TopicPartition(name, partition.index) not in read
        ]

    def learn(self, cursor: Cursor, metadata: Metadata) -> LeaderUpdate:
        """The cursor learns who leads its partition; where that is not known, it stays in doubt."""
        at = cursor.tp
        topic = metadata.topics.get(at.topic)
        is_other = False
        if topic is not None and topic.id is not None and not cursor.is_over:
            if not cursor.is_id_confirmed:
                cursor.topic_id = topic.id
            else:
                is_other = topic.id != cursor.topic_id  # whether or not the new topic has such a partition
        partition = topic.partition(at.partition) if topic is not None else None
        if topic is None or partition is None:
            self.watch.doubt(at.topic)
            code = ErrorCode.unknown_topic_or_partition if topic is None or not topic.error else topic.error
            return LeaderUpdate(BrokerError(int(code), f"reading {at}"), is_other)
        if partition.leader < 0:
            self.watch.doubt(at.topic)
            reason = int(partition.error) or int(ErrorCode.leader_not_available)
            return LeaderUpdate(BrokerError(reason, f"reading {at}"), is_other)
        cursor.leader, cursor.leader_epoch = partition.leader, partition.leader_epoch
        return LeaderUpdate(None, is_other)
