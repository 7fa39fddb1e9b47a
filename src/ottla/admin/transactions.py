"""Which open transaction holds up the readers of a partition: who writes it, and since when.

A cluster and a partition come in; an `OpenTransaction` goes out, or None. Readers of committed data get nothing from
the first record of the oldest open transaction on, whoever wrote what comes after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ottla.admin.everywhere import ask_each
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

    Its id and when it began are None where brokers do not tell.
    """

    producer_id: int
    start: int
    transactional_id: str | None = None
    since: datetime | None = None

    def __str__(self) -> str:
        name = "" if self.transactional_id is None else f" (transactional id {self.transactional_id!r})"
        since = "" if self.since is None else f" since {self.since.isoformat(timespec='seconds')}"
        return f"a transaction of producer id {self.producer_id}{name}, open{since}"


def oldest_open(cluster: Cluster, at: TopicPartition, *, deadline: Deadline) -> OpenTransaction | None:
    """The one whose records come first in the log."""
    answer = _ask(
        cluster,
        LeaderOf(*at),
        DESCRIBE_PRODUCERS,
        {"topics": [{"name": at.topic, "partition_indexes": [at.partition]}]},
        what=f"describing the producers of {at}",
        deadline=deadline,
    )
    row = answer.topics[0].partitions[0]
    if row.error_code is not ErrorCode.none:
        raise BrokerError(row.error_code, f"describing the producers of {at}", row.error_message)
    found = [one for one in row.active_producers if one.current_txn_start_offset >= 0]
    if not found:
        return None
    first = min(found, key=lambda one: one.current_txn_start_offset)
    known = OpenTransaction(int(first.producer_id), int(first.current_txn_start_offset))
    try:
        return _named(cluster, known, deadline)
    except OttlaError:  # who may read a topic need not be allowed to look at transactions
        return known


def _named(cluster: Cluster, found: OpenTransaction, deadline: Deadline) -> OpenTransaction:
    def build(version_of: VersionOf) -> messages.Message:
        return _compose(version_of, LIST_TRANSACTIONS, {"producer_id_filters": [found.producer_id]})

    brokers = cluster.metadata(deadline=deadline).brokers.values()
    answers = ask_each(cluster, brokers, build, deadline=deadline).values()
    states = [one for answer in answers if not isinstance(answer, NetworkError) for one in answer.transaction_states]
    name = next((one.transactional_id for one in states if one.producer_id == found.producer_id), None)
    if name is None:
        return found
    answer = _ask(
        cluster,
        CoordinatorOf(CoordinatorKind.TRANSACTION, name),
        DESCRIBE_TRANSACTIONS,
        {"transactional_ids": [name]},
        what=f"describing transaction {name}",
        deadline=deadline,
    )
    state = answer.transaction_states[0]
    since = state.transaction_start_time if state.error_code is ErrorCode.none else None
    return OpenTransaction(found.producer_id, found.start, name, since)


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
