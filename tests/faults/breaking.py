"""What operators and accidents do to a cluster, beyond what `LocalCluster` does: leaders are moved.

A cluster comes in; each function returns when what it did can be seen.
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
    found = cluster.metadata([topic], deadline=Deadline.after(30)).topics[topic]
    return {partition.index: partition.leader for partition in found.partitions}


def rotate_leaders(cluster: Cluster, topic: str) -> int:
    """Moves every partition's leader to its next replica, by reassignment and election; how many moved."""
    before = leaders(cluster, topic)
    found = cluster.metadata([topic], deadline=Deadline.after(30)).topics[topic]
    replicas = {p.index: (*p.replicas[1:], p.replicas[0]) for p in found.partitions}
    _ask(cluster, _ALTER_REASSIGNMENTS, {"topics": [_reassigned(topic, replicas)]}, "reassigning")
    _ask(cluster, _ELECT_LEADERS, {"election_type": 0, "topic_partitions": None}, "electing")
    wanted = {index: order[0] for index, order in replicas.items()}
    eventually(lambda: leaders(cluster, topic) == wanted, f"leaders of {topic} at {wanted}")
    return sum(before[index] != leader for index, leader in wanted.items())


def _reassigned(topic: str, replicas: dict[int, tuple[int, ...]]) -> dict[str, Any]:
    partitions = [{"partition_index": index, "replicas": order} for index, order in replicas.items()]
    return {"name": topic, "partitions": partitions}


def _ask(cluster: Cluster, api: int, fields: dict[str, Any], what: str) -> None:
    def build(version_of: VersionOf) -> messages.Message:
        given = fields | {"timeout": timedelta(seconds=10)}
        message: messages.Message = messages.compose(messages.request_type(api, version_of(api)), given)
        return message

    def check(response: Any) -> None:
        if response.error_code is not ErrorCode.none:
            raise BrokerError(response.error_code, what)

    cluster.call(Controller(), build, check=check, what=what, deadline=Deadline.after(30))


def elect_anybody(cluster: Cluster, topic: str) -> None:
    """Lets any replica that is alive lead, also one that has not got all records."""
    _ask(
        cluster, _ELECT_LEADERS, {"election_type": 1, "topic_partitions": [{"topic": topic, "partitions": (0,)}]}, topic
    )
