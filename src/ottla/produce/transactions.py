"""The transactional side of a producer: which transaction is open, what may be sent in it, and how it ends.

Calls of `Transaction` come in from any thread; the coordinator's requests and one error that tells what became of the
transaction go out. No batch leaves once the transaction is being ended.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from ottla.config import check_name
from ottla.errors import (
    BrokerError,
    ConfigError,
    Fenced,
    NotDelivered,
    OttlaError,
    TransactionFailed,
    UsedAfterFork,
    copied,
)
from ottla.model import GroupMember, TopicPartition
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.produce import coordinator
from ottla.produce.coordinator import PreparedTransaction, fencing
from ottla.produce.delivery import BulkDelivery, Shipment, is_sender_thread
from ottla.produce.failures import Failures
from ottla.produce.identity import Identified, transactional_producer_id
from ottla.produce.participants import Gate
from ottla.produce.sender import Sender

_log = logging.getLogger(__name__)
T = TypeVar("T")
_FOREVER = 1e6
"""Seconds: the wait ends earlier, with the `delivery_timeout` of the records or the `Timeouts` of the cluster."""
_LATE = "sent while its transaction was being ended by another thread"
_SHORT = 0.005
_DECIDE_SECONDS = 10.0
"""How long an interrupted commit goes on asking for its outcome; another interrupt ends it at once."""


class State(Enum):
    """Where a transactional producer stands."""

    IDLE = "no transaction is open"
    OPEN = "a transaction is open"
    ENDING = "the transaction is being ended"
    PREPARED = "a transaction is prepared"


@dataclass(eq=False, slots=True)
class Decision:
    """What becomes of one transaction."""

    number: int = -1
    committed: bool | None = None
    """Whether everything counts, or nothing; None while that is open, and when it is not known."""
    ender: object = None
    """The call that is ending it."""


class Transactions:
    """The transactional side of one producer.

    Its calls may be interrupted anywhere. What an interrupted one leaves undone, the next transaction makes up for:
    `_unsettled` and `_stale` are true from the moment at which an end begins until it is complete.
    """

    def __init__(
        self,
        transactional_id: str,
        *,
        timeout: float,
        cluster: Cluster,
        sender: Sender,
        failures: Failures,
        gate: Gate,
    ) -> None:
        self.transactional_id = transactional_id
        self.state = State.IDLE
        self._timeout = timeout
        self._cluster = cluster
        self._sender = sender
        self._failures = failures
        self._who: PreparedTransaction | None = None
        self._fenced: Fenced | None = None
        self._number = 0
        """Of the transaction that was begun last."""
        self._lock = threading.Lock()
        """Held where a transaction begins, starts to end, and while offsets are on their way."""
        self._inside: set[int] = set()
        """The threads that hold it or wait for it."""
        self._pid = os.getpid()
        self._stale = False
        """Whether a request of the last transaction may still arrive: the next one needs another epoch."""
        self._unsettled = False
        """Whether the coordinator may not know yet that the last transaction is over."""
        self._gate = gate
        self._own_reason: OttlaError | None = None
        """Why this transaction cannot be committed, besides records that failed."""

    @property
    def who(self) -> PreparedTransaction:
        """The identity under which the transaction runs."""
        assert self._who is not None
        return self._who

    @property
    def _reason(self) -> OttlaError | None:
        """Why this transaction cannot be committed: a record that failed takes it along, whoever else was told."""
        return self._own_reason or self._failures.failure

    def check_open(self) -> None:
        """Raises unless records may be sent."""
        if self._fenced is not None:
            raise copied(self._fenced)
        if self.state is not State.OPEN:
            raise TransactionFailed(
                f"{self.state.value}: a producer with a transactional id sends within `with producer.transaction()`"
            )
        if self._reason is not None:
            raise self._failed("the transaction can only be aborted", self._reason)

    def check_process(self) -> None:
        """Raises in a forked child: the transaction is that of the parent."""
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"this transaction is that of process {self._pid}, which has forked; make a producer in the child"
            )

    def _alone(self, work: Callable[[], T]) -> T:
        """Does `work` with the lock held; raises where the thread has it already, and would wait for itself."""
        self.check_process()
        me = threading.get_ident()
        if me in self._inside:
            raise TransactionFailed(
                "this thread is in the middle of another call on its transaction: a signal handler can neither begin"
                " nor end one there"
            )
        try:
            try:
                self._inside.add(me)
                with self._lock:
                    return work()
            finally:
                self._inside.discard(me)
        finally:
            self._inside.discard(me)  # again: Ctrl-C may have ended the first

    # Beginning

    def begin(self, this: Decision) -> None:
        """Opens a transaction; the first one asks for a producer id, which fences others."""

        def work() -> None:
            if self._fenced is not None:
                raise copied(self._fenced)
            if self.state in (State.OPEN, State.ENDING):
                raise TransactionFailed(
                    "a transaction is open already: a producer has one at a time (if an interrupt has left its block"
                    " open, abort() of that transaction ends it)"
                )
            self._drop_strays()
            self._settle_the_last()
            self._start_afresh(this)

        self._alone(work)

    def forsake(self, this: Decision) -> None:
        """The block was never entered: what other threads have sent in it belongs to none."""
        if this.number == self._number and self.state is State.OPEN:
            self._gate.sending = False
            self._unsettled = self._stale = True
            self.state = State.IDLE

    def _drop_strays(self) -> None:
        """What threads handed in while no transaction was open belongs to none."""
        self._take_reason()
        self._sender.drop_all(NotDelivered(_LATE))
        stray = self._take_reason()
        if stray is not None:
            _log.error("records were dropped: %s", stray)
        self._failures.forget_failures()

    def _take_reason(self) -> OttlaError | None:
        reason = self._reason
        self._own_reason = self._failures.failure = None
        return reason

    def _settle_the_last(self) -> None:
        """The epoch that this transaction runs under, in which nothing of an earlier one can arrive any more."""
        if self.state is State.PREPARED:
            if coordinator.is_ongoing(self._cluster, self.who):
                raise TransactionFailed("the prepared transaction was not ended yet: see ottla.end_transaction")
            # Whoever has the token may use it again: in this epoch he would end the next transaction.
            self._stale, self._unsettled = True, False
        if self._unsettled:
            self._clear(None)
        if self._who is None or self._stale:
            self._identify(None if self._who is None else Identified(self._who.producer_id, self._who.epoch))
        self._stale = False
        self.state = State.IDLE

    def _start_afresh(self, this: Decision) -> None:
        this.number = self._number = self._number + 1
        self._take_reason()
        self._gate.begin(self._number, self.who)
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

    def commit(self, this: Decision) -> None:
        """All records are acknowledged, then everything counts; aborts and raises if any was not."""

        def work() -> State:
            self._wait_for_all(this)
            if self._gate.told:
                self._count(this)
            self._unsettled = False
            self._stale = self._stale and self._gate.told
            this.committed = True
            return State.IDLE

        self._end(this, work)

    def prepare(self, this: Decision) -> PreparedTransaction:
        """All records are acknowledged; the transaction stays open until somebody ends it."""

        def work() -> State:
            self._wait_for_all(this)
            return State.PREPARED

        self._end(this, work)
        return replace(self.who, empty=not self._gate.told)

    def withdraw(self, this: Decision) -> None:
        """Aborts a prepared transaction whose token nobody got."""
        if self.state is State.PREPARED and this.number == self._number:
            self.state = State.OPEN
            self.abort(this)

    def abort(self, this: Decision, *, deadline: Deadline | None = None) -> None:
        """Nothing counts. Records that were not sent yet are dropped."""
        self.check_process()
        if self._fenced is not None or self.state is not State.OPEN or this.number != self._number:
            return

        def work() -> State:
            self._roll_back(this, deadline)
            return State.IDLE

        self._end(this, work)
        if self._fenced is not None:
            raise copied(self._fenced)

    def close(self, deadline: Deadline) -> None:
        """The producer ends: so does its transaction, unless it is prepared."""
        if self.state is not State.OPEN:
            return
        _log.warning("the producer is closed within a transaction of %s: it is aborted", self.transactional_id)
        try:
            self.abort(Decision(self._number), deadline=deadline)
        except TransactionFailed as error:  # in a signal handler: the broker's timeout ends it
            _log.warning("%s", error)

    def _end(self, this: Decision, work: Callable[[], State]) -> None:
        """Does `work` while the transaction is being ended, and leaves the state that it returns; IDLE if it raises."""
        if is_sender_thread():
            raise TransactionFailed("a callback cannot end a transaction: it runs on the thread that delivers")
        call = object()
        after = State.IDLE
        try:
            try:
                self._alone(lambda: self._start_to_end(this, call))
                after = work()
            finally:
                self._over(this, call, after)
        finally:
            self._over(this, call, after)  # again: Ctrl-C may have ended the first

    def _start_to_end(self, this: Decision, call: object) -> None:
        if self._fenced is not None:
            raise copied(self._fenced)
        if self.state is not State.OPEN or this.number != self._number:
            why = f": {self._reason}" if self._reason is not None and this.number == self._number else ""
            raise TransactionFailed(f"this transaction is over already{why}")
        self._unsettled = self._stale = True  # until the end is complete
        this.ender = call
        self.state = State.ENDING

    def _over(self, this: Decision, call: object, after: State) -> None:
        if this.ender is not call:
            return
        if self.state is State.ENDING and this.number == self._number:
            self._gate.sending = False
            self._failures.forget_failures()
            self.state = after
        this.ender = None

    def _wait_for_all(self, this: Decision) -> None:
        """Every acknowledgement is there and nothing can follow; else the transaction is aborted."""
        try:
            BulkDelivery(self._everything()).exception()
            self._gate.sending = False
            self._sender.drop_all(NotDelivered(_LATE))
        except BaseException:  # Ctrl-C as well
            self._roll_back(this, None)
            raise
        if self._reason is None:
            return
        failed = self._failed("the transaction was aborted", self._reason)
        this.committed = False
        if not isinstance(failed, Fenced):
            self._roll_back(this, None)
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

    def _count(self, this: Decision) -> None:
        """The coordinator commits."""
        try:
            # With an answer lost, the request that was sent first may come late: it must not end the next transaction.
            self._stale = coordinator.end(self._cluster, self.who, commit=True)
            this.committed = True
        except Fenced as error:
            raise self._fence(error) from error
        except (TransactionFailed, BrokerError) as error:
            this.committed = False
            raise TransactionFailed(f"the transaction was not committed: {error}") from error
        except OttlaError as error:
            raise TransactionFailed(f"it is not known whether the transaction was committed: {error}") from error
        except BaseException as interrupt:
            self._count_again(this, interrupt)
            raise

    def _count_again(self, this: Decision, interrupt: BaseException) -> None:
        """The commit was interrupted, and may be on its way: it cannot be taken back, so it is brought to its end."""
        try:
            if this.committed is None:
                limit = Deadline.after(min(_DECIDE_SECONDS, self._cluster.timeouts.total))
                coordinator.end(self._cluster, self.who, commit=True, deadline=limit)
            this.committed = True
            self._unsettled, self._stale = False, True
            interrupt.add_note("the transaction was committed all the same: it was too late to stop it")
        except TransactionFailed:
            this.committed = False
            interrupt.add_note("the transaction was not committed")
        except OttlaError as error:
            interrupt.add_note(
                f"it is not known whether the transaction was committed: {error}; the next transaction of"
                f" {self.transactional_id} begins after that is decided, and readers of committed records see it then"
            )

    def _roll_back(self, this: Decision, deadline: Deadline | None) -> None:
        """Drops and aborts; what the coordinator could not be told now, it is told before the next transaction."""
        this.committed = False
        self._gate.sending = False
        limit = deadline or Deadline.after(self._cluster.timeouts.total)
        self._sender.drop_all(NotDelivered("the transaction was aborted"), deadline=limit)
        try:
            if self._gate.told:
                self._clear(limit)
            else:
                self._unsettled = self._stale = False
        except OttlaError as error:
            _log.warning("%s", error)

    def _clear(self, deadline: Deadline | None) -> None:
        """The coordinator knows that the last transaction is over, one way or the other."""
        limit = deadline or Deadline.after(self._cluster.timeouts.total)
        while self._gate.joining and not self._sender.has_stopped and not limit.expired():
            time.sleep(_SHORT)  # it would add partitions to a transaction that was ended
        try:
            coordinator.end(self._cluster, self.who, commit=False, deadline=limit)
        except TransactionFailed:
            pass  # it is over: nothing was begun, or a commit whose answer was lost has arrived
        except Fenced as error:
            raise self._fence(error) from error
        self._unsettled = False

    def _fence(self, error: Fenced) -> Fenced:
        """This producer is done for good; the error to raise."""
        if self._fenced is None:
            self._fenced = self._gate.over = fenced = copied(coordinator.taken_over(self.transactional_id, error))
            self._gate.sending = False
            if is_sender_thread():
                self._sender.fail_all(fenced)  # not in the middle of whatever it does
            else:
                self._sender.drop_all(fenced)
            self._failures.forget_failures()
            self.state = State.IDLE
        return copied(self._fenced)

    # Offsets

    def send_offsets(self, this: Decision, member: GroupMember, offsets: Mapping[TopicPartition, int]) -> None:
        """The group's offsets count when the transaction is committed."""

        def work() -> None:
            if this.number != self._number:
                raise TransactionFailed("this transaction is over already")
            self.check_open()
            try:
                if offsets:
                    self._gate.told = True
                    coordinator.add_offsets(self._cluster, self.who, member.group)
                    coordinator.commit_offsets(self._cluster, self.who, member, offsets)
            except Fenced as error:
                raise self._fence(error) from error
            except OttlaError as error:
                self._own_reason = self._own_reason or error
                raise
            except BaseException as error:  # Ctrl-C: they may be part of it or not
                self._own_reason = self._own_reason or OttlaError(
                    f"sending the offsets of {member.group} was interrupted"
                )
                error.add_note("the transaction can only be aborted: it is not known whether it has the offsets")
                raise

        self._alone(work)


def check_settings(transactional_id: object, timeout: object) -> None:
    """Raises ConfigError for a transactional id or timeout that no broker would take."""
    if not isinstance(transactional_id, str) or not transactional_id:
        raise ConfigError(f"transactional_id must be a text that is not empty, got {transactional_id!r}")
    check_name("transactional_id", transactional_id)
    if not isinstance(timeout, int | float) or not 0.001 <= timeout <= coordinator.LONGEST_TIMEOUT:
        raise ConfigError(f"transaction_timeout must be positive seconds up to 2,147,483, got {timeout!r}")


def _chain(error: BaseException) -> list[BaseException]:
    """An error and what caused it."""
    found: list[BaseException] = [error]
    while (cause := found[-1].__cause__) is not None and cause not in found:
        found.append(cause)
    return found
