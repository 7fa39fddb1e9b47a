"""The controllers of a KRaft cluster and what each node has of the metadata log: DescribeQuorum.

Comes in: a cluster. Goes out: a `Quorum`: its leader, its voters (controllers), its observers (brokers), and when each
of them last fetched and was last caught up, by the leader's clock. It must not judge any of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ottla.errors import BrokerError, ErrorCode
from ottla.net.cluster import Cluster
from ottla.net.deadline import Deadline
from ottla.net.targets import AnyBroker, Target
from ottla.wire import messages

DESCRIBE_QUORUM = 55
_TOPIC = "__cluster_metadata"
_ANY = AnyBroker()
_FIELDS = {"topics": [{"topic_name": _TOPIC, "partitions": [{"partition_index": 0}]}]}


@dataclass(frozen=True, slots=True)
class QuorumReplica:
    """A node's copy of the metadata log. Times are seconds since 1970, None if the leader does not know them."""

    id: int
    log_end_offset: int
    """-1 if the node has not fetched since the leader was elected."""
    last_fetch: float | None = None
    last_caught_up: float | None = None


@dataclass(frozen=True, slots=True)
class Quorum:
    """The quorum of controllers, as its leader sees it."""

    leader: int
    """The id of the active controller; -1 if there is none."""
    epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    """The controllers."""
    observers: tuple[QuorumReplica, ...] = ()
    """Brokers that are not controllers."""

    @property
    def now(self) -> float | None:
        """The leader's clock when it answered: the latest time that it reported."""
        times = (replica.last_fetch for replica in (*self.voters, *self.observers))
        return max((time for time in times if time is not None), default=None)


def find_quorum(cluster: Cluster, *, via: Target = _ANY, deadline: Deadline) -> Quorum:
    """Ask the active controller, through a broker.

    Raises `UnsupportedFormat` for a cluster with ZooKeeper, and `BrokerError` if the user may not ask, or if the broker
    reaches no controller.
    """
    return cluster.call(
        via,
        lambda version_of: messages.compose(
            messages.request_type(DESCRIBE_QUORUM, version_of(DESCRIBE_QUORUM)), _FIELDS
        ),
        check=read_quorum,
        what="describing the quorum of controllers",
        deadline=deadline,
    )


def read_quorum(response: Any) -> Quorum:
    """Return the quorum. Raises the `BrokerError` of the response or of its partition."""
    what = "describing the quorum of controllers"
    if response.error_code is not ErrorCode.none:
        raise BrokerError(response.error_code, what, getattr(response, "error_message", None))
    row = response.topics[0].partitions[0]
    if row.error_code is not ErrorCode.none:
        raise BrokerError(row.error_code, what, getattr(row, "error_message", None))
    return Quorum(
        leader=int(row.leader_id),
        epoch=int(row.leader_epoch),
        high_watermark=int(row.high_watermark),
        voters=tuple(map(_replica, row.current_voters)),
        observers=tuple(map(_replica, row.observers)),
    )


def _replica(row: Any) -> QuorumReplica:
    # KIP-836: times since version 1.
    fetched, caught_up = getattr(row, "last_fetch_timestamp", -1), getattr(row, "last_caught_up_timestamp", -1)
    return QuorumReplica(int(row.replica_id), int(row.log_end_offset), _seconds(fetched), _seconds(caught_up))


def _seconds(milliseconds: int) -> float | None:
    return milliseconds / 1000 if milliseconds >= 0 else None
