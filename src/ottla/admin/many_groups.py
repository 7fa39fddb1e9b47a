"""Reads what thousands of groups have committed, and who their members are, with a few requests.

Comes in: a cluster, and the brokers to ask. Goes out: the groups that each broker coordinates, and for each of them a
`GroupReading`. An OffsetFetch request asks for hundreds of groups (version 8, Kafka 3.0), and so do the requests that
describe members. Nothing is retried: a broker that is away, or a group that moves to another coordinator, is an error
beside the others, and the caller looks again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ottla.admin import groups
from ottla.admin.all_brokers import Build, Traffic, ask_all
from ottla.admin.groups import GroupDescription, ListedGroup
from ottla.errors import BrokerError, ErrorCode, OttlaError, UnsupportedFormat
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster
from ottla.net.connection import VersionOf
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker
from ottla.wire import messages

OFFSET_FETCH, SHARE_GROUP_DESCRIBE, DESCRIBE_SHARE_GROUP_OFFSETS = 9, 77, 90
_BY_NAME = 9
_LOWEST_FETCH = 8
_PER_REQUEST = 250
"""Groups in a request: its response stays below a few MB even if each has hundreds of partitions."""
_WITHOUT_MEMBERS = frozenset({"Empty", "Dead"})
SHARE, STREAMS, CONSUMER, CLASSIC = "share", "streams", "consumer", "classic"


class Owner(NamedTuple):
    """The member that reads a partition now."""

    member_id: str
    client_id: str
    host: str


@dataclass(frozen=True, slots=True)
class GroupReading:
    """What a coordinator knows of one group."""

    group: ListedGroup
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Partitions without a commit are absent. For a share group, where its oldest record in flight is."""
    lags: Mapping[TopicPartition, int] = field(default_factory=dict)
    """For a share group, the records that are not delivered for good, where the broker counts them (Kafka 4.2)."""
    owners: Mapping[TopicPartition, Owner] = field(default_factory=dict)
    members: int | None = None
    """None if unknown."""
    error: OttlaError | None = None
    """Why the offsets are unknown; the rest may be known."""


def list_groups(
    cluster: Cluster, brokers: Iterable[Broker], *, deadline: Deadline, traffic: Traffic | None = None
) -> tuple[dict[Broker, list[ListedGroup]], dict[Broker, OttlaError]]:
    """Return the groups of each broker, and why others could not list theirs."""
    asked = list(brokers)
    listed: dict[Broker, list[ListedGroup]] = {}
    errors: dict[Broker, OttlaError] = {}
    answers = ask_all(cluster, [(broker, groups.build_list) for broker in asked], deadline=deadline, traffic=traffic)
    for broker, answer in zip(asked, answers, strict=True):
        try:
            if isinstance(answer, OttlaError):
                raise answer
            listed[broker] = groups.read_list(answer, broker.id)
        except OttlaError as error:
            errors[broker] = error
    return listed, errors


def read_groups(
    cluster: Cluster,
    coordinated: Mapping[Broker, Sequence[ListedGroup]],
    *,
    deadline: Deadline,
    with_members: bool = True,
    per_request: int = _PER_REQUEST,
    traffic: Traffic | None = None,
) -> list[GroupReading]:
    """Return what coordinators know of their groups, in the given order, each with its error if there is one."""
    wanted = [
        question
        for broker, listed in coordinated.items()
        for question in _questions(broker, listed, with_members, per_request)
    ]
    answers = ask_all(
        cluster, [(question.broker, question.build) for question in wanted], deadline=deadline, traffic=traffic
    )
    found = _Found()
    for question, answer in zip(wanted, answers, strict=True):
        if isinstance(answer, OttlaError):
            if question.has_offsets:
                found.errors.update(dict.fromkeys((group.name for group in question.groups), answer))
            continue
        question.read(found, answer)
    return [found.reading(group) for listed in coordinated.values() for group in listed]


class _Question(NamedTuple):
    """One request about several groups of one coordinator."""

    broker: Broker
    groups: Sequence[ListedGroup]
    build: Build
    read: Any
    has_offsets: bool


class _Found:
    """The parts of the answers, by group."""

    def __init__(self) -> None:
        self.committed: dict[str, dict[TopicPartition, int]] = {}
        self.lags: dict[str, dict[TopicPartition, int]] = {}
        self.owners: dict[str, dict[TopicPartition, Owner]] = {}
        self.members: dict[str, int] = {}
        self.errors: dict[str, OttlaError] = {}

    def reading(self, group: ListedGroup) -> GroupReading:
        """Put a group together. A group that no answer named has an error."""
        name = group.name
        error = self.errors.get(name)
        if error is None and name not in self.committed:
            error = BrokerError(ErrorCode.unknown_server_error, f"reading offsets of group {name}", "not in a response")
        members = 0 if group.state in _WITHOUT_MEMBERS else self.members.get(name)
        return GroupReading(
            group,
            self.committed.get(name, {}),
            self.lags.get(name, {}),
            self.owners.get(name, {}),
            members,
            error,
        )


def _questions(
    broker: Broker, listed: Sequence[ListedGroup], with_members: bool, per_request: int
) -> Iterator[_Question]:
    """Yield the requests to one coordinator."""
    shared = [group for group in listed if group.type == SHARE]
    others = [group for group in listed if group.type != SHARE]
    for chunk in _chunks(others, per_request):
        yield _Question(broker, chunk, partial(_build_offsets, listed=chunk), _read_offsets, True)
    for chunk in _chunks(shared, per_request):
        yield _Question(broker, chunk, partial(_build_share_offsets, listed=chunk), _read_share_offsets, True)
    if not with_members:
        return
    for kind, (api_key, field_name, read) in _DESCRIBED.items():
        populated = [group for group in listed if group.type == kind and group.state not in _WITHOUT_MEMBERS]
        for chunk in _chunks(populated, per_request):
            build = partial(_build_describe, listed=chunk, api_key=api_key, field_name=field_name)
            yield _Question(broker, chunk, build, read, False)


def _chunks(listed: Sequence[ListedGroup], size: int) -> Iterator[Sequence[ListedGroup]]:
    for first in range(0, len(listed), size):
        yield listed[first : first + size]


def _build_offsets(version_of: VersionOf, listed: Sequence[ListedGroup]) -> messages.Message:
    """Build an OffsetFetch request for everything that these groups have committed."""
    version = version_of(OFFSET_FETCH, highest=_BY_NAME)
    if version < _LOWEST_FETCH:
        raise UnsupportedFormat(
            f"reading several groups at once needs OffsetFetch version {_LOWEST_FETCH} (Kafka 3.0), not {version}"
        )
    rows = [{"group_id": group.name, "member_id": None, "member_epoch": -1, "topics": None} for group in listed]
    fields = {"groups": rows, "require_stable": False}
    message: messages.Message = messages.compose(messages.request_type(OFFSET_FETCH, version), fields)
    return message


def _read_offsets(found: _Found, response: Any) -> None:
    for group in response.groups:
        name = group.group_id
        if group.error_code is not ErrorCode.none:
            found.errors[name] = BrokerError(group.error_code, f"reading offsets of group {name}")
            continue
        committed: dict[TopicPartition, int] = {}
        for topic in group.topics:
            topic_name = topic.name
            for row in topic.partitions:
                partition = TopicPartition(topic_name, row.partition_index)
                if row.error_code is not ErrorCode.none:
                    found.errors[name] = BrokerError(
                        row.error_code, f"reading the offset of {partition} for group {name}"
                    )
                elif row.committed_offset >= 0:  # -1 stands for no commit
                    committed[partition] = row.committed_offset
        found.committed[name] = committed


def _build_share_offsets(version_of: VersionOf, listed: Sequence[ListedGroup]) -> messages.Message:
    """Build a DescribeShareGroupOffsets request (KIP-932)."""
    rows = [{"group_id": group.name, "topics": None} for group in listed]
    version = version_of(DESCRIBE_SHARE_GROUP_OFFSETS)
    message: messages.Message = messages.compose(
        messages.request_type(DESCRIBE_SHARE_GROUP_OFFSETS, version), {"groups": rows}
    )
    return message


def _read_share_offsets(found: _Found, response: Any) -> None:
    for group in response.groups:
        name = group.group_id
        if group.error_code is not ErrorCode.none:
            found.errors[name] = BrokerError(group.error_code, f"reading offsets of share group {name}")
            continue
        rows = [
            (TopicPartition(topic.topic_name, row.partition_index), row)
            for topic in group.topics
            for row in topic.partitions
        ]
        known = [(partition, row) for partition, row in rows if row.error_code is ErrorCode.none]
        found.committed[name] = {partition: row.start_offset for partition, row in known if row.start_offset >= 0}
        # Since version 1 of the response.
        lags = {partition: getattr(row, "lag", -1) for partition, row in known}
        found.lags[name] = {partition: lag for partition, lag in lags.items() if lag >= 0}


def _build_describe(
    version_of: VersionOf, listed: Sequence[ListedGroup], *, api_key: int, field_name: str
) -> messages.Message:
    """Build a request for the members of several groups of one kind."""
    fields = {field_name: tuple(group.name for group in listed), "include_authorized_operations": False}
    message: messages.Message = messages.compose(messages.request_type(api_key, version_of(api_key)), fields)
    return message


def _read_classic(found: _Found, response: Any) -> None:
    _read_described(found, response, groups.classic_group)


def _read_consumer(found: _Found, response: Any) -> None:
    _read_described(found, response, groups.consumer_group)


def _read_described(found: _Found, response: Any, read: Any) -> None:
    for row in response.groups:
        try:
            described: GroupDescription = read(row)
        except BrokerError:
            continue  # it ended since the list, or may not be described: its offsets are worth showing all the same
        found.members[described.name] = len(described.members)
        found.owners[described.name] = {
            partition: Owner(member.member_id, member.client_id, member.host.lstrip("/"))
            for member in described.members
            for partition in member.assigned
        }


def _read_share(found: _Found, response: Any) -> None:
    for row in response.groups:
        if row.error_code is not ErrorCode.none:
            continue
        found.members[row.group_id] = len(row.members)
        # Several members read one partition: the first one stands for them.
        owners: dict[TopicPartition, Owner] = {}
        for member in row.members:
            owner = Owner(member.member_id, member.client_id, member.client_host.lstrip("/"))
            for topic in member.assignment.topic_partitions:
                for index in topic.partitions:
                    owners.setdefault(TopicPartition(topic.topic_name, index), owner)
        found.owners[row.group_id] = owners


_DESCRIBED = {
    CLASSIC: (groups.DESCRIBE_GROUPS, "groups", _read_classic),
    CONSUMER: (groups.CONSUMER_GROUP_DESCRIBE, "group_ids", _read_consumer),
    SHARE: (SHARE_GROUP_DESCRIBE, "group_ids", _read_share),
}
"""By kind of group: the request for its members, the field with the names, and how to read the response."""
