"""Transactions: records to many partitions, and consumer offsets, that are committed together or not at all.

`with producer.transaction()` commits at the end of the block and aborts if it raises. `prepare` returns a token with
which any process can end the transaction. `transactions.py` has the states behind it.
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
from ottla.net.awaiting import awaitable, on_thread
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
        """True if everything in it counts, False if nothing does; None while it is open, and if it is not known.

        Check it when an exception leaves the block: a Ctrl-C that comes while the commit is in flight is too late.
        """
        return self._decision.committed

    def __enter__(self) -> Transaction:
        decision = Decision()
        try:
            self._transactions.begin(decision)
            self._decision, self._decided = decision, False
            return self
        except BaseException:
            self._transactions.abandon(decision)
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
        except BaseException:  # Ctrl-C before the end began: the block is left, so it must not stay open
            self._abort_quietly()
            raise

    async def __aenter__(self) -> Transaction:
        from asyncio import CancelledError

        try:
            return await on_thread(self.__enter__)
        except CancelledError:  # the block is not entered, so nothing would end the transaction
            self._transactions.abandon(self._decision)
            raise

    __aexit__ = awaitable(__exit__)

    def _abort_quietly(self) -> None:
        """Abort and log errors: the program's own error is the one to raise."""
        try:
            self._transactions.abort(self._decision)
        except UsedAfterFork:
            pass  # a forked child leaves the block of its parent, whose transaction continues
        except OttlaError as failed:
            _log.warning("%s", failed)

    def _withdraw_quietly(self) -> None:
        """Abort what was prepared, and log errors."""
        self._decided = False
        try:
            self._transactions.withdraw(self._decision)
        except OttlaError as failed:
            _log.warning("%s", failed)

    def send_offsets(self, group: str | GroupMember, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit a consumer group's offsets (the next ones to read) with this transaction.

        Raises `InputError` for malformed offsets, `TransactionFailed` if the transaction is over, and `BrokerError` if
        the group refuses.
        """
        member = GroupMember(group) if isinstance(group, str) else group
        self._transactions.send_offsets(self._decision, member, _checked(offsets))

    def prepare(self) -> PreparedTransaction:
        """Wait for every acknowledgement and return the token with which any process can end this transaction.

        The block then neither commits nor aborts; `ottla.end_transaction` does, in this process or another. The
        transaction's timeout keeps running. Raises `TransactionFailed` if a record failed, after aborting.
        """
        try:
            prepared = self._transactions.prepare(self._decision)
            self._decided = True
            return prepared
        except BaseException:  # Ctrl-C in the last steps: the caller never gets the token that ends it
            self._decided = False
            self._transactions.withdraw(self._decision)
            raise

    def abort(self) -> None:
        """Abort the transaction now. Raises `Fenced` if another producer has taken over."""
        self._transactions.abort(self._decision)
        self._decided = True

    asend_offsets = awaitable(send_offsets)

    async def aprepare(self) -> PreparedTransaction:
        """`prepare` for asyncio, on a thread. A cancelled task waits for its end, and aborts the transaction."""
        from asyncio import CancelledError

        try:
            return await on_thread(self.prepare)
        except CancelledError:  # the task never gets the token that ends it
            await on_thread(self._withdraw_quietly)
            raise

    aabort = awaitable(abort)


def end_transaction(
    bootstrap: str | Iterable[str | Address],
    prepared: PreparedTransaction,
    *,
    commit: bool,
    security: Security = PLAINTEXT,
    timeouts: Timeouts | None = None,
) -> None:
    """Commit or abort (`commit`) a transaction that some process has `prepared`.

    Ending it the same way again is no error until its producer begins the next one. Raises `Fenced` after that, after a
    timeout or a takeover, and `TransactionFailed` if it was ended the other way.
    """
    if not isinstance(prepared, PreparedTransaction):
        raise InputError(f"a {type(prepared).__name__} is not a prepared transaction: pass what tx.prepare() returned")
    if prepared.empty:
        return
    with Cluster(bootstrap, security=security, client_id="ottla-end-transaction", timeouts=timeouts) as cluster:
        try:
            coordinator.end(cluster, prepared, commit=commit)
        except Fenced as error:
            raise Fenced(_gone(prepared), records=0, cause=error) from error


def _gone(prepared: PreparedTransaction) -> str:
    """Why a prepared transaction cannot be ended any more."""
    return (
        f"the transaction of {prepared.transactional_id} (producer id {prepared.producer_id}, epoch {prepared.epoch})"
        " cannot be ended any more: it was ended before and its producer began another one, or another producer with"
        " that id or its timeout aborted it"
    )


def _checked(offsets: Mapping[Any, Any]) -> dict[TopicPartition, int]:
    """The offsets with plain types. Raises `InputError` for anything else."""
    checked: dict[TopicPartition, int] = {}
    for tp, offset in offsets.items():
        match tp, offset:
            case (str(topic), int() | np.integer() as partition), int() | np.integer() if min(partition, offset) >= 0:
                checked[TopicPartition(topic, int(partition))] = int(offset)
            case _:
                raise InputError(
                    f"offsets has {tp!r}: {offset!r}; expected (topic, partition): the next offset to read"
                )
    return checked
