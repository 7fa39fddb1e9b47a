"""Looks up where the log of a partition starts and ends, and where a leader epoch ends in it.

A partition comes in, offsets go out, as its leader has them now. It reads no records.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ottla.admin.lookup import find_offsets
from ottla.admin.offsets import OffsetSpec
from ottla.errors import BrokerError, ErrorCode
from ottla.model import Isolation, TopicPartition
from ottla.net import Cluster, VersionOf
from ottla.net.deadline import Deadline
from ottla.net.targets import LeaderOf
from ottla.wire import messages

OFFSET_FOR_LEADER_EPOCH = 23
_HIGHEST = 4
UNKNOWN = -1


class LogExtent(NamedTuple):
    """The first offset that can be read, and the one after the last."""

    first: int
    last: int


class EpochEnd(NamedTuple):
    """The latest epoch of the log up to the requested one, and where it ends.

    Both are -1 if the log is older than that epoch.
    """

    epoch: int
    offset: int


def find_extent(cluster: Cluster, tp: TopicPartition, *, isolation: Isolation) -> LogExtent:
    """Ask the leader where the log starts and ends. Raises as `Cluster.call` does."""
    deadline = Deadline.after(cluster.timeouts.request)
    first, last = (
        find_offsets(cluster, [tp], at=spec, isolation=isolation, deadline=deadline)[tp].offset
        for spec in (OffsetSpec.EARLIEST, OffsetSpec.LATEST)
    )
    return LogExtent(first, last)


def find_epoch_end(cluster: Cluster, tp: TopicPartition, epoch: int) -> EpochEnd:
    """Ask the leader where the records of a leader epoch end (KIP-320). Raises as `Cluster.call` does."""
    what = f"looking for leader epoch {epoch} of {tp}"
    row = {"partition": tp.partition, "current_leader_epoch": UNKNOWN, "leader_epoch": epoch}
    fields = {"replica_id": -1, "topics": [{"topic": tp.topic, "partitions": [row]}]}

    def build(version_of: VersionOf) -> messages.Message:
        version = version_of(OFFSET_FOR_LEADER_EPOCH, highest=_HIGHEST)
        message: messages.Message = messages.compose(messages.request_type(OFFSET_FOR_LEADER_EPOCH, version), fields)
        return message

    def check(response: Any) -> EpochEnd:
        answer = response.topics[0].partitions[0]
        if answer.error_code is not ErrorCode.none:
            raise BrokerError(answer.error_code, what)
        return EpochEnd(int(answer.leader_epoch), int(answer.end_offset))

    deadline = Deadline.after(cluster.timeouts.request)
    return cluster.call(LeaderOf(*tp), build, check=check, what=what, deadline=deadline)
