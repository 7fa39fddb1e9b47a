"""What members of a classic group tell each other through the broker, which does not read it: bytes <-> values.

Subscriptions are written in version 3 (owned partitions, their generation, the rack: KIP-429, KIP-792, KIP-881) and
read in any; assignments look the same in all versions. Bytes that cannot be read are a WireError.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import Any

from ottla.errors import WireError
from ottla.model import TopicPartition
from ottla.wire import entities, messages

_VERSION = Struct(">h")
_GENERATION = Struct(">i")
_NEWEST = 3  # version of a subscription


@dataclass(frozen=True, slots=True)
class MemberSubscription:
    """What one member wants to read, and what it holds while it joins. `generation` is the one in which it got that."""

    topics: frozenset[str]
    owned: frozenset[TopicPartition] = frozenset()
    generation: int = -1
    rack: str | None = None


def write_subscription(subscription: MemberSubscription) -> bytes:
    """As the metadata of a protocol in JoinGroup."""
    fields = {
        "topics": sorted(subscription.topics),
        # Java's cooperative assignor kept the generation here before the field below existed.
        "user_data": _GENERATION.pack(subscription.generation),
        "owned_partitions": _by_topic(subscription.owned),
        "generation_id": subscription.generation,
        "rack_id": subscription.rack,
    }
    return _VERSION.pack(_NEWEST) + messages.encode_body(messages.compose(_subscription(_NEWEST), fields))


def read_subscription(data: bytes) -> MemberSubscription:
    """What another member, of whatever make, said."""
    version = _version(data)
    try:
        entity = _entity(_subscription(min(version, _NEWEST)), data)
    except WireError:
        # Some clients name a version and leave out what it adds.
        entity = _entity(_subscription(0), data)
    return MemberSubscription(
        topics=frozenset(entity.topics),
        owned=_partitions(getattr(entity, "owned_partitions", ())),
        generation=_generation(entity),
        rack=getattr(entity, "rack_id", None),
    )


def write_assignment(partitions: Iterable[TopicPartition]) -> bytes:
    """As one member's assignment in SyncGroup."""
    fields = {"assigned_partitions": _by_topic(partitions), "user_data": None}
    entity = messages.compose(_assignment(), fields)
    return _VERSION.pack(0) + messages.encode_body(entity)


def read_assignment(data: bytes) -> frozenset[TopicPartition]:
    """What this member got; no bytes at all mean nothing."""
    if not data:
        return frozenset()
    _version(data)
    return _partitions(_entity(_assignment(), data).assigned_partitions)


def _subscription(version: int) -> type:
    return messages.data_type("consumer_protocol_subscription", version)


def _assignment() -> type:
    return messages.data_type("consumer_protocol_assignment", 0)


def _version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise WireError(f"{len(data)} bytes are too few for what a group member says")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise WireError(f"version {version} of what a group member says is not possible")
    return version


def _entity(kind: type, data: bytes) -> Any:
    return entities.read_entity(kind, memoryview(data), _VERSION.size)[0]


def _generation(entity: Any) -> int:
    told = int(getattr(entity, "generation_id", -1))
    user_data = entity.user_data or b""
    return _GENERATION.unpack(user_data)[0] if told < 0 and len(user_data) == _GENERATION.size else told


def _by_topic(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitions": listed} for topic, listed in topics.items()]


def _partitions(topics: Iterable[Any]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic.topic, int(p)) for topic in topics for p in topic.partitions)
