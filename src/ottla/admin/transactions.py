"""Finds open transactions: the one that blocks the readers of a partition, and all that coordinators have not ended.

Comes in: a cluster, and a partition or brokers. Goes out: an `OpenTransaction` or None, or `OngoingTransaction` values.
Readers of committed data get nothing from the first record of the oldest open transaction on, no matter which producer
wrote the records after it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ottla.admin.all_brokers import ask_each
from ottla.errors import BrokerError, ErrorCode, NetworkError, OttlaError
from ottla.model import TopicPartition
from ottla.net.cluster import Cluster, VersionOf
from ottla.net.deadline import Deadline
from ottla.net.metadata import Broker
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


@dataclass(frozen=True, slots=True)
class OngoingTransaction:
    """A transaction that its coordinator has begun and not ended."""

    transactional_id: str
    producer_id: int
    coordinator: int
    """The id of the broker."""
    state: str
    """As Kafka names it: Ongoing, PrepareCommit, PrepareAbort."""
    since: datetime | None = None
    timeout: float | None = None
    """Seconds after which the coordinator aborts it; None if the user may not see it."""
    partitions: tuple[TopicPartition, ...] = ()
    """What it has written to and readers of committed data wait at."""


_UNFINISHED = ("Ongoing", "PrepareCommit", "PrepareAbort")


def find_ongoing(cluster: Cluster, brokers: Collection[Broker], *, deadline: Deadline) -> list[OngoingTransaction]:
    """Return the transactions of these coordinators that have begun and not ended, the oldest first.

    A coordinator that does not answer, or refuses, is passed over. Raises `UnsupportedFormat` before Kafka 3.0.
    """
    fields = {"state_filters": _UNFINISHED, "producer_id_filters": (), "duration_filter": -1}
    listed = ask_each(
        cluster, brokers, lambda version_of: _compose(version_of, LIST_TRANSACTIONS, fields), deadline=deadline
    )
    found: list[OngoingTransaction] = []
    for broker, response in listed.items():
        if isinstance(response, NetworkError) or response.error_code is not ErrorCode.none:
            continue
        states = {state.transactional_id: state for state in response.transaction_states}
        details = _details(cluster, broker, tuple(states), deadline)
        for name, state in states.items():
            found.append(_ongoing(name, state, details.get(name), broker.id))
    return sorted(found, key=lambda each: (each.since is None, each.since, each.transactional_id))


def _details(cluster: Cluster, broker: Broker, names: Collection[str], deadline: Deadline) -> dict[str, Any]:
    if not names:
        return {}
    fields = {"transactional_ids": tuple(names)}
    answers = ask_each(
        cluster, [broker], lambda version_of: _compose(version_of, DESCRIBE_TRANSACTIONS, fields), deadline=deadline
    )
    response = answers[broker]
    if isinstance(response, NetworkError):
        return {}
    return {row.transactional_id: row for row in response.transaction_states if row.error_code is ErrorCode.none}


def _ongoing(name: str, listed: Any, row: Any, coordinator: int) -> OngoingTransaction:
    if row is None:
        return OngoingTransaction(name, int(listed.producer_id), coordinator, listed.transaction_state)
    partitions = tuple(
        sorted(TopicPartition(topic.topic, int(number)) for topic in row.topics for number in topic.partitions)
    )
    since = row.transaction_start_time
    # Between two transactions the start is -1: 1969.
    known = since if isinstance(since, datetime) and since.year >= 1970 else None
    return OngoingTransaction(
        name,
        int(row.producer_id),
        coordinator,
        row.transaction_state,
        known,
        row.transaction_timeout.total_seconds(),
        partitions,
    )
