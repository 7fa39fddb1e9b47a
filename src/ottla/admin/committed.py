"""The offsets that consumer groups have committed: reading them and writing them, for everybody who does.

A cluster, a group (or one of its members) and partitions come in; offsets go out, or the first partition's error that
no retry will cure. No state is kept here, and where a partition's log begins or ends is not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from ottla.errors import BrokerError, ErrorCode, InputError, UnsupportedFormat
from ottla.model import GroupMember, Isolation, TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.connection import VersionOf
from ottla.net.deadline import Deadline
from ottla.net.targets import CoordinatorKind, CoordinatorOf
from ottla.wire import messages

OFFSET_COMMIT, OFFSET_FETCH = 8, 9
# Version 10 of both names topics by id alone (KIP-848, KIP-516), which a group's offsets of deleted topics do not have.
_HIGHEST = 9
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


class Committed(NamedTuple):
    """What a group has committed for a partition: the offset of the next record to read, and what was noted with it."""

    offset: int
    leader_epoch: int = -1
    """The epoch of the last record read; -1 where it is not known."""
    metadata: str = ""


def fetch_committed(
    cluster: Cluster,
    member: GroupMember,
    partitions: Collection[TopicPartition] | None,
    *,
    isolation: Isolation = Isolation.READ_UNCOMMITTED,
    deadline: Deadline | None = None,
) -> dict[TopicPartition, Committed]:
    """What the group has committed for these partitions (None: for all). Those without a commit are absent.

    With READ_COMMITTED, offsets that an open transaction is about to change are waited for (KIP-447).
    """
    if partitions is not None and not partitions:
        return {}
    what = f"fetching committed offsets of group {member.group}"
    fields = {
        "groups": [_asked(member, partitions)],
        "require_stable": isolation is Isolation.READ_COMMITTED,
    }

    def build(version_of: VersionOf) -> messages.Message:
        version = version_of(OFFSET_FETCH, highest=_HIGHEST)
        if version < _LOWEST_FETCH:
            raise UnsupportedFormat(f"{what} needs OffsetFetch version {_LOWEST_FETCH} (Kafka 3.0), not {version}")
        message: messages.Message = messages.compose(messages.request_type(OFFSET_FETCH, version), fields)
        return message

    target = CoordinatorOf(CoordinatorKind.GROUP, member.group)
    return cluster.call(target, build, check=lambda response: _read_fetch(response, what), what=what, deadline=deadline)


def commit(
    cluster: Cluster,
    member: GroupMember,
    offsets: Mapping[TopicPartition, Committed],
    *,
    deadline: Deadline | None = None,
) -> None:
    """Commits these offsets for the group; BrokerError when a partition is refused (others may be committed then).

    Without a member id it counts only while the group has no members. With one, codes in `GROUP_MOVED_ON` say that
    the member has lost its place, and with it the right to commit.
    """
    if not offsets:
        return
    what = f"committing offsets of group {member.group}"
    fields = _commit_fields(member, offsets)

    def build(version_of: VersionOf) -> messages.Message:
        version = version_of(OFFSET_COMMIT, highest=_HIGHEST)
        message: messages.Message = messages.compose(messages.request_type(OFFSET_COMMIT, version), fields)
        return message

    target = CoordinatorOf(CoordinatorKind.GROUP, member.group)
    cluster.call(target, build, check=lambda response: _check_commit(response, member), what=what, deadline=deadline)


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


def _asked(member: GroupMember, partitions: Collection[TopicPartition] | None) -> dict[str, Any]:
    topics = None
    if partitions is not None:
        topics = [{"name": name, "partition_indexes": found} for name, found in by_topic(partitions).items()]
    return {
        "group_id": member.group,
        # The broker takes a null id for somebody who is no member, an empty one for a member that it does not know.
        "member_id": member.member_id or None,
        "member_epoch": member.generation if member.member_id else -1,
        "topics": topics,
    }


def _read_fetch(response: Any, what: str) -> dict[TopicPartition, Committed]:
    group = response.groups[0]
    if group.error_code is not ErrorCode.none:
        raise BrokerError(group.error_code, what)
    found = dict(_rows(group))
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
    topics: dict[str, list[dict[str, Any]]] = {}
    for partition, wanted in offsets.items():
        if wanted.offset < 0:
            raise InputError(f"offset {wanted.offset} of {partition} cannot be committed: 0 or more is accepted")
        row = {
            "partition_index": partition.partition,
            "committed_offset": wanted.offset,
            "committed_leader_epoch": wanted.leader_epoch,
            "committed_metadata": wanted.metadata,
        }
        topics.setdefault(partition.topic, []).append(row)
    return {
        "group_id": member.group,
        "generation_id_or_member_epoch": member.generation,
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }


def _check_commit(response: Any, member: GroupMember) -> None:
    raise_gravest(
        BrokerError(row.error_code, f"committing the offset of {partition} for group {member.group}")
        for partition, row in _rows(response)
        if row.error_code is not ErrorCode.none
    )


def _rows(answer: Any) -> Iterator[tuple[TopicPartition, Any]]:
    for topic in answer.topics:
        for row in topic.partitions:
            yield TopicPartition(topic.name, int(row.partition_index)), row
