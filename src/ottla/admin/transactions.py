"""Finds the open transaction that blocks the readers of a partition: which producer wrote it, and since when.

Comes in: a cluster and a partition. Goes out: an `OpenTransaction`, or None. Readers of committed data get nothing from
the first record of the oldest open transaction on, no matter which producer wrote the records after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ottla.admin.all_brokers import ask_each
from ottla.errors import BrokerError, ErrorCode, NetworkError, OttlaError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster, VersionOf
from ottla.net.deadline import Deadline
from ottla.net.targets import CoordinatorKind, CoordinatorOf, LeaderOf, Target
from ottla.wire import messages

DESCRIBE_PRODUCERS, DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS = 61, 65, 66


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that has written to a partition from `start` on, and is neither committed nor aborted.

    Its id and start time are None if the brokers do not reveal them.
    """

    producer_id: int
    start: int
    transactional_id: str | None = None
    since: datetime | None = None

    def __str__(self) -> str:
        name = "" if self.transactional_id is None else f" (transactional id {self.transactional_id!r})"
        since = "" if self.since is None else f" since {self.since.isoformat(timespec='seconds')}"
        return f"a transaction of producer id {self.producer_id}{name}, open{since}"


def oldest_open(cluster: Cluster, partition: TopicPartition, *, deadline: Deadline) -> OpenTransaction | None:
    """Return the open transaction whose records come first in the log. Raises `BrokerError` if the leader rejects."""
    response = _ask(
        cluster,
        LeaderOf(*partition),
        DESCRIBE_PRODUCERS,
        {"topics": [{"name": partition.topic, "partition_indexes": [partition.partition]}]},
        what=f"describing the producers of {partition}",
        deadline=deadline,
    )
    row = response.topics[0].partitions[0]
    if row.error_code is not ErrorCode.none:
        raise BrokerError(row.error_code, f"describing the producers of {partition}", row.error_message)
    open_producers = [producer for producer in row.active_producers if producer.current_txn_start_offset >= 0]
    if not open_producers:
        return None
    first = min(open_producers, key=lambda producer: producer.current_txn_start_offset)
    transaction = OpenTransaction(int(first.producer_id), int(first.current_txn_start_offset))
    try:
        return _named(cluster, transaction, deadline)
    except OttlaError:  # a user who may read a topic may lack the right to describe transactions
        return transaction


def _named(cluster: Cluster, transaction: OpenTransaction, deadline: Deadline) -> OpenTransaction:
    """Add the transactional id and start time, which only the transaction coordinators know."""

    def build(version_of: VersionOf) -> messages.Message:
        return _compose(version_of, LIST_TRANSACTIONS, {"producer_id_filters": [transaction.producer_id]})

    brokers = cluster.metadata(deadline=deadline).brokers.values()
    responses = ask_each(cluster, brokers, build, deadline=deadline).values()
    # Every coordinator has its own transactions, so every broker is asked.
    states = [
        state
        for response in responses
        if not isinstance(response, NetworkError)
        for state in response.transaction_states
    ]
    name = next((state.transactional_id for state in states if state.producer_id == transaction.producer_id), None)
    if name is None:
        return transaction
    response = _ask(
        cluster,
        CoordinatorOf(CoordinatorKind.TRANSACTION, name),
        DESCRIBE_TRANSACTIONS,
        {"transactional_ids": [name]},
        what=f"describing transaction {name}",
        deadline=deadline,
    )
    state = response.transaction_states[0]
    since = state.transaction_start_time if state.error_code is ErrorCode.none else None
    return OpenTransaction(transaction.producer_id, transaction.start, name, since)


def _ask(
    cluster: Cluster, target: Target, api_key: int, fields: Mapping[str, Any], *, what: str, deadline: Deadline
) -> Any:
    return cluster.call(
        target,
        lambda version_of: _compose(version_of, api_key, fields),
        check=lambda response: response,
        what=what,
        deadline=deadline,
    )


def _compose(version_of: VersionOf, api_key: int, fields: Mapping[str, Any]) -> messages.Message:
    message: messages.Message = messages.compose(messages.request_type(api_key, version_of(api_key)), fields)
    return message
