"""Reads and writes the offsets that consumer groups have committed.

Comes in: a cluster, a group (or one of its members) and partitions. Goes out: offsets, or the first error that no retry
will cure. It keeps no state, and does not check where a log begins or ends.
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
# Version 10 of both (Kafka 4.1) identifies topics by id alone, so offsets of a topic are never mistaken for those of a
# later topic with the same name.
_BY_ID, _BY_NAME = 10, 9
# Version 8 (Kafka 3.0) is the first whose response is a list of groups.
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
"""Error codes of a commit from a member that the group has removed, or that is in an old epoch."""
_UNKNOWN_TOPIC = frozenset({ErrorCode.unknown_topic_id, ErrorCode.unknown_topic_or_partition})


class Committed(NamedTuple):
    """What a group has committed for a partition: the offset of the next record to read, and its metadata."""

    offset: int
    leader_epoch: int = -1
    """The leader epoch of the last record read; -1 if unknown."""
    metadata: str = ""
    topic_id: UUID | None = None
    """For a commit: the id of the topic that is meant; None for the topic that has the name now."""


def fetch_committed(
    cluster: Cluster,
    member: GroupMember,
    partitions: Collection[TopicPartition] | None,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    ids: Mapping[str, UUID | None] | None = None,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, Committed]:
    """Return what the group has committed for these partitions (None: for all). Those without a commit are absent.

    With READ_COMMITTED, waits for offsets that an open transaction is about to change (KIP-447). With the `ids` of all
    topics, brokers since 4.1 leave out commits for an earlier topic of the same name. Raises `UnsupportedFormat` for
    brokers before 3.0.
    """
    if partitions is not None and not partitions:
        return {}
    what = f"fetching committed offsets of group {member.group}"
    known = {name: topic_id for name, topic_id in (ids or {}).items() if topic_id is not None}
    by_id = partitions is not None and all(tp.topic in known for tp in partitions)
    names = {topic_id: name for name, topic_id in known.items()}
    fields = {
        "groups": [_requested_group(member, partitions, known)],
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
    """Commit these offsets for the group. Raises `BrokerError` if a partition is rejected; others may be committed.

    Without a member id, brokers accept it only while the group has no members. With one, codes in `GROUP_MOVED_ON` mean
    that the group has removed the member, which must not commit any more. Offsets with a topic id are committed for
    that topic only: raises `TopicCreatedAgain`, and commits nothing, if another topic has its name.
    """
    if not offsets:
        return
    what = f"committing offsets of group {member.group}"
    limit = deadline or cluster.deadline()
    fields = _commit_fields(member, offsets)
    ids = {tp: entry.topic_id for tp, entry in offsets.items()}
    names = {topic_id: tp.topic for tp, topic_id in ids.items() if topic_id is not None}
    by_id = None not in ids.values()

    def build(version_of: VersionOf) -> messages.Message:
        version = version_of(OFFSET_COMMIT, highest=_BY_ID if by_id else _BY_NAME)
        if version < _BY_ID:
            refuse_replaced(cluster, ids, deadline=limit)  # the request itself cannot identify the topic
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
    """Return the partition numbers of each topic, in the given order."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def raise_gravest(errors: Iterable[BrokerError]) -> None:
    """Raise an error that no retry will cure if there is one, else the first, else nothing."""
    worst = min(errors, key=lambda error: error.retriable, default=None)
    if worst is not None:
        raise worst


def _requested_group(
    member: GroupMember, partitions: Collection[TopicPartition] | None, ids: Mapping[str, UUID]
) -> dict[str, Any]:
    """Build the group of an OffsetFetch request. Topics null means all."""
    topics = None
    if partitions is not None:
        topics = [
            {"name": name, "topic_id": ids.get(name), "partition_indexes": indexes}
            for name, indexes in by_topic(partitions).items()
        ]
    return {
        "group_id": member.group,
        # Brokers take a null id for a client that is not a member, an empty one for an unknown member.
        "member_id": member.member_id or None,
        "member_epoch": member.generation if member.member_id else -1,
        "topics": topics,
    }


def _read_fetch(response: Any, names: Mapping[UUID, str], what: str) -> dict[TopicPartition, Committed]:
    """Return the offsets of the response. -1 stands for no commit."""
    group = response.groups[0]
    if group.error_code is not ErrorCode.none:
        raise BrokerError(group.error_code, what)
    rows = dict(_rows(group, names))
    raise_gravest(
        BrokerError(row.error_code, f"{what}: {partition}")
        for partition, row in rows.items()
        if row.error_code is not ErrorCode.none
    )
    return {
        partition: Committed(int(row.committed_offset), int(row.committed_leader_epoch), row.metadata or "")
        for partition, row in rows.items()
        if row.committed_offset >= 0
    }


def _commit_fields(member: GroupMember, offsets: Mapping[TopicPartition, Committed]) -> dict[str, Any]:
    """Build the fields of an OffsetCommit request."""
    topics: dict[tuple[str, UUID | None], list[dict[str, Any]]] = {}
    for partition, entry in offsets.items():
        if entry.offset < 0:
            raise InputError(f"offset {entry.offset} of {partition} cannot be committed: it must be 0 or more")
        row = {
            "partition_index": partition.partition,
            "committed_offset": entry.offset,
            "committed_leader_epoch": entry.leader_epoch,
            "committed_metadata": entry.metadata,
        }
        topics.setdefault((partition.topic, entry.topic_id), []).append(row)
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
    """Raise the gravest error of the partitions."""
    raise_gravest(
        BrokerError(row.error_code, f"committing the offset of {partition} for group {member.group}")
        for partition, row in _rows(response, names)
        if row.error_code is not ErrorCode.none
    )


def _rows(response: Any, names: Mapping[UUID, str]) -> Iterator[tuple[TopicPartition, Any]]:
    """Yield partition and row. A response by id has no names."""
    for topic in response.topics:
        name = topic.name if hasattr(topic, "name") else names[topic.topic_id]
        for row in topic.partitions:
            yield TopicPartition(name, int(row.partition_index)), row
