"""The leaders of the partitions that are read, and the partitions that a topic has.

Cursors with a leader in doubt come in, and metadata after a lookup; the cursors learn which broker to fetch from. A
topic that was deleted and created again is noticed here by its id. Pure: the loop runs the lookups.
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
    """Why its leader is unknown, or None."""
    is_other: bool
    """The topic has another id than the one that is read."""


class Leaders:
    """The leaders of the cursors of one loop. `refresh` schedules the lookups."""

    def __init__(self, refresh: MetadataRefresh, followed: frozenset[str] = frozenset()) -> None:
        self.refresh = refresh
        self.followed = followed

    def follow(self, topics: Iterable[str], now: float) -> None:
        """Also read partitions that are added to these topics later, from their start."""
        self.followed = frozenset(topics)
        self.refresh.mark_fresh(now)

    def doubt(self, cursor: Cursor) -> None:
        """Look up the leader of a cursor again."""
        cursor.leader = UNKNOWN
        self.refresh.doubt(cursor.tp.topic)

    def due(self, now: float, topics: frozenset[str]) -> Lookup | None:
        """Return what to look up now, or None. `topics` are those that are read."""
        return self.refresh.due(now, topics | self.followed, refreshed=self.followed)

    def next_at(self, topics: frozenset[str]) -> float:
        """Return when `due` has the next lookup."""
        return self.refresh.next_at(topics | self.followed)

    def newcomers(self, metadata: Metadata, read: Collection[TopicPartition]) -> list[Cursor]:
        """Return cursors for the partitions of followed topics that are not read yet."""
        return [
            Cursor(TopicPartition(name, partition.index), 0)
            for name in self.followed & metadata.topics.keys()
            for partition in metadata.topics[name].partitions
            if TopicPartition(name, partition.index) not in read
        ]

    def learn(self, cursor: Cursor, metadata: Metadata) -> LeaderUpdate:
        """Set the leader of a cursor from metadata. If it is unknown, it stays in doubt."""
        tp = cursor.tp
        topic = metadata.topics.get(tp.topic)
        is_other = False
        if topic is not None and topic.id is not None and not cursor.is_over:
            if not cursor.is_id_confirmed:
                cursor.topic_id = topic.id
            else:
                is_other = topic.id != cursor.topic_id  # whether or not the new topic has this partition
        partition = topic.partition(tp.partition) if topic is not None else None
        if topic is None or partition is None:
            self.refresh.doubt(tp.topic)
            code = ErrorCode.unknown_topic_or_partition if topic is None or not topic.error else topic.error
            return LeaderUpdate(BrokerError(int(code), f"reading {tp}"), is_other)
        if partition.leader < 0:
            self.refresh.doubt(tp.topic)
            reason = int(partition.error) or int(ErrorCode.leader_not_available)
            return LeaderUpdate(BrokerError(reason, f"reading {tp}"), is_other)
        cursor.leader, cursor.leader_epoch = partition.leader, partition.leader_epoch
        return LeaderUpdate(None, is_other)
