"""Transactions: records to many partitions, and consumer offsets, that count all together or not at all.

`with producer.transaction()` commits at the end of the block and aborts when it raises; `prepare` hands out a token
with which any process can end it. What happens inside is in `transacting`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

from ottla.config import PLAINTEXT, Address, Security, Timeouts
from ottla.errors import Fenced, InputError, OttlaError
from ottla.model import GroupMember, TopicPartition
from ottla.net import Cluster
from ottla.produce import coordinator
from ottla.produce.coordinator import PreparedTransaction
from ottla.produce.transacting import Transactions

_log = logging.getLogger(__name__)


class Transaction:
    """One transaction: `with producer.transaction() as tx`."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._number = -1
        self._decided = False

    def __enter__(self) -> Transaction:
        self._number = self._transactions.begin()
        self._decided = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._decided:
            return
        if kind is None:
            self._transactions.commit(self._number)
            return
        try:
            self._transactions.abort(self._number)
        except OttlaError as failed:  # the program's own error is the one to show
            _log.warning("%s", failed)

    def send_offsets(self, group: str | GroupMember, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits a consumer group's offsets (the next ones to read) with this transaction."""
        member = GroupMember(group) if isinstance(group, str) else group
        self._transactions.send_offsets(self._number, member, _checked(offsets))

    def prepare(self) -> PreparedTransaction:
        """Waits for every acknowledgement and hands out what is needed to end this transaction from anywhere.

        The block then neither commits nor aborts; `ottla.end_transaction` does, in this process or another. Until
        then the transaction's timeout runs.
        """
        prepared = self._transactions.prepare(self._number)
        self._decided = True
        return prepared

    def abort(self) -> None:
        """Ends the transaction now; nothing of it counts."""
        self._transactions.abort(self._number)
        self._decided = True


def end_transaction(
    bootstrap: str | Iterable[str | Address],
    prepared: PreparedTransaction,
    *,
    commit: bool,
    security: Security = PLAINTEXT,
    timeouts: Timeouts | None = None,
) -> None:
    """Commits or aborts a transaction that some process has prepared.

    Doing the same twice is no error, until its producer begins the next one: then it is Fenced.
    """
    if not isinstance(prepared, PreparedTransaction):
        raise InputError(f"a {type(prepared).__name__} is no prepared transaction: pass what tx.prepare() returned")
    if prepared.empty:
        return
    with Cluster(bootstrap, security=security, client_id="ottla-end-transaction", timeouts=timeouts) as cluster:
        try:
            coordinator.end(cluster, prepared, commit=commit)
        except Fenced as error:
            raise Fenced(_gone(prepared), records=0, cause=error) from error


def _gone(prepared: PreparedTransaction) -> str:
    return (
        f"the transaction of {prepared.transactional_id} (producer id {prepared.producer_id}, epoch {prepared.epoch})"
        " cannot be ended any more: it was ended before and its producer went on, or another producer with that id has"
        " aborted it, or its timeout has"
    )


def _checked(offsets: Mapping[Any, Any]) -> dict[TopicPartition, int]:
    checked: dict[TopicPartition, int] = {}
    for at, offset in offsets.items():
        match at, offset:
            case (str(topic), int(partition)), int() if partition >= 0 and offset >= 0:
                checked[TopicPartition(topic, partition)] = offset
            case _:
                raise InputError(
                    f"offsets has {at!r}: {offset!r}; expected (topic, partition): the next offset to read"
                )
    return checked
