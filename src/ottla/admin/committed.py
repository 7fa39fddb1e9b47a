"""The offsets that consumer groups have committed: reading them and writing them, for everybody who does.

A cluster, a group (or one of its members) and partitions come in; offsets go out, or the first partition's error that
no retry will cure. No state is kept here, and where a partition's log begins or ends is not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from ottla.admin.identity import refuse_replaced
from ottla.errors import BrokerError, ErrorCode, InputError, UnsupportedFormat
from ottla.model import GroupMember, Isolation, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.connection import VersionOf
from ottla.net.deadline import Deadline
from ottla.net.targets import CoordinatorKind, CoordinatorOf
from ottla.wire import messages

OFFSET_COMMIT, OFFSET_FETCH = 8, 9
# Version 10 of both (Kafka 4.1) names topics by id alone: offsets of a topic are never taken for those of another one
# that got its name.
_BY_ID, _BY_NAME = 10, 9
# Version 8 (Kafka 3.0) is the first whose answer is a list of groups.
_LOWEST_FETCH = 8

GROUP_MOVED_ON = frozenset(
    {
        ErrorCode.illegal_generation,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_instance_id,
        ErrorCode.fenced_member_epoch,
        ErrorCode.stale_member_epoch,
        ErrorCode.rebalance_in_progress,
    }
)
"""A commit refused with one of these comes from a member that the group no longer counts on, or not in this epoch."""
_UNKNOWN_TOPIC = frozenset({ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition})


class Committed(NamedTuple):
    """What a group has committed for a partition: the offset of the next record to read, and what was noted with it."""

    offset: int
    leader_epoch: int = -1
    """The epoch of the last record read; -1 where it is not known."""
    metadata: str = ""
    topic_id: UUID | None = None
    """Of a commit: the topic that is meant; None for the one that has the name now, whichever that is."""


def fetch_committed(
    cluster: Cluster,
    member: GroupMember,
    partitions: Collection[TopicPartition] | None,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ids: Mapping[str, UUID | None] | None = None,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, Committed]:
    """What the group has committed for these partitions (None: for all). Those without a commit are absent.

    With READ_COMMITTED, offsets that an open transaction is about to change are waited for (KIP-447). With the `ids` of
    all topics, brokers that can leave out what was committed for an earlier topic of the same name.
    """
    if partitions is not None and not partitions:
        return {}
    what = f"fetching committed offsets of group {member.group}"
    known = {name: topic_id for name, topic_id in (ids or {}).items() if topic_id is not None}
    by_id = partitions is not None and all(at.topic in known for at in partitions)
    names = {topic_id: name for name, topic_id in known.items()}
    fields = {
        "groups": [_asked(member, partitions, known)],
        "require_stable": isolation is Isolation.READ_COMMITTED,
    }

    def build(version_of: VersionOf) -> messages.Message:
        version = version_of(OFFSET_FETCH, highest=_BY_ID if by_id else _BY_NAME)
        if version < _LOWEST_FETCH:
            raise UnsupportedFormat(f"{what} needs OffsetFetch version {_LOWEST_FETCH} (Kafka 3.0), not {version}")
        message: messages.Message = messages.compose(messages.request_type(OFFSET_FETCH, version), fields)
        return message

    target = CoordinatorOf(CoordinatorKind.GROUP, member.group)
    return cluster.call(
        target, build, check=lambda response: _read_fetch(response, names, what), what=what, deadline=deadline
    )


def commit(
    cluster: Cluster,
    member: GroupMember,
    offsets: Mapping[TopicPartition, Committed],
    *,
    deadline: Deadline | None = None,
) -> None:
    """Commits these offsets for the group; BrokerError when a partition is refused (others may be committed then).

    Without a member id it counts only while the group has no members. With one, codes in `GROUP_MOVED_ON` say that
    the member has lost its place, and with it the right to commit. Offsets that name the topic they are meant for are
    committed for that one only: TopicCreatedAgain, and nothing is committed, when another one has its name.
    """
    if not offsets:
        return
    what = f"committing offsets of group {member.group}"
    limit = deadline or Deadline.after(cluster.timeouts.total)
    fields = _commit_fields(member, offsets)
    ids = {at: wanted.topic_id for at, wanted in offsets.items()}
    names = {topic_id: at.topic for at, topic_id in ids.items() if topic_id is not None}
    by_id = None not in ids.values()

    def build(version_of: VersionOf) -> messages.Message:
        version = version_of(OFFSET_COMMIT, highest=_BY_ID if by_id else _BY_NAME)
        if version < _BY_ID:
            refuse_replaced(cluster, ids, deadline=limit)  # the request itself cannot say which topic is meant
        message: messages.Message = messages.compose(messages.request_type(OFFSET_COMMIT, version), fields)
        return message

    def check(response: Any) -> None:
        try:
            _check_commit(response, names, member)
        except BrokerError as error:
            if error.code in _UNKNOWN_TOPIC:
                refuse_replaced(cluster, ids, deadline=limit)
            raise

    cluster.call(CoordinatorOf(CoordinatorKind.GROUP, member.group), build, check=check, what=what, deadline=limit)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partition numbers of each topic, in the order given."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def raise_gravest(errors: Iterable[BrokerError]) -> None:
    """Raises one that no retry will cure if there is one, else the first, else nothing."""
    worst = min(errors, key=lambda error: error.retriable, default=None)
    if worst is not None:
        raise worst


def _asked(
    member: GroupMember, partitions: Collection[TopicPartition] | None, ids: Mapping[str, UUID]
) -> dict[str, Any]:
    topics = None
    if partitions is not None:
        topics = [
            {"name": name, "topic_id": ids.get(name), "partition_indexes": found}
            for name, found in by_topic(partitions).items()
        ]
    return {
        "group_id": member.group,
        # The broker takes a null id for somebody who is no member, an empty one for a member that it does not know.
        "member_id": member.member_id or None,
        "member_epoch": member.generation if member.member_id else -1,
        "topics": topics,
    }


def _read_fetch(response: Any, names: Mapping[UUID, str], what: str) -> dict[TopicPartition, Committed]:
    group = response.groups[0]
    if group.error_code is not ErrorCode.none:
        raise BrokerError(group.error_code, what)
    found = dict(_rows(group, names))
    raise_gravest(
        BrokerError(row.error_code, f"{what}: {partition}")
        for partition, row in found.items()
        if row.error_code is not ErrorCode.none
    )
    return {
        partition: Committed(int(row.committed_offset), int(row.committed_leader_epoch), row.metadata or "")
        for partition, row in found.items()
        if row.committed_offset >= 0
    }


def _commit_fields(member: GroupMember, offsets: Mapping[TopicPartition, Committed]) -> dict[str, Any]:
    topics: dict[tuple[str, UUID | None], list[dict[str, Any]]] = {}
    for partition, wanted in offsets.items():
        if wanted.offset < 0:
            raise InputError(f"offset {wanted.offset} of {partition} cannot be committed: 0 or more is accepted")
        row = {
            "partition_index": partition.partition,
            "committed_offset": wanted.offset,
            "committed_leader_epoch": wanted.leader_epoch,
            "committed_metadata": wanted.metadata,
        }
        topics.setdefault((partition.topic, wanted.topic_id), []).append(row)
    return {
        "group_id": member.group,
        "generation_id_or_member_epoch": member.generation,
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "topics": [
            {"name": name, "topic_id": topic_id, "partitions": rows} for (name, topic_id), rows in topics.items()
        ],
    }


def _check_commit(response: Any, names: Mapping[UUID, str], member: GroupMember) -> None:
    raise_gravest(
        BrokerError(row.error_code, f"committing the offset of {partition} for group {member.group}")
        for partition, row in _rows(response, names)
        if row.error_code is not ErrorCode.none
    )


def _rows(answer: Any, names: Mapping[UUID, str]) -> Iterator[tuple[TopicPartition, Any]]:
    """An answer by id has no names."""
    for topic in answer.topics:
        name = topic.name if hasattr(topic, "name") else names[topic.topic_id]
        for row in topic.partitions:
            yield TopicPartition(name, int(row.partition_index)), row
