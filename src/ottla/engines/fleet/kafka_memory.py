"""The positions of a group as committed offsets in Kafka, so that a store that loses data is noticed.

They belong to a consumer group of their own. The committed offset is where everything below is done. Its metadata says
up to where units were planned, and the highest lease number.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import NamedTuple
from uuid import UUID

from ottla.admin.committed import Committed, commit, fetch_committed
from ottla.engines.fleet.units import PartitionState, Snapshot
from ottla.model import GroupMember, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline

_SECONDS = 5.0
"""Deadline of each request. The caller retries later, and closing a node must not wait longer than this."""
_NOTE = re.compile(r"planned=(\d+) number=(\d+)( removed)?")


class RememberedPosition(NamedTuple):
    """What Kafka remembers of one partition."""

    done: int
    planned: int
    number: int
    """The highest lease number at that time."""
    removed: bool
    """Whether the topic was already removed from the group."""


def memory_group(group: str) -> str:
    """Return the consumer group in which a fleet's group keeps its positions."""
    return f"ottla-fleet.{group}"


def recall(
    cluster: Cluster, group: str, partitions: Collection[TopicPartition] | None
) -> dict[TopicPartition, RememberedPosition]:
    """Return what is remembered of these partitions (None: of all). Raises `OttlaError` if Kafka does not answer."""
    member = GroupMember(memory_group(group))
    offsets = fetch_committed(cluster, member, partitions, deadline=Deadline.after(_SECONDS))
    return {partition: _read(committed) for partition, committed in offsets.items()}


def _read(committed: Committed) -> RememberedPosition:
    """Decode a committed offset. Without our metadata, nothing beyond the offset counts as planned."""
    note = _NOTE.fullmatch(committed.metadata)
    planned, number = (int(note[1]), int(note[2])) if note else (committed.offset, 0)
    return RememberedPosition(
        committed.offset, max(planned, committed.offset), number, note is not None and bool(note[3])
    )


def remember(cluster: Cluster, group: str, states: Mapping[TopicPartition, PartitionState], seen: Snapshot) -> None:
    """Commit the positions of these partitions. Raises `OttlaError` if Kafka does not accept them."""
    offsets = {
        partition: Committed(
            state.done,
            topic_id=_topic_id(partition, seen),
            metadata=(
                f"planned={state.planned} number={seen.number}{'' if partition.topic in seen.topics else ' removed'}"
            ),
        )
        for partition, state in states.items()
    }
    if offsets:
        commit(cluster, GroupMember(memory_group(group)), offsets, deadline=Deadline.after(_SECONDS))


def publish(cluster: Cluster, group: str, states: Mapping[TopicPartition, PartitionState], seen: Snapshot) -> None:
    """Commit the positions to an ordinary consumer group, for tools that watch its lag.

    Raises `OttlaError` if Kafka does not accept them.
    """
    offsets = {
        partition: Committed(state.done, topic_id=_topic_id(partition, seen)) for partition, state in states.items()
    }
    if offsets:
        commit(cluster, GroupMember(group), offsets, deadline=Deadline.after(_SECONDS))


def _topic_id(partition: TopicPartition, seen: Snapshot) -> UUID | None:
    """The id that the positions belong to: a recreated topic may have the name by now."""
    known = seen.topics.get(partition.topic)
    return UUID(known) if known else None
