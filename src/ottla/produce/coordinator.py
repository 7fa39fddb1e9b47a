"""The requests of a transactional producer to the coordinator of its transactions, one function per message.

A cluster and a producer's identity come in. Answers are checked and requests retried where that helps; errors that mean
that another producer took over become `Fenced`. It keeps no state.
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
"""Seconds: the protocol counts milliseconds in 31 bits."""


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction whose records are all acknowledged. Any process that has this token can commit or abort it."""

    transactional_id: str
    producer_id: int
    epoch: int
    empty: bool = False
    """Nothing was sent in it, so there is nothing to end."""


def add_partitions(cluster: Cluster, transaction: PreparedTransaction, partitions: Collection[TopicPartition]) -> None:
    """Add partitions to the transaction."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    fields = {
        "v3_and_below_transactional_id": transaction.transactional_id,
        "v3_and_below_producer_id": transaction.producer_id,
        "v3_and_below_producer_epoch": transaction.epoch,
        "v3_and_below_topics": [{"name": name, "partitions": numbers} for name, numbers in topics.items()],
    }

    def check(response: Any) -> None:
        for topic in response.results_by_topic_v3_and_below:
            for row in topic.results_by_partition:
                _raise_for(row.partition_error_code, f"adding {topic.name}-{row.partition_index} to the transaction")

    _call(cluster, transaction, _ADD_PARTITIONS, fields, check, what="adding partitions to a transaction")


def add_offsets(cluster: Cluster, transaction: PreparedTransaction, group: str) -> None:
    """Announce that offsets of this group are committed with the transaction."""
    fields = {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "group_id": group,
    }
    what = f"adding offsets of group {group} to a transaction"
    _call(cluster, transaction, _ADD_OFFSETS, fields, lambda response: _raise_for(response.error_code, what), what=what)


def commit_offsets(
    cluster: Cluster, transaction: PreparedTransaction, member: GroupMember, offsets: Mapping[TopicPartition, int]
) -> None:
    """Send the offsets. They count when the transaction is committed."""
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
        "transactional_id": transaction.transactional_id,
        "group_id": member.group,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "generation_id": member.generation,
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }

    def check(response: Any) -> None:
        for topic in response.topics:
            for row in topic.partitions:
                what = f"committing the offset of {topic.name}-{row.partition_index} for group {member.group}"
                _raise_for(row.error_code, what)

    what = f"committing offsets of group {member.group} in a transaction"
    target = CoordinatorOf(CoordinatorKind.GROUP, member.group)
    _call(cluster, transaction, _OFFSET_COMMIT, fields, check, what=what, target=target)


def end(cluster: Cluster, transaction: PreparedTransaction, *, commit: bool, deadline: Deadline | None = None) -> bool:
    """Commit or abort. Doing the same twice is no error. Returns whether an answer was lost on the way."""
    verb = "committing" if commit else "aborting"
    what = f"{verb} the transaction of {transaction.transactional_id}"
    fields = {
        "transactional_id": transaction.transactional_id,
        "producer_id": transaction.producer_id,
        "producer_epoch": transaction.epoch,
        "committed": commit,
    }
    lost: list[OttlaError] = []

    def retrying(error: OttlaError) -> None:
        if isinstance(error, NetworkError):
            lost.append(error)

    def check(response: Any) -> None:
        _raise_for(response.error_code, what)

    _call(cluster, transaction, _END, fields, check, what=what, deadline=deadline, retrying=retrying)
    return bool(lost)


def is_ongoing(cluster: Cluster, transaction: PreparedTransaction) -> bool:
    """Whether the transaction of this very epoch was begun and is not being ended."""

    def check(response: Any) -> bool:
        state = response.transaction_states[0]
        if state.error_code is ErrorCode.transactional_id_not_found:
            return False
        _raise_for(state.error_code, f"describing the transaction of {transaction.transactional_id}")
        is_ours = (state.producer_id, state.producer_epoch) == (transaction.producer_id, transaction.epoch)
        return bool(is_ours and state.transaction_state == "Ongoing")

    fields = {"transactional_ids": [transaction.transactional_id]}
    return bool(_call(cluster, transaction, _DESCRIBE, fields, check, what="describing a transaction"))


def _call(
    cluster: Cluster,
    transaction: PreparedTransaction,
    api: int,
    fields: dict[str, Any],
    check: Callable[[Any], Any],
    *,
    what: str,
    target: CoordinatorOf | None = None,
    deadline: Deadline | None = None,
    retrying: Callable[[OttlaError], None] | None = None,
) -> Any:
    """Send one request to a coordinator, by default that of the transactional id, and return what `check` makes of the
    answer.

    Raises `Fenced` and `TransactionFailed` as `fencing` describes, and other errors of the call unchanged.
    """

    def build(version_of: VersionOf) -> messages.Message:
        version = version_of(api, highest=_HIGHEST.get(api))
        message: messages.Message = messages.compose(messages.request_type(api, version), fields)
        return message

    where = target or CoordinatorOf(CoordinatorKind.TRANSACTION, transaction.transactional_id)
    with fencing(transaction.transactional_id):
        return cluster.call(where, build, check=check, what=what, deadline=deadline, retrying=retrying)


def _raise_for(code: ErrorCode, what: str) -> None:
    """Raises `BrokerError` unless the code is 0."""
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
    """Turn errors that mean a takeover into `Fenced`, and an invalid state into `TransactionFailed`."""
    try:
        yield
    except BrokerError as error:
        if error.code in _TAKEN_OVER:
            raise taken_over(transactional_id, error) from error
        if error.code is ErrorCode.invalid_txn_state:
            raise TransactionFailed(f"{error}: it was ended already, the other way, or never begun") from error
        raise
