"""Which partitions take part in the transaction that is open: a batch leaves only after the coordinator knows its own.

Partitions that want to send come in, those that the coordinator has to be asked for go out, and its answers come back.
Pure; used by the sender's thread. Whoever begins or ends a transaction sets `sending` and looks at `told`.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.produce.coordinator import PreparedTransaction


class Join(NamedTuple):
    """The coordinator is to be asked to let these partitions take part in transaction `number`."""

    number: int
    who: PreparedTransaction
    partitions: frozenset[TopicPartition]


class Gate:
    """The partitions of one transaction after the other."""

    def __init__(self) -> None:
        self.sending = False
        """Whether batches may leave."""
        self.told = False
        """Whether the coordinator may have heard of this transaction."""
        self.joining = False
        """Whether a request is on its way that makes partitions take part."""
        self.refusal: OttlaError | None = None
        """Why the coordinator let one not take part."""
        self.over: OttlaError | None = None
        """Why nothing will ever be sent again, nor what is handed in by callers who have not heard of it."""
        self._number = 0
        self._who: PreparedTransaction | None = None
        self._added: set[TopicPartition] = set()
        self._wanted: set[TopicPartition] = set()

    def begin(self, number: int, who: PreparedTransaction) -> None:
        """The next transaction: none takes part yet."""
        self._number, self._who = number, who
        self._added, self._wanted = set(), set()
        self.refusal = None
        self.told = False
        self.sending = True

    def lets_through(self, at: TopicPartition) -> bool:
        """Whether the coordinator knows the partition; if not, it has to be asked."""
        if not self.sending:
            return False
        if at in self._added:
            return True
        self._wanted.add(at)
        return False

    def next_join(self) -> Join | None:
        """What to ask the coordinator now; `joined` or `refused` must follow."""
        if not self._wanted or self.joining or not self.sending or self.refusal is not None:
            return None
        assert self._who is not None
        self.joining = self.told = True
        return Join(self._number, self._who, frozenset(self._wanted))

    def joined(self, join: Join) -> None:
        """They take part."""
        self.joining = False
        if join.number == self._number:
            self._added |= join.partitions
            self._wanted -= join.partitions

    def refused(self, join: Join, error: OttlaError) -> None:
        """They do not: nothing more is sent in this transaction."""
        self.joining = False
        if join.number == self._number:
            self.refusal = error
