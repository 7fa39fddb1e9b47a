"""Which partitions take part in the open transaction. A batch leaves only after the coordinator has added its
partition.

Partitions that want to send come in; those to add go out as `Join`, and the coordinator's answers come back. Pure; used
by the sender's thread. `Transactions` sets `sending` and reads `announced`.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.produce.coordinator import PreparedTransaction

LATE = "sent while its transaction was being ended by another thread"
"""The reason for records that belong to no transaction."""


class Join(NamedTuple):
    """Ask the coordinator to add these partitions to transaction `number`."""

    number: int
    identity: PreparedTransaction
    partitions: frozenset[TopicPartition]


class Gate:
    """The partitions of the open transaction."""

    def __init__(self) -> None:
        self.sending = False
        """Whether batches may leave."""
        self.announced = False
        """Whether the coordinator may know of this transaction."""
        self.joining = False
        """Whether a request to add partitions is in flight."""
        self.refusal: OttlaError | None = None
        """Why the coordinator refused to add a partition."""
        self.over: OttlaError | None = None
        """Why nothing will ever be sent again, including what callers hand in before they learn of it."""
        self._number = 0
        self._identity: PreparedTransaction | None = None
        self._added: set[TopicPartition] = set()
        self._requested: set[TopicPartition] = set()

    @property
    def number(self) -> int:
        """The number of the transaction that was begun last."""
        return self._number

    def begin(self, number: int, identity: PreparedTransaction) -> None:
        """Start the next transaction: no partition takes part yet."""
        self._number, self._identity = number, identity
        self._added, self._requested = set(), set()
        self.refusal = None
        self.announced = False
        self.sending = True

    def lets_through(self, tp: TopicPartition) -> bool:
        """Whether the partition takes part. If not, it is added with the next `Join`."""
        if not self.sending:
            return False
        if tp in self._added:
            return True
        self._requested.add(tp)
        return False

    def next_join(self) -> Join | None:
        """The next request to the coordinator, or None. `joined` or `refused` must follow."""
        if not self._requested or self.joining or not self.sending or self.refusal is not None:
            return None
        assert self._identity is not None
        self.joining = self.announced = True
        return Join(self._number, self._identity, frozenset(self._requested))

    def joined(self, join: Join) -> None:
        """Record that the partitions take part."""
        self.joining = False
        if join.number == self._number:
            self._added |= join.partitions
            self._requested -= join.partitions

    def refused(self, join: Join, error: OttlaError) -> None:
        """Record that the coordinator refused: nothing more is sent in this transaction."""
        self.joining = False
        if join.number == self._number:
            self.refusal = error
