"""Transactions: records to many partitions, and consumer offsets, that count all together or not at all.

`with producer.transaction()` commits at the end of the block and aborts when it raises; `prepare` hands out a token
with which any process can end it. What happens inside is in `transacting`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from ottla.config import PLAINTEXT, Address, Security, Timeouts
from ottla.errors import Fenced, InputError, OttlaError, UsedAfterFork
from ottla.model import GroupMember, TopicPartition
from ottla.net import Cluster
from ottla.produce import coordinator
from ottla.produce.coordinator import PreparedTransaction
from ottla.produce.transactions import Decision, Transactions

_log = logging.getLogger(__name__)


class Transaction:
    """One transaction: `with producer.transaction() as tx`."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._decision = Decision()
        self._decided = False

    @property
    def committed(self) -> bool | None:
        """True when everything in it counts, False when nothing does; None while that is open or not known.

        For an exception that leaves the block: a Ctrl-C that comes while the commit is on its way is too late.
        """
        return self._decision.committed

    def __enter__(self) -> Transaction:
        decision = Decision()
        try:
            self._transactions.begin(decision)
            self._decision, self._decided = decision, False
            return self
        except BaseException:
            self._transactions.forsake(decision)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._decided:
                return
            if kind is None:
                self._transactions.commit(self._decision)
                return
            self._abort_quietly()
        except Exception:
            raise
        except BaseException:  # Ctrl-C before the end had begun: the block is left, so it must not stay open
            self._abort_quietly()
            raise

    def _abort_quietly(self) -> None:
        """The program's own error is the one to show."""
        try:
            self._transactions.abort(self._decision)
        except UsedAfterFork:
            pass  # a forked child leaves the block of its parent, whose transaction goes on
        except OttlaError as failed:
            _log.warning("%s", failed)

    def send_offsets(self, group: str | GroupMember, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits a consumer group's offsets (the next ones to read) with this transaction."""
        member = GroupMember(group) if isinstance(group, str) else group
        self._transactions.send_offsets(self._decision, member, _checked(offsets))

    def prepare(self) -> PreparedTransaction:
        """Waits for every acknowledgement and hands out what is needed to end this transaction from anywhere.

        The block then neither commits nor aborts; `ottla.end_transaction` does, in this process or another. Until
        then the transaction's timeout runs.
        """
        try:
            prepared = self._transactions.prepare(self._decision)
            self._decided = True
            return prepared
        except BaseException:  # Ctrl-C on the last steps: without its token nobody could end it
            self._decided = False
            self._transactions.withdraw(self._decision)
            raise

    def abort(self) -> None:
        """Ends the transaction now; nothing of it counts."""
        self._transactions.abort(self._decision)
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
            case (str(topic), int() | np.integer() as partition), int() | np.integer() if min(partition, offset) >= 0:
                checked[TopicPartition(topic, int(partition))] = int(offset)
            case _:
                raise InputError(
                    f"offsets has {at!r}: {offset!r}; expected (topic, partition): the next offset to read"
                )
    return checked
