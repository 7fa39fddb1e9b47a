"""What operators and accidents do to a cluster, beyond what `LocalCluster` does: leaders move.

A cluster comes in; each function returns when its effect is visible.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.waiting import eventually

from ottla.errors import BrokerError, ErrorCode
from ottla.net import Cluster, Deadline
from ottla.net.connection import VersionOf
from ottla.net.targets import Controller
from ottla.wire import messages

_ELECT_LEADERS = 43
_ALTER_REASSIGNMENTS = 45


def leaders(cluster: Cluster, topic: str) -> dict[int, int]:
    """The leader of each partition."""
    metadata = cluster.metadata([topic], deadline=Deadline.after(30)).topics[topic]
    return {partition.index: partition.leader for partition in metadata.partitions}


def rotate_leaders(cluster: Cluster, topic: str) -> int:
    """Move every partition's leader to its next replica, by reassignment and election. Returns how many moved."""
    before = leaders(cluster, topic)
    metadata = cluster.metadata([topic], deadline=Deadline.after(30)).topics[topic]
    replicas = {p.index: (*p.replicas[1:], p.replicas[0]) for p in metadata.partitions}
    _ask(cluster, _ALTER_REASSIGNMENTS, {"topics": [_reassigned(topic, replicas)]}, "reassigning")
    _ask(cluster, _ELECT_LEADERS, {"election_type": 0, "topic_partitions": None}, "electing")
    expected = {index: order[0] for index, order in replicas.items()}
    eventually(lambda: leaders(cluster, topic) == expected, f"leaders of {topic} at {expected}")
    return sum(before[index] != leader for index, leader in expected.items())


def _reassigned(topic: str, replicas: dict[int, tuple[int, ...]]) -> dict[str, Any]:
    partitions = [{"partition_index": index, "replicas": order} for index, order in replicas.items()]
    return {"name": topic, "partitions": partitions}


def _ask(cluster: Cluster, api: int, fields: dict[str, Any], what: str) -> None:
    def build(version_of: VersionOf) -> messages.Message:
        all_fields = fields | {"timeout": timedelta(seconds=10)}
        message: messages.Message = messages.compose(messages.request_type(api, version_of(api)), all_fields)
        return message

    def check(response: Any) -> None:
        if response.error_code is not ErrorCode.none:
            raise BrokerError(response.error_code, what)

    cluster.call(Controller(), build, check=check, what=what, deadline=Deadline.after(30))


def elect_anybody(cluster: Cluster, topic: str) -> None:
    """Let any live replica become leader, even one that does not have all records."""
    _ask(
        cluster, _ELECT_LEADERS, {"election_type": 1, "topic_partitions": [{"topic": topic, "partitions": (0,)}]}, topic
    )
