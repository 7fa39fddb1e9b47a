"""Transactions that many tasks prepare and one driver ends: what each task has written, and how the list is ended.

Shares of tasks come in with the tokens of their transactions; each goes out ended or lost, and a lost one is told
apart from one that was committed before by looking into the log. Which lists are to be ended is decided elsewhere.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from ottla.admin import Admin, OffsetSpec
from ottla.admin.all_brokers import ask_each
from ottla.errors import BrokerError, ErrorCode, Fenced, NetworkError, OttlaError, TransactionFailed
from ottla.fetch.reader import Reader
from ottla.model import Fingerprint, Isolation, OffsetRange, TopicPartition
from ottla.net import Cluster
from ottla.net.connection import VersionOf
from ottla.net.deadline import Deadline
from ottla.produce import coordinator
from ottla.produce.coordinator import PreparedTransaction
from ottla.produce.identity import transactional_producer_id
from ottla.wire import messages

_log = logging.getLogger(__name__)
_LIST_TRANSACTIONS = 66
_AT_ONCE = 16
_SWEEP_TIMEOUT = 60.0
"""Seconds for a transaction that nobody will begin: the request wants a number."""
T = TypeVar("T")


class Fate(Enum):
    """What is known of the transaction of a share."""

    PREPARED = "prepared"
    ENDED = "ended"
    """Committed; or there was nothing to commit."""
    LOST = "lost"
    """Aborted by its timeout or by another producer: nothing of it is in the topic for readers of committed data."""


@dataclass(frozen=True, slots=True)
class TaskShare:
    """What one task has written, and the transaction that holds it."""

    task: int
    attempt: int
    fingerprint: Fingerprint
    prepared: PreparedTransaction | None
    """None when the task had no rows."""
    witness: OffsetRange | None = None
    """A stretch of what it wrote: whether readers see it tells whether the transaction was committed."""
    fate: Fate = Fate.PREPARED

    def to_json(self) -> dict[str, Any]:
        """As plain values that `from_json` takes back."""
        token, seen = self.prepared, self.witness
        return {
            "task": self.task,
            "attempt": self.attempt,
            "fingerprint": str(self.fingerprint),
            "transaction": None if token is None else [token.transactional_id, token.producer_id, token.epoch],
            "witness": None if seen is None else [seen.topic, seen.partition, seen.start, seen.stop],
            "fate": self.fate.value,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> TaskShare:
        """What `to_json` made of one."""
        token, seen = row["transaction"], row["witness"]
        return cls(
            task=row["task"],
            attempt=row["attempt"],
            fingerprint=Fingerprint.parse(row["fingerprint"]),
            prepared=None if token is None else PreparedTransaction(*token),
            witness=None if seen is None else OffsetRange(*seen),
            fate=Fate(row["fate"]),
        )


def check_alive(cluster: Cluster, shares: Sequence[TaskShare]) -> None:
    """Raises TransactionFailed unless every transaction can still be committed."""
    held = [share for share in shares if share.prepared is not None]
    alive = _each(held, lambda share: coordinator.is_ongoing(cluster, _token(share)))
    gone = [share for share, good in zip(held, alive, strict=True) if not good]
    if gone:
        raise TransactionFailed(
            f"{len(gone)} of {len(held)} transactions were aborted before all tasks were done ({_named(gone)}): their"
            " timeout was over, or another run took over. Nothing is visible to readers of committed data. Raise"
            " kafka.transaction.timeout.ms (the brokers allow up to transaction.max.timeout.ms), write less at a time,"
            " or choose delivery=at-least-once"
        )


def commit_all(cluster: Cluster, shares: Sequence[TaskShare]) -> list[TaskShare]:
    """Commits every transaction that is still prepared; each share comes back ended or lost."""
    return _each(shares, lambda share: _committed(cluster, share))


def abort_all(cluster: Cluster, shares: Iterable[TaskShare]) -> None:
    """Aborts every transaction that is still prepared; what cannot be reached ends with its timeout."""

    def abort(share: TaskShare) -> None:
        try:
            coordinator.end(cluster, _token(share), commit=False)
        except (Fenced, TransactionFailed):
            pass  # somebody did it already
        except OttlaError as error:
            _log.warning("the transaction of task %d stays open until its timeout: %s", share.task, error)

    _each([share for share in shares if share.prepared is not None and share.fate is Fate.PREPARED], abort)


def _any(_: str) -> bool:
    return True


def sweep(cluster: Cluster, prefix: str, *, spare: Collection[str] = (), which: Callable[[str], bool] = _any) -> int:
    """Aborts what tasks that were killed have left open under ids with this prefix, or those of them; tells how many.

    An open transaction holds up all readers of committed data. Failing to find them is no error: timeouts end them.
    """
    try:
        found = [one for one in _open_transactions(cluster, prefix) if one not in spare and which(one)]
        _each(found, lambda one: transactional_producer_id(cluster, one, transaction_timeout=_SWEEP_TIMEOUT))
    except OttlaError as error:
        _log.warning("transactions that killed tasks left open end with their timeout: %s", error)
        return 0
    if found:
        _log.info("transactions that killed tasks left open were aborted: %s", ", ".join(found))
    return len(found)


def _committed(cluster: Cluster, share: TaskShare) -> TaskShare:
    if share.fate is not Fate.PREPARED:
        return share
    if share.prepared is None:
        return replace(share, fate=Fate.ENDED)
    try:
        coordinator.end(cluster, share.prepared, commit=True)
    except (Fenced, TransactionFailed) as error:
        # Its epoch is over. It may have been committed before that: by a driver that died right after, for example.
        fate = Fate.ENDED if _is_visible(cluster, share) else Fate.LOST
        _log.warning("task %d: %s; looking into the log: %s", share.task, error, fate.value)
        return replace(share, fate=fate)
    return replace(share, fate=Fate.ENDED)


def _is_visible(cluster: Cluster, share: TaskShare) -> bool:
    """Whether readers of committed data see what the task wrote; waits until that is decided."""
    seen = share.witness
    assert seen is not None, "a transaction without a record was never recorded"
    _await_decision(cluster, seen)
    with Reader(cluster, isolation=Isolation.READ_COMMITTED) as reader:
        return any(batch.num_rows for batch in reader.read(seen, columns=("offset",)))


def _await_decision(cluster: Cluster, seen: OffsetRange) -> None:
    at = seen.topic_partition
    effort = cluster.attempts(f"waiting until the transactions in {at} are ended up to offset {seen.stop}")
    while True:
        stop = _last_stable(cluster, at)
        if stop >= seen.stop:
            return
        effort.failed(BrokerError(ErrorCode.concurrent_transactions, f"{at} is decided up to offset {stop}"))


def _last_stable(cluster: Cluster, at: TopicPartition) -> int:
    found = Admin(cluster).list_offsets([at], OffsetSpec.LATEST, isolation=Isolation.READ_COMMITTED)
    return found[at].offset


def _open_transactions(cluster: Cluster, prefix: str) -> list[str]:
    def build(version_of: VersionOf) -> messages.Message:
        # From version 2 on the broker looks for the prefix (KIP-1152); others tell all that are open.
        fields = {"state_filters": ["Ongoing"], "transactional_id_pattern": f"{re.escape(prefix)}.*"}
        kind = messages.request_type(_LIST_TRANSACTIONS, version_of(_LIST_TRANSACTIONS))
        message: messages.Message = messages.compose(kind, fields)
        return message

    deadline = Deadline.after(cluster.timeouts.total)
    brokers = cluster.metadata(deadline=deadline).brokers.values()
    found: list[str] = []
    for answer in ask_each(cluster, brokers, build, deadline=deadline).values():
        if isinstance(answer, NetworkError):
            raise answer
        if answer.error_code is not ErrorCode.none:
            raise BrokerError(answer.error_code, "listing transactions")
        found += [one.transactional_id for one in answer.transaction_states if one.transactional_id.startswith(prefix)]
    return found


def _token(share: TaskShare) -> PreparedTransaction:
    assert share.prepared is not None
    return share.prepared


def _named(shares: Sequence[TaskShare]) -> str:
    named = ", ".join(f"task {share.task}" for share in shares[:5])
    return named + (f" and {len(shares) - 5} more" if len(shares) > 5 else "")


S = TypeVar("S")


def _each(items: Sequence[S], function: Callable[[S], T]) -> list[T]:
    """The same for all of them, some at the same time: each waits for its coordinator and for markers on disks."""
    if len(items) < 2:
        return [function(one) for one in items]
    with ThreadPoolExecutor(min(_AT_ONCE, len(items)), thread_name_prefix="ottla-end") as pool:
        return list(pool.map(function, items))
