"""Groups and their members: the requests to list, describe and delete them, and what the responses mean.

Comes in: names, and responses as entities of the classic protocol or of KIP-848. Goes out: requests, and the same
values for both protocols. Pure: `GroupAdmin` sends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Any

from ottla.admin.committed import Committed, by_topic
from ottla.errors import BrokerError, ErrorCode, WireError
from ottla.model import TopicPartition
from ottla.net.connection import VersionOf
from ottla.wire import entities, messages

DESCRIBE_GROUPS, LIST_GROUPS, DELETE_GROUPS, OFFSET_DELETE, CONSUMER_GROUP_DESCRIBE = 15, 16, 42, 47, 69
_CONSUMER = "consumer"
_DEAD = "Dead"
_VERSION = Struct(">h")
_LAST_EMBEDDED = 3


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group in its coordinator's list. `type` is classic, consumer (KIP-848), share or streams."""

    name: str
    state: str
    """As Kafka names it: Stable, Empty, PreparingRebalance, ...; empty before Kafka 2.6."""
    type: str
    protocol_type: str
    """What its members do: "consumer", "connect"; empty if offsets were committed without members."""
    coordinator: int
    """The id of the broker."""


@dataclass(frozen=True, slots=True)
class DescribedMember:
    """A member of a group. `epoch` and `target` are None with the classic protocol, which does not have them."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None = None
    """The id of a static member (KIP-345)."""
    assigned: tuple[TopicPartition, ...] = ()
    """The partitions it owns now."""
    subscribed: tuple[str, ...] = ()
    pattern: str | None = None
    """The regular expression it subscribes to, evaluated by the broker (KIP-848)."""
    epoch: int | None = None
    target: tuple[TopicPartition, ...] | None = None
    """Its partitions after the rebalance."""

    def __str__(self) -> str:
        static = f", instance {self.instance_id}" if self.instance_id else ""
        return f"{self.client_id or 'a client without name'} on {self.host.lstrip('/')} ({self.member_id}{static})"


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members, for either protocol."""

    name: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    """How partitions are assigned: range, cooperative-sticky, uniform, ...; empty without members."""
    members: tuple[DescribedMember, ...] = ()
    epoch: int | None = None
    """The epoch of the group; None with the classic protocol."""


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far a group is in a partition. `start` and `stop` are None if no broker can tell: see `find_ranges`."""

    partition: TopicPartition
    committed: Committed | None
    start: int | None
    """The first offset of the log."""
    stop: int | None
    """The end of the log: the offset after its last record."""

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the log's end; None if either is unknown."""
        if self.committed is None or self.stop is None:
            return None
        return self.stop - self.committed.offset


def build_list(version_of: VersionOf) -> messages.Message:
    """Build a ListGroups request for all groups of one coordinator."""
    message: messages.Message = messages.compose(
        messages.request_type(LIST_GROUPS, version_of(LIST_GROUPS)), {"states_filter": (), "types_filter": ()}
    )
    return message


def read_list(response: Any, broker: int) -> list[ListedGroup]:
    """Return the groups that this broker coordinates. Raises the broker's error."""
    if response.error_code is not ErrorCode.none:
        raise BrokerError(response.error_code, f"listing the groups of broker {broker}")
    return [
        ListedGroup(
            row.group_id,
            # KIP-518 and KIP-848: since Kafka 2.6 and 3.8.
            getattr(row, "group_state", ""),
            getattr(row, "group_type", "classic").lower(),
            row.protocol_type,
            broker,
        )
        for row in response.groups
    ]


def build_describe_classic(version_of: VersionOf, group: str) -> messages.Message:
    """Build a DescribeGroups request."""
    fields = {"groups": (group,), "include_authorized_operations": False}
    message: messages.Message = messages.compose(
        messages.request_type(DESCRIBE_GROUPS, version_of(DESCRIBE_GROUPS)), fields
    )
    return message


def read_describe_classic(response: Any) -> GroupDescription:
    """Return the group. Older brokers report a group that does not exist as dead."""
    return classic_group(response.groups[0])


def classic_group(row: Any) -> GroupDescription:
    """Return one group of a DescribeGroups response. Raises its `BrokerError`."""
    code = row.error_code
    if code is ErrorCode.none and row.group_state == _DEAD:
        code = ErrorCode.group_id_not_found
    if code is not ErrorCode.none:
        raise BrokerError(code, f"describing group {row.group_id}", getattr(row, "error_message", None))
    reads = row.protocol_type == _CONSUMER
    members = tuple(_classic_member(member, row.protocol_type) for member in row.members)
    assignor = row.protocol_data if reads else ""
    return GroupDescription(row.group_id, row.group_state, "classic", row.protocol_type, assignor, members)


def build_describe_consumer(version_of: VersionOf, group: str) -> messages.Message:
    """Build a ConsumerGroupDescribe request (KIP-848)."""
    fields = {"group_ids": (group,), "include_authorized_operations": False}
    message: messages.Message = messages.compose(
        messages.request_type(CONSUMER_GROUP_DESCRIBE, version_of(CONSUMER_GROUP_DESCRIBE)), fields
    )
    return message


def read_describe_consumer(response: Any) -> GroupDescription:
    """Return the group. Raises GROUP_ID_NOT_FOUND also if it uses another protocol."""
    return consumer_group(response.groups[0])


def consumer_group(row: Any) -> GroupDescription:
    """Return one group of a ConsumerGroupDescribe response. Raises its `BrokerError`."""
    if row.error_code is not ErrorCode.none:
        raise BrokerError(row.error_code, f"describing group {row.group_id}", row.error_message)
    members = tuple(map(_consumer_member, row.members))
    return GroupDescription(
        row.group_id, row.group_state, _CONSUMER, _CONSUMER, row.assignor_name, members, int(row.group_epoch)
    )


def build_delete(version_of: VersionOf, group: str) -> messages.Message:
    """Build a DeleteGroups request."""
    message: messages.Message = messages.compose(
        messages.request_type(DELETE_GROUPS, version_of(DELETE_GROUPS)), {"groups_names": (group,)}
    )
    return message


def check_delete(response: Any) -> None:
    """Raise the group's error, if any."""
    for row in response.results:
        if row.error_code is not ErrorCode.none:
            raise BrokerError(row.error_code, f"deleting group {row.group_id}", getattr(row, "error_message", None))


def build_delete_offsets(version_of: VersionOf, group: str, partitions: Collection[TopicPartition]) -> messages.Message:
    """Build an OffsetDelete request (KIP-496)."""
    topics = [
        {"name": name, "partitions": [{"partition_index": index} for index in indexes]}
        for name, indexes in by_topic(partitions).items()
    ]
    fields = {"group_id": group, "topics": topics}
    message: messages.Message = messages.compose(
        messages.request_type(OFFSET_DELETE, version_of(OFFSET_DELETE)), fields
    )
    return message


def delete_offsets_errors(response: Any, group: str) -> Iterator[BrokerError]:
    """Yield the group's error, or those of its partitions."""
    if response.error_code is not ErrorCode.none:
        yield BrokerError(response.error_code, f"deleting offsets of group {group}")
    for topic in response.topics:
        for row in topic.partitions:
            if row.error_code is not ErrorCode.none:
                where = TopicPartition(topic.name, int(row.partition_index))
                yield BrokerError(row.error_code, f"deleting the offset of {where} for group {group}")


def in_use(group: str, members: Collection[DescribedMember]) -> BrokerError:
    """Return the error for a group that must have no members, but has these."""
    # A group may have hundreds of members.
    shown = [str(member) for member in list(members)[:5]]
    more = f" and {len(members) - len(shown)} more" if len(members) > len(shown) else ""
    names = f"{len(members)} member{'s' if len(members) != 1 else ''}: {', '.join(shown)}{more}"
    return BrokerError(ErrorCode.non_empty_group, f"group {group} is in use", names)


def _classic_member(row: Any, protocol_type: str) -> DescribedMember:
    """Build a member of a classic group. Only consumers use the embedded format that is known here."""
    reads = protocol_type == _CONSUMER
    assignment = _embedded("assignment", row.member_assignment) if reads else None
    subscription = _embedded("subscription", row.member_metadata) if reads else None
    listed = getattr(assignment, "assigned_partitions", ())
    return DescribedMember(
        row.member_id,
        row.client_id,
        row.client_host,
        getattr(row, "group_instance_id", None),
        assigned=_flat((entry.topic, entry.partitions) for entry in listed),
        subscribed=tuple(sorted(getattr(subscription, "topics", ()))),
    )


def _consumer_member(row: Any) -> DescribedMember:
    """Build a member of a KIP-848 group."""
    return DescribedMember(
        row.member_id,
        row.client_id,
        row.client_host,
        row.instance_id,
        assigned=_flat((entry.topic_name, entry.partitions) for entry in row.assignment.topic_partitions),
        subscribed=tuple(sorted(row.subscribed_topic_names)),
        pattern=row.subscribed_topic_regex or None,
        epoch=int(row.member_epoch),
        target=_flat((entry.topic_name, entry.partitions) for entry in row.target_assignment.topic_partitions),
    )


def _flat(topics: Iterable[tuple[str, Iterable[int]]]) -> tuple[TopicPartition, ...]:
    """Return the partitions of several topics, sorted."""
    return tuple(sorted(TopicPartition(name, int(index)) for name, indexes in topics for index in indexes))


def _embedded(kind: str, data: bytes) -> Any:
    """Decode what a member of a classic group wrote for the others; None if it is empty or cannot be decoded."""
    if len(data) < _VERSION.size:
        return None
    version = min(_VERSION.unpack_from(data)[0], _LAST_EMBEDDED)
    if version < 0:
        return None
    entity_type = messages.data_type(f"consumer_protocol_{kind}", version)
    try:
        # A newer version only appends fields.
        return entities.read_entity(entity_type, memoryview(data), _VERSION.size)[0]
    except WireError:
        return None
