"""Which partitions take part in the transaction that is open: a batch leaves only after the coordinator knows its own.

Lanes that want to send come in, requests to the coordinator and its refusal go out. Used by the sender's thread; who
begins or ends a transaction sets `sending` and looks at `told`.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.errors import OttlaError
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.produce import coordinator
from ottla.produce.coordinator import PreparedTransaction
from ottla.produce.lane import Lane
from ottla.produce.sender import Sender

ERRAND = "transaction"


class Participants:
    """The partitions of one transaction after the other. `refused` hears why one may not take part."""

    def __init__(self, cluster: Cluster, sender: Sender, *, refused: Callable[[OttlaError], None]) -> None:
        self._cluster = cluster
        self._sender = sender
        self._refused = refused
        self.sending = False
        """Whether batches may leave."""
        self.told = False
        """Whether the coordinator may have heard of this transaction."""
        self._number = 0
        self._who: PreparedTransaction | None = None
        self._added: set[TopicPartition] = set()
        self._wanted: set[TopicPartition] = set()
        self._refusal: OttlaError | None = None

    def begin(self, number: int, who: PreparedTransaction) -> None:
        """The next transaction: none takes part yet."""
        self._number, self._who = number, who
        self._added, self._wanted = set(), set()
        self._refusal = None
        self.told = False
        self.sending = True

    @property
    def joining(self) -> bool:
        """Whether a request is on its way that makes partitions take part."""
        return self._sender.errands.busy(ERRAND)

    def may_send(self, lane: Lane) -> bool:
        """Whether the coordinator knows the partition; asks it to, if not."""
        if not self.sending:
            return False
        if lane.at in self._added:
            return True
        if self._refusal is not None:
            # Also for what was handed in after the refusal. Not now: the lanes are being gone through.
            self._sender.ask(self._drop_refused)
            return False
        assert self._who is not None
        self._wanted.add(lane.at)
        asked, who, number = set(self._wanted), self._who, self._number
        self.told = True
        self._sender.errands.run(
            ERRAND,
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
            self._refused(error)
            self._drop_refused()

    def _drop_refused(self) -> None:
        if self._refusal is not None:
            self._sender.fail_all(self._refusal)
