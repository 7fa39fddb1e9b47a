"""Replication throttles: the rates of brokers, and the replicas of topics that they apply to.

Comes in: lists of throttled replicas as topics have them, and changes. Goes out: merged and shortened lists (pure), and
IncrementalAlterConfigs requests for many topics, or for a broker. Reading is in `movement`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ottla.admin.movement import THROTTLED
from ottla.admin.settings import INCREMENTAL_ALTER_CONFIGS, Changes
from ottla.errors import BrokerError, ErrorCode
from ottla.net.cluster import Cluster
from ottla.net.connection import VersionOf
from ottla.net.deadline import Deadline
from ottla.net.targets import Controller, Node
from ottla.wire import messages

LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
LEADER_REPLICAS, FOLLOWER_REPLICAS = THROTTLED
ALL = "*"
"""A list with this means all replicas of the topic. Only people write it."""
_BROKER, _TOPIC = 4, 2
_SET, _DELETE = 0, 1
_AT_ONCE = 500

Replica = tuple[int, int]
"""A partition's number and a broker."""


@dataclass(frozen=True, slots=True)
class Throttled:
    """The replicas of a topic that are throttled: as leaders, which send, and as followers, which fetch."""

    leaders: frozenset[Replica] = frozenset()
    followers: frozenset[Replica] = frozenset()


def parse_replicas(text: str | None) -> frozenset[Replica] | None:
    """Return the replicas in a list such as `0:1,0:2`; None if it is `*`, or not such a list."""
    pairs = set()
    for part in (text or "").split(","):
        if not part.strip():
            continue
        partition, _, broker = part.strip().partition(":")
        if not (partition.isdecimal() and broker.isdecimal()):
            return None
        pairs.add((int(partition), int(broker)))
    return frozenset(pairs)


def show_replicas(replicas: Collection[Replica]) -> str:
    """Return the list as topics have it."""
    return ",".join(f"{partition}:{broker}" for partition, broker in sorted(replicas))


def list_change(text: str | None, *, add: Collection[Replica] = (), remove: Collection[Replica] = ()) -> Changes:
    """Return the change of one list under the name "": empty if nothing changes, or the list is `*`.

    A list that becomes empty is removed from the topic.
    """
    present = parse_replicas(text)
    if present is None:
        return {}
    wanted = (present - frozenset(remove)) | frozenset(add)
    if wanted == present:
        return {}
    return {"": show_replicas(wanted) if wanted else None}


def topic_changes(present: Mapping[str, str], *, add: Throttled, remove: Throttled) -> dict[str, str | None]:
    """Return the changes of a topic's two lists."""
    changes: dict[str, str | None] = {}
    for name, more, less in (
        (LEADER_REPLICAS, add.leaders, remove.leaders),
        (FOLLOWER_REPLICAS, add.followers, remove.followers),
    ):
        for value in list_change(present.get(name), add=more, remove=less).values():
            changes[name] = value
    return changes


def build_changes(version_of: VersionOf, kind: int, changes: Mapping[str, Changes]) -> messages.Message:
    """Build a request that changes settings of several resources of one kind. Others keep their values."""
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [
                {"name": key, "config_operation": _DELETE if value is None else _SET, "value": value}
                for key, value in own.items()
            ],
        }
        for name, own in changes.items()
    ]
    fields = {"resources": resources, "validate_only": False}
    message: messages.Message = messages.compose(
        messages.request_type(INCREMENTAL_ALTER_CONFIGS, version_of(INCREMENTAL_ALTER_CONFIGS)), fields
    )
    return message


def check_changes(response: Any, *, gone: Collection[ErrorCode] = ()) -> None:
    """Raise the first error. Errors in `gone` mean that the resource does not exist, and are accepted."""
    for row in response.responses:
        if row.error_code is not ErrorCode.none and row.error_code not in gone:
            kind = "topic" if int(row.resource_type) == _TOPIC else "broker"
            raise BrokerError(row.error_code, f"altering settings of {kind} {row.resource_name}", row.error_message)


def alter_topics(cluster: Cluster, changes: Mapping[str, Changes], *, deadline: Deadline) -> None:
    """Change settings of many topics. A topic that was deleted meanwhile is passed over."""
    names = sorted(name for name, own in changes.items() if own)
    for start in range(0, len(names), _AT_ONCE):
        chunk = names[start : start + _AT_ONCE]
        cluster.call(
            Controller(),
            partial(build_changes, kind=_TOPIC, changes={name: changes[name] for name in chunk}),
            check=lambda response: check_changes(response, gone=(ErrorCode.unknown_topic_or_partition,)),
            what="altering throttled replicas of topics",
            deadline=deadline,
        )


def alter_broker(cluster: Cluster, broker: int, changes: Changes, *, deadline: Deadline) -> None:
    """Change dynamic settings of a broker. Only the broker itself accepts that, so it must be up."""
    if changes:
        cluster.call(
            Node(broker),
            lambda version_of: build_changes(version_of, _BROKER, {str(broker): changes}),
            check=check_changes,
            what=f"altering settings of broker {broker}",
            deadline=deadline,
        )
