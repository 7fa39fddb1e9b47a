"""Two-phase commit: many tasks prepare transactions, and the driver ends them.

Task shares come in with the tokens of their transactions; each goes out ended or lost. If a transaction's epoch is
over, the log shows whether it was committed before. `sink` decides which transactions to end.
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
from ottla.produce import coordinator
from ottla.produce.coordinator import PreparedTransaction
from ottla.produce.identity import transactional_producer_id
from ottla.wire import messages

_log = logging.getLogger(__name__)
_LIST_TRANSACTIONS = 66
_AT_ONCE = 16
_SWEEP_TIMEOUT = 60.0
"""Seconds. The request needs a timeout, but no transaction is begun."""
T = TypeVar("T")


class Fate(Enum):
    """What is known about the transaction of a share. Values are persisted."""

    PREPARED = "prepared"
    ENDED = "ended"
    """Committed, or there was nothing to commit."""
    LOST = "lost"
    """Aborted by its timeout or by another producer. Readers of committed data see nothing of it."""


@dataclass(frozen=True, slots=True)
class TaskShare:
    """What one task wrote, and the transaction that holds it."""

    task: int
    attempt: int
    fingerprint: Fingerprint
    prepared: PreparedTransaction | None
    """None if the task had no rows."""
    witness: OffsetRange | None = None
    """A record that it wrote. Readers see it exactly if the transaction was committed."""
    fate: Fate = Fate.PREPARED

    def to_json(self) -> dict[str, Any]:
        """As plain values for `from_json`. Persisted in the commit log."""
        token, witness = self.prepared, self.witness
        return {
            "task": self.task,
            "attempt": self.attempt,
            "fingerprint": str(self.fingerprint),
            "transaction": None if token is None else [token.transactional_id, token.producer_id, token.epoch],
            "witness": None if witness is None else [witness.topic, witness.partition, witness.start, witness.stop],
            "fate": self.fate.value,
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> TaskShare:
        """Read what `to_json` wrote. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
        token, witness = row["transaction"], row["witness"]
        return cls(
            task=row["task"],
            attempt=row["attempt"],
            fingerprint=Fingerprint.parse(row["fingerprint"]),
            prepared=None if token is None else PreparedTransaction(*token),
            witness=None if witness is None else OffsetRange(*witness),
            fate=Fate(row["fate"]),
        )


def check_alive(cluster: Cluster, shares: Sequence[TaskShare]) -> None:
    """Raise `TransactionFailed` unless every transaction can still be committed."""
    open_shares = [share for share in shares if share.prepared is not None]
    ongoing = _each(open_shares, lambda share: coordinator.is_ongoing(cluster, _token(share)))
    aborted = [share for share, is_ongoing in zip(open_shares, ongoing, strict=True) if not is_ongoing]
    if aborted:
        raise TransactionFailed(
            f"{len(aborted)} of {len(open_shares)} transactions were aborted before all tasks were done"
            f" ({_listed(aborted)}): by their timeout, or because another run took over. Nothing is visible to readers"
            " of committed data. Raise kafka.transaction.timeout.ms (brokers allow up to transaction.max.timeout.ms),"
            " write less at a time, or choose delivery=at-least-once"
        )


def commit_all(cluster: Cluster, shares: Sequence[TaskShare]) -> list[TaskShare]:
    """Commit every transaction that is still prepared; returns each share as ended or lost.

    Raises the cluster client's errors if a coordinator cannot be reached.
    """
    return _each(shares, lambda share: _committed(cluster, share))


def abort_all(cluster: Cluster, shares: Iterable[TaskShare]) -> None:
    """Abort every transaction that is still prepared. If a coordinator fails, log it: the timeout ends the rest."""

    def abort(share: TaskShare) -> None:
        try:
            coordinator.end(cluster, _token(share), commit=False)
        except (Fenced, TransactionFailed):
            pass  # it is over already
        except OttlaError as error:
            _log.warning(
                "cannot abort the transaction of task %d, it stays open until its timeout: %s", share.task, error
            )

    _each([share for share in shares if share.prepared is not None and share.fate is Fate.PREPARED], abort)


def _any(_: str) -> bool:
    return True


def sweep(cluster: Cluster, prefix: str, *, spare: Collection[str] = (), which: Callable[[str], bool] = _any) -> int:
    """Abort the transactions that killed tasks left open under ids with this prefix; returns how many.

    Ids in `spare`, and ids for which `which` is false, are left alone. An open transaction blocks all readers of
    committed data. Errors are logged, not raised: the timeouts end what is left.
    """
    try:
        ids = [
            transactional_id
            for transactional_id in _open_transactions(cluster, prefix)
            if transactional_id not in spare and which(transactional_id)
        ]
        # Asking for a producer id under the same transactional id aborts its open transaction.
        _each(ids, lambda each: transactional_producer_id(cluster, each, transaction_timeout=_SWEEP_TIMEOUT))
    except OttlaError as error:
        _log.warning("cannot abort transactions that killed tasks left open, their timeouts end them: %s", error)
        return 0
    if ids:
        _log.info("aborted transactions that killed tasks left open: %s", ", ".join(ids))
    return len(ids)


def _committed(cluster: Cluster, share: TaskShare) -> TaskShare:
    if share.fate is not Fate.PREPARED:
        return share
    if share.prepared is None:
        return replace(share, fate=Fate.ENDED)
    try:
        coordinator.end(cluster, share.prepared, commit=True)
    except (Fenced, TransactionFailed) as error:
        # Its epoch is over. It may have been committed before that, for example by a driver that died right after.
        fate = Fate.ENDED if _is_visible(cluster, share) else Fate.LOST
        _log.warning("task %d: %s; according to the log its transaction is %s", share.task, error, fate.value)
        return replace(share, fate=fate)
    return replace(share, fate=Fate.ENDED)


def _is_visible(cluster: Cluster, share: TaskShare) -> bool:
    """Whether readers of committed data see what the task wrote. Blocks until that is decided."""
    witness = share.witness
    assert witness is not None, "a transaction without a record was never recorded"
    _await_decision(cluster, witness)
    with Reader(cluster, isolation=Isolation.READ_COMMITTED) as reader:
        return any(batch.num_rows for batch in reader.read(witness, columns=("offset",)))


def _await_decision(cluster: Cluster, witness: OffsetRange) -> None:
    """Block until the last stable offset has passed the witness: then its transaction is committed or aborted."""
    partition = witness.topic_partition
    attempts = cluster.attempts(f"waiting until the transactions in {partition} are ended up to offset {witness.stop}")
    while True:
        stable = _last_stable_offset(cluster, partition)
        if stable >= witness.stop:
            return
        reason = f"transactions in {partition} are ended up to offset {stable}"
        attempts.failed(BrokerError(ErrorCode.concurrent_transactions, reason))  # waits, or raises


def _last_stable_offset(cluster: Cluster, partition: TopicPartition) -> int:
    offsets = Admin(cluster).list_offsets([partition], OffsetSpec.LATEST, isolation=Isolation.READ_COMMITTED)
    return offsets[partition].offset


def _open_transactions(cluster: Cluster, prefix: str) -> list[str]:
    def build(version_of: VersionOf) -> messages.Message:
        # From version 2 on the broker filters by the pattern (KIP-1152); older ones list all open transactions.
        fields = {"state_filters": ["Ongoing"], "transactional_id_pattern": f"{re.escape(prefix)}.*"}
        kind = messages.request_type(_LIST_TRANSACTIONS, version_of(_LIST_TRANSACTIONS))
        message: messages.Message = messages.compose(kind, fields)
        return message

    deadline = cluster.deadline()
    brokers = cluster.metadata(deadline=deadline).brokers.values()
    ids: list[str] = []
    for answer in ask_each(cluster, brokers, build, deadline=deadline).values():
        if isinstance(answer, NetworkError):
            raise answer
        if answer.error_code is not ErrorCode.none:
            raise BrokerError(answer.error_code, "listing transactions")
        listed = (state.transactional_id for state in answer.transaction_states)
        ids += [transactional_id for transactional_id in listed if transactional_id.startswith(prefix)]
    return ids


def _token(share: TaskShare) -> PreparedTransaction:
    assert share.prepared is not None
    return share.prepared


def _listed(shares: Sequence[TaskShare]) -> str:
    first_few = ", ".join(f"task {share.task}" for share in shares[:5])
    return first_few + (f" and {len(shares) - 5} more" if len(shares) > 5 else "")


S = TypeVar("S")


def _each(items: Sequence[S], function: Callable[[S], T]) -> list[T]:
    """Call the function for every item, several at a time: each waits for its coordinator and for markers on disk."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(_AT_ONCE, len(items)), thread_name_prefix="ottla-end") as pool:
        return list(pool.map(function, items))
