"""The transactional side of a producer: which transaction is open, what may be sent in it, and how it ends.

Calls of `Transaction` come in from any thread. Requests to the coordinator go out, and one error that says what became
of the transaction. No batch leaves once the transaction is being ended.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

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
from ottla.produce.delivery import BulkDelivery, Shipment
from ottla.produce.failures import Failures
from ottla.produce.identity import ProducerIdentity, transactional_producer_id
from ottla.produce.participants import LATE, Gate
from ottla.produce.sender import Sender
from ottla.produce.waiting import is_sender_thread

if TYPE_CHECKING:
    from ottla.produce.counting import Counting

_log = logging.getLogger(__name__)
T = TypeVar("T")
_FOREVER = 1e6
"""Seconds. The wait ends earlier, with the `delivery_timeout` of the records or the `Timeouts` of the cluster."""
_POLL_SECONDS = 0.005
"""How often to check whether a request to add partitions is still in flight."""
_DECIDE_SECONDS = 10.0
"""How long an interrupted commit keeps asking for its outcome. Another interrupt ends it at once."""


class State(Enum):
    """The state of a transactional producer."""

    IDLE = "no transaction is open"
    OPEN = "a transaction is open"
    ENDING = "the transaction is being ended"
    PREPARED = "a transaction is prepared"


@dataclass(eq=False, slots=True)
class Decision:
    """What becomes of one transaction."""

    number: int = -1
    committed: bool | None = None
    """True if everything counts, False if nothing does; None while it is open, and if it is not known."""
    ender: object = None
    """The call that is ending it."""


class Transactions:
    """The transactional side of one producer.

    Its calls may be interrupted anywhere. The next transaction completes what an interrupted call left undone:
    `_is_undecided` and `_needs_new_epoch` are true from the moment an end begins until it is complete.
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
        counting: Counting | None = None,
    ) -> None:
        self.transactional_id = transactional_id
        self.state = State.IDLE
        self._timeout = timeout
        self._cluster = cluster
        self._sender = sender
        self._failures = failures
        self._identity: PreparedTransaction | None = None
        self._fenced: Fenced | None = None
        self._number = 0
        """The number of the last transaction that was begun."""
        self._lock = threading.Lock()
        """Held while a transaction begins, while it starts to end, and while offsets are sent."""
        self._busy_threads: set[int] = set()
        """The threads that hold the lock or wait for it."""
        self._pid = os.getpid()
        self._needs_new_epoch = False
        """Whether a request of the last transaction may still arrive."""
        self._is_undecided = False
        """Whether the coordinator may not know yet that the last transaction is over."""
        self._gate = gate
        self._counting = counting
        self._own_reason: OttlaError | None = None
        """Why this transaction cannot be committed, apart from failed records."""

    @property
    def identity(self) -> PreparedTransaction:
        """The identity under which the transaction runs."""
        assert self._identity is not None
        return self._identity

    @property
    def _reason(self) -> OttlaError | None:
        """Why this transaction cannot be committed. A failed record counts even if the program has seen the failure."""
        return self._own_reason or self._failures.failure

    def check_open(self, number: int = 0) -> None:
        """Raises `Fenced` or `TransactionFailed` unless records may be sent, in transaction `number` if it is given."""
        if self._fenced is not None:
            raise copied(self._fenced)
        if number and number != self._number:
            raise TransactionFailed("the transaction in which this call began is over")
        if self.state is not State.OPEN:
            raise TransactionFailed(
                f"{self.state.value}: a producer with a transactional id sends within `with producer.transaction()`"
            )
        if self._reason is not None:
            raise self._failure("the transaction can only be aborted", self._reason)

    def check_process(self) -> None:
        """Raises `UsedAfterFork` in a forked child: the transaction belongs to the parent."""
        if os.getpid() != self._pid:
            raise UsedAfterFork(
                f"this transaction belongs to process {self._pid}, which forked; create a producer in the child process"
            )

    def _exclusively(self, work: Callable[[], T]) -> T:
        """Run `work` with the lock held.

        Raises `TransactionFailed` if this thread has the lock already and would deadlock.
        """
        self.check_process()
        me = threading.get_ident()
        if me in self._busy_threads:
            raise TransactionFailed(
                "this thread is inside another call on its transaction: a signal handler cannot begin or end one there"
            )
        try:
            try:
                self._busy_threads.add(me)
                with self._lock:
                    return work()
            finally:
                self._busy_threads.discard(me)
        finally:
            self._busy_threads.discard(me)  # again: Ctrl-C may have interrupted the first

    # Beginning

    def begin(self, decision: Decision) -> None:
        """Open a transaction. The first one requests a producer id, which fences other producers."""

        def work() -> None:
            if self._fenced is not None:
                raise copied(self._fenced)
            if self.state in (State.OPEN, State.ENDING):
                raise TransactionFailed(
                    "a transaction is open already: a producer has one at a time (if an interrupt left its block open,"
                    " call abort() on that transaction)"
                )
            self._drop_strays()
            self._settle_previous()
            self._open(decision)

        self._exclusively(work)

    def abandon(self, decision: Decision) -> None:
        """Abandon a transaction whose block was never entered: what other threads sent in it belongs to none."""
        if decision.number == self._number and self.state is State.OPEN:
            self._gate.sending = False
            self._is_undecided = self._needs_new_epoch = True
            self.state = State.IDLE

    def _drop_strays(self) -> None:
        """Drop what threads handed in while no transaction was open."""
        self._take_reason()
        self._sender.drop_all(NotDelivered(LATE))
        stray = self._take_reason()
        if stray is not None:
            _log.error("records were dropped: %s", stray)
        self._failures.forget_failures()

    def _take_reason(self) -> OttlaError | None:
        """Reset and return the reason why the transaction cannot be committed."""
        reason = self._reason
        self._own_reason = self._failures.failure = None
        return reason

    def _settle_previous(self) -> None:
        """Make sure that the last transaction is over.

        The next one runs in an epoch in which no request of an earlier one can arrive any more.
        """
        if self.state is State.PREPARED:
            if coordinator.is_ongoing(self._cluster, self.identity):
                raise TransactionFailed("the prepared transaction was not ended yet: call ottla.end_transaction")
            # The token may be used again, and in this epoch it would end the next transaction.
            self._needs_new_epoch, self._is_undecided = True, False
        if self._is_undecided:
            self._abort_at_coordinator(None)
        if self._identity is None or self._needs_new_epoch:
            self._identify(
                None if self._identity is None else ProducerIdentity(self._identity.producer_id, self._identity.epoch)
            )
        self._needs_new_epoch = False
        self.state = State.IDLE

    def _open(self, decision: Decision) -> None:
        """Open the next transaction."""
        decision.number = self._number = self._number + 1
        self._take_reason()
        self._gate.begin(self._number, self.identity)
        self.state = State.OPEN

    def _identify(self, before: ProducerIdentity | None) -> None:
        """Get a producer id with a new epoch, which fences earlier users of the transactional id."""
        try:
            with fencing(self.transactional_id):
                producer = transactional_producer_id(
                    self._cluster, self.transactional_id, transaction_timeout=self._timeout, before=before
                )
        except Fenced as error:
            raise self._fence(error) from error
        self._identity = PreparedTransaction(self.transactional_id, producer.producer_id, producer.epoch)
        self._sender.identify(producer.producer_id, producer.epoch)

    # Ending

    def commit(self, decision: Decision) -> None:
        """Wait for all acknowledgements, then commit. Aborts and raises if any record failed."""

        def work() -> State:
            self._wait_for_all(decision)
            if self._gate.announced:
                self._commit_at_coordinator(decision)
            self._is_undecided = False
            self._needs_new_epoch = self._needs_new_epoch and self._gate.announced
            decision.committed = True
            return State.IDLE

        self._end(decision, work)

    def prepare(self, decision: Decision) -> PreparedTransaction:
        """Wait for all acknowledgements. The transaction stays open until `end_transaction` is called."""

        def work() -> State:
            self._wait_for_all(decision)
            return State.PREPARED

        self._end(decision, work)
        return replace(self.identity, empty=not self._gate.announced)

    def withdraw(self, decision: Decision) -> None:
        """Abort a prepared transaction whose token was never returned."""
        if self.state is State.PREPARED and decision.number == self._number:
            self.state = State.OPEN
            self.abort(decision)

    def abort(self, decision: Decision, *, deadline: Deadline | None = None) -> None:
        """Abort the transaction. Records that were not sent yet are dropped."""
        self.check_process()
        if self._fenced is not None or self.state is not State.OPEN or decision.number != self._number:
            return

        def work() -> State:
            self._roll_back(decision, deadline)
            return State.IDLE

        self._end(decision, work)
        if self._fenced is not None:
            raise copied(self._fenced)

    def close(self, deadline: Deadline) -> None:
        """Abort the open transaction, if any, because the producer is being closed."""
        if self.state is not State.OPEN:
            return
        _log.warning("the producer was closed within a transaction of %s, which is aborted", self.transactional_id)
        try:
            self.abort(Decision(self._number), deadline=deadline)
        except TransactionFailed as error:  # in a signal handler: the broker's timeout ends the transaction
            _log.warning("%s", error)

    def _end(self, decision: Decision, work: Callable[[], State]) -> None:
        """Run `work` while the transaction is being ended, and enter the state it returns; IDLE if it raises."""
        if is_sender_thread():
            raise TransactionFailed("a callback cannot end a transaction: it runs on the thread that delivers")
        call = object()
        after = State.IDLE
        try:
            try:
                self._exclusively(lambda: self._begin_end(decision, call))
                after = work()
            finally:
                self._finish(decision, call, after)
        finally:
            self._finish(decision, call, after)  # again: Ctrl-C may have interrupted the first

    def _begin_end(self, decision: Decision, call: object) -> None:
        """Enter the state ENDING. Raises `TransactionFailed` if the transaction is over. Runs under the lock."""
        if self._fenced is not None:
            raise copied(self._fenced)
        if self.state is not State.OPEN or decision.number != self._number:
            reason = f": {self._reason}" if self._reason is not None and decision.number == self._number else ""
            raise TransactionFailed(f"this transaction is over already{reason}")
        self._is_undecided = self._needs_new_epoch = True  # until the end is complete
        decision.ender = call
        self.state = State.ENDING

    def _finish(self, decision: Decision, call: object, after: State) -> None:
        """Leave the state ENDING, if this call entered it. May run twice."""
        if decision.ender is not call:
            return
        if self.state is State.ENDING and decision.number == self._number:
            if self._counting is not None:
                self._counting.ended(decision.committed)
            self._gate.sending = False
            self._failures.forget_failures()
            self.state = after
        decision.ender = None

    def _wait_for_all(self, decision: Decision) -> None:
        """Wait until every record is acknowledged and nothing can follow; otherwise abort and raise."""
        try:
            BulkDelivery(self._everything()).exception()
            self._gate.sending = False
            self._sender.drop_all(NotDelivered(LATE))
        except BaseException:  # Ctrl-C as well
            self._roll_back(decision, None)
            raise
        if self._reason is None:
            return
        failed = self._failure("the transaction was aborted", self._reason)
        decision.committed = False
        if not isinstance(failed, Fenced):
            self._roll_back(decision, None)
        raise failed

    def _everything(self) -> list[Shipment]:
        """Send everything.

        Returns the shipments without an outcome. Raises `TransactionFailed` if the sender has stopped.
        """
        try:
            return self._sender.send_everything(Deadline.after(_FOREVER))
        except TimeoutError as error:
            raise TransactionFailed("the transaction was aborted: the producer has stopped") from error

    def _failure(self, what: str, reason: OttlaError) -> OttlaError:
        """The error to raise if the transaction cannot be committed."""
        fenced = next((error for error in _chain(reason) if isinstance(error, Fenced)), None)
        if fenced is not None:
            return self._fence(fenced)
        failed = TransactionFailed(f"{what}: {reason}")
        failed.__cause__ = reason
        return failed

    def _commit_at_coordinator(self, decision: Decision) -> None:
        """Have the coordinator commit."""
        try:
            # If an answer was lost, the first request may arrive late: it must not end the next transaction.
            self._needs_new_epoch = coordinator.end(self._cluster, self.identity, commit=True)
            decision.committed = True
        except Fenced as error:
            raise self._fence(error) from error
        except (TransactionFailed, BrokerError) as error:
            decision.committed = False
            raise TransactionFailed(f"the transaction was not committed: {error}") from error
        except OttlaError as error:
            raise TransactionFailed(f"it is not known whether the transaction was committed: {error}") from error
        except BaseException as interrupt:
            self._finish_commit(decision, interrupt)
            raise

    def _finish_commit(self, decision: Decision, interrupt: BaseException) -> None:
        """Bring an interrupted commit to its end: it may be in flight and cannot be taken back."""
        try:
            if decision.committed is None:
                deadline = Deadline.after(min(_DECIDE_SECONDS, self._cluster.timeouts.total))
                coordinator.end(self._cluster, self.identity, commit=True, deadline=deadline)
            decision.committed = True
            self._is_undecided, self._needs_new_epoch = False, True
            interrupt.add_note("the transaction was committed all the same: the commit was already in flight")
        except TransactionFailed:
            decision.committed = False
            interrupt.add_note("the transaction was not committed")
        except OttlaError as error:
            interrupt.add_note(
                f"it is not known whether the transaction was committed: {error}; the next transaction of"
                f" {self.transactional_id} begins after that is decided, and readers of committed records see it then"
            )

    def _roll_back(self, decision: Decision, deadline: Deadline | None) -> None:
        """Drop records and abort. If the coordinator cannot be reached, the next transaction aborts first."""
        decision.committed = False
        self._gate.sending = False
        limit = deadline or self._cluster.deadline()
        self._sender.drop_all(NotDelivered("the transaction was aborted"), deadline=limit)
        try:
            if self._gate.announced:
                self._abort_at_coordinator(limit)
            else:
                self._is_undecided = self._needs_new_epoch = False
        except OttlaError as error:
            _log.warning("%s", error)

    def _abort_at_coordinator(self, deadline: Deadline | None) -> None:
        """Make sure that the coordinator knows that the last transaction is over."""
        limit = deadline or self._cluster.deadline()
        while self._gate.joining and not self._sender.has_stopped and not limit.expired():
            time.sleep(_POLL_SECONDS)  # a late request would add partitions to a transaction that was ended
        try:
            coordinator.end(self._cluster, self.identity, commit=False, deadline=limit)
        except TransactionFailed:
            pass  # it is over: nothing was begun, or a commit whose answer was lost has succeeded
        except Fenced as error:
            raise self._fence(error) from error
        self._is_undecided = False

    def _fence(self, error: Fenced) -> Fenced:
        """Stop this producer for good. Returns the error to raise."""
        if self._fenced is None:
            self._fenced = self._gate.over = fenced = copied(coordinator.taken_over(self.transactional_id, error))
            self._gate.sending = False
            if is_sender_thread():
                self._sender.fail_all(fenced)  # scheduled, so that it does not happen inside the sender's current step
            else:
                self._sender.drop_all(fenced)
            self._failures.forget_failures()
            self.state = State.IDLE
        return copied(self._fenced)

    # Offsets

    def send_offsets(self, decision: Decision, member: GroupMember, offsets: Mapping[TopicPartition, int]) -> None:
        """Add the group's offsets to the transaction. They count when it is committed."""

        def work() -> None:
            if decision.number != self._number:
                raise TransactionFailed("this transaction is over already")
            self.check_open()
            try:
                if offsets:
                    self._gate.announced = True
                    coordinator.add_offsets(self._cluster, self.identity, member.group)
                    coordinator.commit_offsets(self._cluster, self.identity, member, offsets)
            except Fenced as error:
                raise self._fence(error) from error
            except OttlaError as error:
                self._own_reason = self._own_reason or error
                raise
            except BaseException as error:  # Ctrl-C: the offsets may or may not be part of the transaction
                self._own_reason = self._own_reason or OttlaError(
                    f"sending the offsets of {member.group} was interrupted"
                )
                error.add_note("the transaction can only be aborted: it is not known whether it includes the offsets")
                raise

        self._exclusively(work)


def check_settings(transactional_id: object, timeout: object) -> None:
    """Raises `ConfigError` for a transactional id or timeout that no broker accepts."""
    if not isinstance(transactional_id, str) or not transactional_id:
        raise ConfigError(f"transactional_id must be a text that is not empty, got {transactional_id!r}")
    check_name("transactional_id", transactional_id)
    if not isinstance(timeout, int | float) or not 0.001 <= timeout <= coordinator.LONGEST_TIMEOUT:
        raise ConfigError(f"transaction_timeout must be positive seconds up to 2,147,483, got {timeout!r}")


def _chain(error: BaseException) -> list[BaseException]:
    """An error and its causes."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__) is not None and cause not in chain:
        chain.append(cause)
    return chain
