"""Transactions: records to many partitions, and consumer offsets, that count all together or not at all.

A producer with a transactional id comes in; `with producer.transaction()` commits at the end of the block and aborts
when it raises. What is sent within is gated: a partition's batches leave only after the coordinator knows that the
partition takes part.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from enum import Enum
from types import TracebackType
from typing import NoReturn

from ottla.config import PLAINTEXT, Address, Security, Timeouts
from ottla.errors import ConfigError, Fenced, InputError, NotDelivered, OttlaError, TransactionFailed
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.produce import coordinator
from ottla.produce.coordinator import GroupMember, PreparedTransaction, fencing
from ottla.produce.delivery import BulkDelivery
from ottla.produce.identity import Identified, transactional_producer_id
from ottla.produce.lane import Lane
from ottla.produce.outcomes import Outcomes
from ottla.produce.sender import Sender


class State(Enum):
    """Where a transactional producer stands."""

    IDLE = "no transaction is open"
    OPEN = "a transaction is open"
    PREPARED = "a transaction is prepared"


class Transactions:
    """The transactional side of one producer."""

    def __init__(
        self, transactional_id: str, *, timeout: float, cluster: Cluster, sender: Sender, outcomes: Outcomes
    ) -> None:
        if not transactional_id:
            raise ConfigError("transactional_id is empty")
        self.transactional_id = transactional_id
        self.state = State.IDLE
        self.fenced: Fenced | None = None
        self._timeout = timeout
        self._cluster = cluster
        self._sender = sender
        self._outcomes = outcomes
        self._who: PreparedTransaction | None = None
        self._lock = threading.Lock()
        # The rest belongs to the sender's thread.
        self._added: set[TopicPartition] = set()
        self._wanted: set[TopicPartition] = set()
        self._doomed: OttlaError | None = None
        self._grouped = False
        sender.gate = self._may_send

    @property
    def who(self) -> PreparedTransaction:
        """The identity under which the transaction runs."""
        assert self._who is not None
        return self._who

    def check_open(self) -> None:
        """Raises unless records may be sent."""
        if self.fenced is not None:
            raise self.fenced
        if self.state is not State.OPEN:
            raise TransactionFailed(
                f"{self.state.value}: a producer with a transactional id sends within `with producer.transaction()`"
            )

    def begin(self) -> None:
        """Opens a transaction; the first one asks for a producer id, which fences whoever had it."""
        if self.fenced is not None:
            raise self.fenced
        with self._lock:
            if self.state is State.OPEN:
                raise TransactionFailed("a transaction is open already: a producer has one at a time")
            if self.state is State.PREPARED and coordinator.is_ongoing(self._cluster, self.who):
                raise TransactionFailed("the prepared transaction was not ended yet: see ottla.end_transaction")
            if self._who is None:
                self._identify(None)
            self._added.clear()
            self._wanted.clear()
            self._doomed = None
            self._grouped = False
            self.state = State.OPEN

    def commit(self) -> None:
        """All records are acknowledged, then everything counts; aborts and raises if any was not."""
        self.flush()
        try:
            if self._added or self._grouped:
                coordinator.end(self._cluster, self.who, commit=True)
        except Fenced as error:
            self._fence(error)
        self.state = State.IDLE

    def prepare(self) -> PreparedTransaction:
        """All records are acknowledged; the transaction stays open until somebody ends it."""
        self.flush()
        self.state = State.PREPARED
        return self.who

    def flush(self) -> None:
        """Waits for every acknowledgement; when one fails, the transaction is aborted."""
        self.check_open()
        try:
            BulkDelivery(self._sender.everything(Deadline.after(1e6))).exception()
            self._outcomes.raise_failures()
        except NotDelivered as error:
            for one in (error, error.cause):
                if isinstance(one, Fenced):
                    self._fence(one)
            self.abort()
            raise TransactionFailed(f"the transaction was aborted: {error}") from error

    def abort(self) -> None:
        """Nothing counts. Records that were not sent yet are dropped."""
        if self.state is not State.OPEN or self.fenced is not None:
            return
        reason = NotDelivered("the transaction was aborted", records=0)
        self._sender.drop_all(reason)
        self._outcomes.forget_failures()
        try:
            if self._added or self._grouped:
                coordinator.end(self._cluster, self.who, commit=False)
            # A new epoch: numbers may have been left out, and nothing of this transaction may arrive late.
            self._identify(Identified(self.who.producer_id, self.who.epoch))
        except Fenced as error:
            self._fence(error)
        self.state = State.IDLE

    def send_offsets(self, member: GroupMember, offsets: Mapping[TopicPartition, int]) -> None:
        """The group's offsets count when the transaction is committed."""
        self.check_open()
        try:
            if offsets:
                coordinator.add_offsets(self._cluster, self.who, member.group)
                self._grouped = True
                coordinator.commit_offsets(self._cluster, self.who, member, offsets)
        except Fenced as error:
            self._fence(error)

    def _identify(self, before: Identified | None) -> None:
        with fencing(self.transactional_id):
            found = transactional_producer_id(
                self._cluster, self.transactional_id, transaction_timeout=self._timeout, before=before
            )
        self._who = PreparedTransaction(self.transactional_id, found.producer_id, found.epoch)
        self._sender.identify(found.producer_id, found.epoch)

    def _fence(self, error: Fenced) -> NoReturn:
        self.fenced = error
        self.state = State.IDLE
        self._sender.drop_all(error)
        raise error

    # The sender's thread

    def _may_send(self, lane: Lane) -> bool:
        """Whether the coordinator knows the partition; asks it to, if not."""
        if lane.at in self._added:
            return True
        self._wanted.add(lane.at)
        if self._who is None or self._doomed is not None:
            return False
        asked = set(self._wanted)
        who = self._who
        self._sender.errands.run(
            "transaction",
            lambda: coordinator.add_partitions(self._cluster, who, asked),
            done=lambda _: self._joined(asked),
            failed=self._not_joined,
        )
        return False

    def _joined(self, partitions: set[TopicPartition]) -> None:
        self._added |= partitions
        self._wanted -= partitions

    def _not_joined(self, error: OttlaError) -> None:
        self._doomed = error
        self._sender.fail_all(error)


class Transaction:
    """One transaction: `with producer.transaction() as tx`."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def __enter__(self) -> Transaction:
        self._transactions.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._transactions.state is not State.OPEN:
            return
        if kind is None:
            self._transactions.commit()
            return
        self._transactions.abort()

    def send_offsets(self, group: str | GroupMember, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits a consumer group's offsets (the next ones to read) with this transaction."""
        member = GroupMember(group) if isinstance(group, str) else group
        for at, offset in offsets.items():
            if len(at) != 2 or offset < 0:
                raise InputError(
                    f"offsets has {at!r}: {offset!r}; expected (topic, partition): the next offset to read"
                )
        self._transactions.send_offsets(member, offsets)

    def prepare(self) -> PreparedTransaction:
        """Waits for every acknowledgement and hands out what is needed to end this transaction from anywhere.

        The block then neither commits nor aborts; `ottla.end_transaction` does, in this process or another. Until
        then the transaction's timeout runs.
        """
        return self._transactions.prepare()

    def abort(self) -> None:
        """Ends the transaction now; nothing of it counts."""
        self._transactions.abort()


def end_transaction(
    bootstrap: str | Iterable[str | Address],
    prepared: PreparedTransaction,
    *,
    commit: bool,
    security: Security = PLAINTEXT,
    timeouts: Timeouts | None = None,
) -> None:
    """Commits or aborts a transaction that some process has prepared. Doing the same twice is no error."""
    with Cluster(bootstrap, security=security, client_id="ottla-end-transaction", timeouts=timeouts) as cluster:
        coordinator.end(cluster, prepared, commit=commit)
