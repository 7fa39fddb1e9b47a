"""The messages of the classic group protocol: its four requests, and the bytes that members send each other in them.

Values come in, `Ask` steps and bytes go out, and back. The broker passes subscriptions and assignments on without
reading them. Subscriptions are written in version 3 (owned partitions, their generation, the rack: KIP-429, KIP-792,
KIP-881) and read in any version; assignments are the same in all versions. Unreadable bytes raise a `WireError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from struct import Struct
from typing import Any

from ottla.consume.options import GroupOptions
from ottla.consume.steps import PATIENCE, Ask
from ottla.errors import WireError
from ottla.model import TopicPartition
from ottla.wire import entities, messages

JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14
_PROTOCOL_TYPE = "consumer"
_VERSION = Struct(">h")
_GENERATION = Struct(">i")
_SUBSCRIPTION_VERSION = 3


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """The topics of one member, and what it owns while it joins, from which `generation`."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class ClassicRequests:
    """The requests of a member of `group`.

    The broker answers JoinGroup and SyncGroup only when all members have joined and the leader has assigned. That takes
    as long as the slowest member may go without a poll, so the caller passes their `seconds`.
    """

    group: str
    options: GroupOptions

    def join(self, member_id: str, subscription: MemberSubscription, *, reason: str, seconds: float) -> Ask:
        """Return the request to become a member, or to take part in the next generation."""
        metadata = write_subscription(subscription)
        fields = {
            "session_timeout": timedelta(seconds=self.options.session_timeout),
            "rebalance_timeout": timedelta(seconds=self.options.max_poll_interval),
            "member_id": member_id,
            "group_instance_id": self.options.instance_id,
            "protocol_type": _PROTOCOL_TYPE,
            "protocols": [{"name": name, "metadata": metadata} for name in self.options.assignors],
            "reason": reason,
        }
        return Ask(JOIN, f"joining group {self.group}", self._to_group(fields), seconds, patient=True)

    def sync(
        self, member_id: str, generation: int, *, protocol: str, assignments: Mapping[str, bytes], seconds: float
    ) -> Ask:
        """Return the request for this member's assignment; the leader passes the `assignments` of all members."""
        fields = self._from_member(member_id, generation) | {
            "protocol_type": _PROTOCOL_TYPE,
            "protocol_name": protocol,
            "assignments": [{"member_id": member, "assignment": data} for member, data in assignments.items()],
        }
        return Ask(SYNC, f"getting an assignment in group {self.group}", self._to_group(fields), seconds, patient=True)

    def heartbeat(self, member_id: str, generation: int, *, seconds: float) -> Ask:
        """Return the request that keeps the session alive."""
        fields = self._from_member(member_id, generation)
        return Ask(HEARTBEAT, f"heartbeat in group {self.group}", self._to_group(fields), seconds)

    def leave(self, member_id: str, *, reason: str) -> Ask:
        """Return the request that ends the membership."""
        # Version 3 and later take a list of members, older ones a single member id.
        member = {"member_id": member_id, "group_instance_id": None, "reason": reason}
        fields = {"member_id": member_id, "members": [member]}
        return Ask(LEAVE, f"leaving group {self.group}", self._to_group(fields), PATIENCE)

    def _to_group(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"group_id": self.group, **fields}

    def _from_member(self, member_id: str, generation: int) -> dict[str, Any]:
        return {
            "generation_id": generation,
            "member_id": member_id,
            "group_instance_id": self.options.instance_id,
        }


def write_subscription(subscription: MemberSubscription) -> bytes:
    """Return the metadata of a protocol in JoinGroup."""
    fields = {
        "topics": sorted(subscription.topics),
        # Java's cooperative assignor kept the generation here before the field below existed.
        "user_data": _GENERATION.pack(subscription.generation),
        "owned_partitions": _by_topic(subscription.owned),
        "generation_id": subscription.generation,
        "rack_id": subscription.rack,
    }
    body = messages.compose(_subscription_type(_SUBSCRIPTION_VERSION), fields)
    return _VERSION.pack(_SUBSCRIPTION_VERSION) + messages.encode_body(body)


def read_subscription(data: bytes) -> MemberSubscription:
    """Parse the subscription of another member, which may be any client. Raises `WireError` if it is unreadable."""
    version = _version(data)
    try:
        entity = _entity(_subscription_type(min(version, _SUBSCRIPTION_VERSION)), data)
    except WireError:
        # Some clients write a version number without the fields that it adds.
        entity = _entity(_subscription_type(0), data)
    return MemberSubscription(
        topics=frozenset(entity.topics),
        owned=_partitions(getattr(entity, "owned_partitions", ())),
        generation=_generation(entity),
        rack=getattr(entity, "rack_id", None),
    )


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """Return the assignment of one member in SyncGroup."""
    fields = {"assigned_partitions": _by_topic(partitions), "user_data": None}
    entity = messages.compose(_assignment_type(), fields)
    return _VERSION.pack(0) + messages.encode_body(entity)


def read_assignment(data: bytes) -> frozenset[TopicPartition]:
    """Parse this member's assignment; no bytes mean no partitions. Raises `WireError` if it is unreadable."""
    if not data:
        return frozenset()
    _version(data)
    return _partitions(_entity(_assignment_type(), data).assigned_partitions)


def _subscription_type(version: int) -> type:
    return messages.data_type("consumer_protocol_subscription", version)


def _assignment_type() -> type:
    return messages.data_type("consumer_protocol_assignment", 0)


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise WireError(f"the data of a group member has only {len(data)} bytes, too few for its version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise WireError(f"the data of a group member has the invalid version {version}")
    return version


def _entity(kind: type, data: bytes) -> Any:
    return entities.read_entity(kind, memoryview(data), _VERSION.size)[0]


def _generation(entity: Any) -> int:
    generation = int(getattr(entity, "generation_id", -1))
    user_data = entity.user_data or b""
    if generation < 0 and len(user_data) == _GENERATION.size:
        generation = _GENERATION.unpack(user_data)[0]
    return generation


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitions": numbers} for topic, numbers in topics.items()]


def _partitions(topics: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.topic, int(p)) for topic in topics for p in topic.partitions)
