"""What a transactional producer says to the coordinator of its transactions, one function for each message.

A cluster and a producer's identity come in; the answer is judged, retried where that helps, and errors that mean that
another producer took over become `Fenced`. No state is kept here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ottla.errors import BrokerError, ErrorCode, Fenced, NetworkError, OttlaError, TransactionFailed
from ottla.model import GroupMember, TopicPartition
from ottla.net import Cluster
from ottla.net.connection import VersionOf
from ottla.net.deadline import Deadline
from ottla.net.targets import CoordinatorKind, CoordinatorOf
from ottla.wire import messages

_ADD_PARTITIONS, _ADD_OFFSETS, _END, _OFFSET_COMMIT, _DESCRIBE = 24, 25, 26, 28, 65
# The versions before KIP-890's second half, in which an epoch lasts for more than one transaction: so one process can
# prepare a transaction and another end it.
_HIGHEST = {_ADD_PARTITIONS: 3, _ADD_OFFSETS: 3, _END: 4, _OFFSET_COMMIT: 3}
_TAKEN_OVER = {
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_producer_id_mapping,
}
LONGEST_TIMEOUT = 2_147_483
"""Seconds: the protocol has milliseconds of 31 bits."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction whose records are all acknowledged: whoever has this, in any process, can commit or abort it."""

    transactional_id: str
    producer_id: int
    epoch: int
    empty: bool = False
    """Nothing was sent in it, so that there is nothing to end."""


def add_partitions(cluster: Cluster, who: PreparedTransaction, partitions: Collection[TopicPartition]) -> None:
    """These partitions take part in the transaction."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    fields = {
        "v3_and_below_transactional_id": who.transactional_id,
        "v3_and_below_producer_id": who.producer_id,
        "v3_and_below_producer_epoch": who.epoch,
        "v3_and_below_topics": [{"name": name, "partitions": listed} for name, listed in topics.items()],
    }

    def check(response: Any) -> None:
        for topic in response.results_by_topic_v3_and_below:
            for row in topic.results_by_partition:
                _judge(row.partition_error_code, f"adding {topic.name}-{row.partition_index} to the transaction")

    _call(cluster, who, _ADD_PARTITIONS, fields, check, what="adding partitions to a transaction")


def add_offsets(cluster: Cluster, who: PreparedTransaction, group: str) -> None:
    """Offsets of this group are committed with the transaction."""
    fields = {
        "transactional_id": who.transactional_id,
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
        "group_id": group,
    }
    what = f"adding offsets of group {group} to a transaction"
    _call(cluster, who, _ADD_OFFSETS, fields, lambda response: _judge(response.error_code, what), what=what)


def commit_offsets(
    cluster: Cluster, who: PreparedTransaction, member: GroupMember, offsets: Mapping[TopicPartition, int]
) -> None:
    """The offsets, which count when the transaction is committed."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), offset in offsets.items():
        row = {
            "partition_index": partition,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": None,
        }
        topics.setdefault(topic, []).append(row)
    fields = {
        "transactional_id": who.transactional_id,
        "group_id": member.group,
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
        "generation_id": member.generation,
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }

    def check(response: Any) -> None:
        for topic in response.topics:
            for row in topic.partitions:
                what = f"committing the offset of {topic.name}-{row.partition_index} for group {member.group}"
                _judge(row.error_code, what)

    what = f"committing offsets of group {member.group} in a transaction"
    target = CoordinatorOf(CoordinatorKind.GROUP, member.group)
    _call(cluster, who, _OFFSET_COMMIT, fields, check, what=what, target=target)


def end(cluster: Cluster, who: PreparedTransaction, *, commit: bool, deadline: Deadline | None = None) -> bool:
    """Commits or aborts. Doing the same twice is no error. Tells whether an answer was lost on the way."""
    verb = "committing" if commit else "aborting"
    what = f"{verb} the transaction of {who.transactional_id}"
    fields = {
        "transactional_id": who.transactional_id,
        "producer_id": who.producer_id,
        "producer_epoch": who.epoch,
        "committed": commit,
    }
    lost: list[OttlaError] = []

    def retrying(error: OttlaError) -> None:
        if isinstance(error, NetworkError):
            lost.append(error)

    def check(response: Any) -> None:
        _judge(response.error_code, what)

    _call(cluster, who, _END, fields, check, what=what, deadline=deadline, retrying=retrying)
    return bool(lost)


def is_ongoing(cluster: Cluster, who: PreparedTransaction) -> bool:
    """Whether the transaction of this very epoch was begun, and nobody has asked to end it."""

    def check(response: Any) -> bool:
        state = response.transaction_states[0]
        if state.error_code is ErrorCode.transactional_id_not_found:
            return False
        _judge(state.error_code, f"describing the transaction of {who.transactional_id}")
        is_ours = (state.producer_id, state.producer_epoch) == (who.producer_id, who.epoch)
        return bool(is_ours and state.transaction_state == "Ongoing")

    fields = {"transactional_ids": [who.transactional_id]}
    return bool(_call(cluster, who, _DESCRIBE, fields, check, what="describing a transaction"))


def _call(
    cluster: Cluster,
    who: PreparedTransaction,
    api: int,
    fields: dict[str, Any],
    check: Callable[[Any], Any],
    *,
    what: str,
    target: CoordinatorOf | None = None,
    deadline: Deadline | None = None,
    retrying: Callable[[OttlaError], None] | None = None,
) -> Any:
    def build(version_of: VersionOf) -> messages.Message:
        version = version_of(api, highest=_HIGHEST.get(api))
        message: messages.Message = messages.compose(messages.request_type(api, version), fields)
        return message

    where = target or CoordinatorOf(CoordinatorKind.TRANSACTION, who.transactional_id)
    with fencing(who.transactional_id):
        return cluster.call(where, build, check=check, what=what, deadline=deadline, retrying=retrying)


def _judge(code: ErrorCode, what: str) -> None:
    if code is not ErrorCode.none:
        raise BrokerError(code, what)


def taken_over(transactional_id: str, cause: OttlaError) -> Fenced:
    """The error for a producer whose epoch is over."""
    if isinstance(cause, Fenced) and cause.records == 0:
        return cause
    last = cause.cause if isinstance(cause, Fenced) and isinstance(cause.cause, BrokerError) else cause
    name = last.row.name if isinstance(last, BrokerError) else str(last)
    reason = (
        f"another producer with transactional id {transactional_id} has taken over, or the transaction took longer"
        f" than its timeout and was aborted ({name})"
    )
    return Fenced(reason, records=0, cause=cause)


@contextmanager
def fencing(transactional_id: str) -> Iterator[None]:
    """Errors that mean that somebody else took over are said so."""
    try:
        yield
    except BrokerError as error:
        if error.code in _TAKEN_OVER:
            raise taken_over(transactional_id, error) from error
        if error.code is ErrorCode.invalid_txn_state:
            raise TransactionFailed(f"{error}: it was ended already, the other way, or never begun") from error
        raise
