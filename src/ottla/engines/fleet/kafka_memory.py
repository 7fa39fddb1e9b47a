"""What a group remembers in Kafka, so that a store that forgets is noticed: how far it is, and the highest number.

It is kept as committed offsets of a consumer group of its own: the offset is up to where everything is done, the note
beside it says up to where units were planned and which number a lease had last.
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
"""For keeping something: it is tried again, and nobody waits for it longer than this at the end."""
_NOTE = re.compile(r"planned=(\d+) number=(\d+)( removed)?")


class RememberedPosition(NamedTuple):
    """What Kafka knows of one partition."""

    done: int
    planned: int
    number: int
    removed: bool
    """Whether the group did not work on the topic any more."""


def memory_group(group: str) -> str:
    """The consumer group in Kafka in which a fleet's group keeps its memory."""
    return f"ottla-fleet.{group}"


def recall(
    cluster: Cluster, group: str, partitions: Collection[TopicPartition] | None
) -> dict[TopicPartition, RememberedPosition]:
    """What is remembered of these partitions (None: of all)."""
    member = GroupMember(memory_group(group))
    found = fetch_committed(cluster, member, partitions, deadline=Deadline.after(_SECONDS))
    return {at: _read(committed) for at, committed in found.items()}


def _read(committed: Committed) -> RememberedPosition:
    note = _NOTE.fullmatch(committed.metadata)
    planned, number = (int(note[1]), int(note[2])) if note else (committed.offset, 0)
    return RememberedPosition(
        committed.offset, max(planned, committed.offset), number, note is not None and bool(note[3])
    )


def remember(cluster: Cluster, group: str, lanes: Mapping[TopicPartition, PartitionState], seen: Snapshot) -> None:
    """Keeps how these partitions stand, of the topics that they are of: another one may have a name by now."""
    offsets = {
        at: Committed(
            lane.done,
            topic_id=_topic_id(at, seen),
            metadata=f"planned={lane.planned} number={seen.number}{'' if at.topic in seen.topics else ' removed'}",
        )
        for at, lane in lanes.items()
    }
    if offsets:
        commit(cluster, GroupMember(memory_group(group)), offsets, deadline=Deadline.after(_SECONDS))


def publish(cluster: Cluster, group: str, lanes: Mapping[TopicPartition, PartitionState], seen: Snapshot) -> None:
    """Tells an ordinary consumer group how far everything is done, for tools that look at its lag."""
    offsets = {at: Committed(lane.done, topic_id=_topic_id(at, seen)) for at, lane in lanes.items()}
    if offsets:
        commit(cluster, GroupMember(group), offsets, deadline=Deadline.after(_SECONDS))


def _topic_id(at: TopicPartition, seen: Snapshot) -> UUID | None:
    known = seen.topics.get(at.topic)
    return UUID(known) if known else None
