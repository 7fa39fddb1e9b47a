"""The transactional side of a producer: which transaction is open, what may be sent in it, and how it ends.

Calls of `Transaction` come in from any thread; the sender's gate, the coordinator's requests and one error that tells
what became of the transaction go out. A partition's batches leave only after the coordinator knows that the partition
takes part, and none once the transaction is being ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from ottla.errors import (
    BrokerError,
    ConfigError,
    Fenced,
    NotDelivered,
    OttlaError,
    TransactionFailed,
)
from ottla.model import GroupMember, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.produce import coordinator
from ottla.produce.coordinator import PreparedTransaction, fencing
from ottla.produce.delivery import SENDER_THREAD, BulkDelivery, Shipment
from ottla.produce.identity import Identified, transactional_producer_id
from ottla.produce.lane import Lane
from ottla.produce.outcomes import Outcomes
from ottla.produce.sender import Sender

_log = logging.getLogger(__name__)
_FOREVER = 1e6
"""Seconds: the wait ends earlier, with the `delivery_timeout` of the records or the `Timeouts` of the cluster."""
_LATE = "sent while its transaction was being ended by another thread"
_ERRAND = "transaction"
_SHORT = 0.005


class State(Enum):
    """Where a transactional producer stands."""

    IDLE = "no transaction is open"
    OPEN = "a transaction is open"
    ENDING = "the transaction is being ended"
    PREPARED = "a transaction is prepared"


class Transactions:
    """The transactional side of one producer."""

    def __init__(
        self, transactional_id: str, *, timeout: float, cluster: Cluster, sender: Sender, outcomes: Outcomes
    ) -> None:
        self.transactional_id = transactional_id
        self.state = State.IDLE
        self._timeout = timeout
        self._cluster = cluster
        self._sender = sender
        self._outcomes = outcomes
        self._who: PreparedTransaction | None = None
        self._fenced: Fenced | None = None
        self._number = 0
        """Of the transaction that was begun last."""
        self._lock = threading.Lock()
        """Held where a transaction begins, starts to end, and while offsets are on their way."""
        self._stale = False
        """Whether a request of the last transaction may still arrive: the next one needs another epoch."""
        self._unsettled = False
        """Whether the coordinator may not know yet that the last transaction is over."""
        self._reason: OttlaError | None = None
        """Why this transaction cannot be committed."""
        self._told = False
        """Whether the coordinator may have heard of this transaction."""
        self._sending = False
        """Whether batches may leave."""
        self._pause = threading.Event()
        """Never set: for waiting a moment."""
        # These belong to the sender's thread.
        self._added: set[TopicPartition] = set()
        self._wanted: set[TopicPartition] = set()
        self._refusal: OttlaError | None = None
        """Why the coordinator let a partition not take part."""
        sender.gate = self._may_send
        sender.reception.settled = self._look_at

    @property
    def who(self) -> PreparedTransaction:
        """The identity under which the transaction runs."""
        assert self._who is not None
        return self._who

    def check_open(self) -> None:
        """Raises unless records may be sent."""
        if self._fenced is not None:
            raise self._fenced
        if self.state is not State.OPEN:
            raise TransactionFailed(
                f"{self.state.value}: a producer with a transactional id sends within `with producer.transaction()`"
            )
        if self._reason is not None:
            raise self._failed("the transaction can only be aborted", self._reason)

    # Beginning

    def begin(self) -> int:
        """Opens a transaction and tells its number; the first one asks for a producer id, which fences others."""
        with self._lock:
            if self._fenced is not None:
                raise self._fenced
            if self.state in (State.OPEN, State.ENDING):
                raise TransactionFailed("a transaction is open already: a producer has one at a time")
            self._drop_strays()
            self._settle_the_last()
            self._start_afresh()
            return self._number

    def _drop_strays(self) -> None:
        """What threads handed in while no transaction was open belongs to none."""
        self._take_reason()
        self._sender.drop_all(NotDelivered(_LATE))
        stray = self._take_reason()
        if stray is not None:
            _log.error("records were dropped: %s", stray)
        self._outcomes.forget_failures()

    def _take_reason(self) -> OttlaError | None:
        reason, self._reason = self._reason, None
        return reason

    def _settle_the_last(self) -> None:
        """The epoch that this transaction runs under, in which nothing of an earlier one can arrive any more."""
        if self.state is State.PREPARED:
            if coordinator.is_ongoing(self._cluster, self.who):
                raise TransactionFailed("the prepared transaction was not ended yet: see ottla.end_transaction")
            # Whoever has the token may use it again: in this epoch he would end the next transaction.
            self._stale = True
        if self._unsettled:
            self._clear(None)
        if self._who is None or self._stale:
            self._identify(None if self._who is None else Identified(self._who.producer_id, self._who.epoch))
        self._stale = False
        self.state = State.IDLE

    def _start_afresh(self) -> None:
        self._number += 1
        self._added.clear()
        self._wanted.clear()
        self._reason = None
        self._refusal = None
        self._told = False
        self._sending = True
        self.state = State.OPEN

    def _identify(self, before: Identified | None) -> None:
        try:
            with fencing(self.transactional_id):
                found = transactional_producer_id(
                    self._cluster, self.transactional_id, transaction_timeout=self._timeout, before=before
                )
        except Fenced as error:
            raise self._fence(error) from error
        self._who = PreparedTransaction(self.transactional_id, found.producer_id, found.epoch)
        self._sender.identify(found.producer_id, found.epoch)

    # Ending

    def commit(self, number: int) -> None:
        """All records are acknowledged, then everything counts; aborts and raises if any was not."""
        self._start_to_end(number)
        try:
            self._wait_for_all()
            if self._told:
                self._count()
        finally:
            self._over(State.IDLE)

    def prepare(self, number: int) -> PreparedTransaction:
        """All records are acknowledged; the transaction stays open until somebody ends it."""
        self._start_to_end(number)
        after = State.IDLE
        try:
            self._wait_for_all()
            after = State.PREPARED
        finally:
            self._over(after)
        return replace(self.who, empty=not self._told)

    def abort(self, number: int, *, deadline: Deadline | None = None) -> None:
        """Nothing counts. Records that were not sent yet are dropped."""
        if self._fenced is not None or self.state is not State.OPEN or number != self._number:
            return
        self._start_to_end(number)
        try:
            self._roll_back(deadline)
        finally:
            self._over(State.IDLE)
        if self._fenced is not None:
            raise self._fenced

    def close(self, deadline: Deadline) -> None:
        """The producer ends: so does its transaction, unless it is prepared."""
        if self.state is State.OPEN:
            _log.warning("the producer is closed within a transaction of %s: it is aborted", self.transactional_id)
            self.abort(self._number, deadline=deadline)

    def _start_to_end(self, number: int) -> None:
        if threading.current_thread().name.startswith(SENDER_THREAD):
            raise TransactionFailed("a callback cannot end a transaction: it runs on the thread that delivers")
        with self._lock:
            if self._fenced is not None:
                raise self._fenced
            if self.state is not State.OPEN or number != self._number:
                why = f": {self._reason}" if self._reason is not None and number == self._number else ""
                raise TransactionFailed(f"this transaction is over already{why}")
            self.state = State.ENDING

    def _over(self, after: State) -> None:
        self._sending = False
        self._outcomes.forget_failures()
        self.state = after

    def _wait_for_all(self) -> None:
        """Every acknowledgement is there and nothing can follow; else the transaction is aborted."""
        try:
            BulkDelivery(self._everything()).exception()
            self._sending = False
            self._sender.drop_all(NotDelivered(_LATE))
        except BaseException:  # Ctrl-C as well
            self._roll_back(None)
            raise
        if self._reason is None:
            return
        failed = self._failed("the transaction was aborted", self._reason)
        if not isinstance(failed, Fenced):
            self._roll_back(None)
        raise failed

    def _everything(self) -> list[Shipment]:
        try:
            return self._sender.everything(Deadline.after(_FOREVER))
        except TimeoutError as error:
            raise TransactionFailed("the transaction was aborted: the producer has stopped") from error

    def _failed(self, what: str, reason: OttlaError) -> OttlaError:
        """The error to raise when the transaction cannot be committed."""
        fenced = next((one for one in _chain(reason) if isinstance(one, Fenced)), None)
        if fenced is not None:
            return self._fence(fenced)
        failed = TransactionFailed(f"{what}: {reason}")
        failed.__cause__ = reason
        return failed

    def _count(self) -> None:
        """The coordinator commits."""
        self._unsettled = self._stale = True
        try:
            # With an answer lost, the request that was sent first may come late: it must not end the next transaction.
            self._stale = coordinator.end(self._cluster, self.who, commit=True)
            self._unsettled = False
        except Fenced as error:
            raise self._fence(error) from error
        except (TransactionFailed, BrokerError) as error:
            raise TransactionFailed(f"the transaction was not committed: {error}") from error
        except OttlaError as error:
            raise TransactionFailed(f"it is not known whether the transaction was committed: {error}") from error

    def _roll_back(self, deadline: Deadline | None) -> None:
        """Drops and aborts; what the coordinator could not be told now, it is told before the next transaction."""
        self._sending = False
        self._unsettled = self._stale = True
        limit = deadline or Deadline.after(self._cluster.timeouts.total)
        self._sender.drop_all(NotDelivered("the transaction was aborted"), deadline=limit)
        try:
            if self._told:
                self._clear(limit)
            else:
                self._unsettled = self._stale = False
        except OttlaError as error:
            _log.warning("%s", error)

    def _clear(self, deadline: Deadline | None) -> None:
        """The coordinator knows that the last transaction is over, one way or the other."""
        limit = deadline or Deadline.after(self._cluster.timeouts.total)
        while self._sender.errands.busy(_ERRAND) and not self._sender.has_stopped and not limit.expired():
            self._pause.wait(_SHORT)  # it would add partitions to a transaction that was ended
        try:
            coordinator.end(self._cluster, self.who, commit=False, deadline=limit)
        except TransactionFailed:
            pass  # it is over: nothing was begun, or a commit whose answer was lost has arrived
        except Fenced as error:
            raise self._fence(error) from error
        self._unsettled = False

    def _fence(self, error: Fenced) -> Fenced:
        """This producer is done for good."""
        if self._fenced is None:
            self._fenced = fenced = coordinator.taken_over(self.transactional_id, error)
            self._sending = False
            self._sender.drop_all(fenced)
            self._over(State.IDLE)
        return self._fenced

    # Offsets

    def send_offsets(self, number: int, member: GroupMember, offsets: Mapping[TopicPartition, int]) -> None:
        """The group's offsets count when the transaction is committed."""
        with self._lock:
            if number == self._number:
                self.check_open()
            else:
                raise TransactionFailed("this transaction is over already")
            try:
                if offsets:
                    self._told = True
                    coordinator.add_offsets(self._cluster, self.who, member.group)
                    coordinator.commit_offsets(self._cluster, self.who, member, offsets)
            except Fenced as error:
                raise self._fence(error) from error
            except OttlaError as error:
                self._reason = self._reason or error
                raise

    # The sender's thread

    def _may_send(self, lane: Lane) -> bool:
        """Whether the coordinator knows the partition; asks it to, if not."""
        if not self._sending:
            return False
        if lane.at in self._added:
            return True
        if self._refusal is not None:
            # Also for what was handed in after the refusal. Not now: the lanes are being gone through.
            self._sender.ask(self._drop_refused)
            return False
        self._wanted.add(lane.at)
        asked, who, number = set(self._wanted), self.who, self._number
        self._told = True
        self._sender.errands.run(
            _ERRAND,
            lambda: coordinator.add_partitions(self._cluster, who, asked),
            done=lambda _: self._joined(number, asked),
            failed=lambda error: self._not_joined(number, error),
        )
        return False

    def _joined(self, number: int, partitions: set[TopicPartition]) -> None:
        if number == self._number:
            self._added |= partitions
            self._wanted -= partitions

    def _not_joined(self, number: int, error: OttlaError) -> None:
        if number == self._number:
            self._refusal = error
            self._reason = self._reason or error
            self._drop_refused()

    def _drop_refused(self) -> None:
        if self._refusal is not None:
            self._sender.fail_all(self._refusal)

    def _look_at(self, shipment: Shipment) -> None:
        """A shipment has its outcome: one that failed takes the transaction with it, whoever else was told."""
        if self._reason is None:
            self._reason = BulkDelivery([shipment]).exception(0)


def check_settings(transactional_id: object, timeout: object) -> None:
    """Raises ConfigError for a transactional id or timeout that no broker would take."""
    if not isinstance(transactional_id, str) or not transactional_id:
        raise ConfigError(f"transactional_id must be a text that is not empty, got {transactional_id!r}")
    if not isinstance(timeout, int | float) or not 0.001 <= timeout <= coordinator.LONGEST_TIMEOUT:
        raise ConfigError(f"transaction_timeout must be positive seconds up to 2,147,483, got {timeout!r}")


def _chain(error: BaseException) -> list[BaseException]:
    """An error and what caused it."""
    found: list[BaseException] = [error]
    while (cause := found[-1].__cause__) is not None and cause not in found:
        found.append(cause)
    return found
