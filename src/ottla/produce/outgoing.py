"""One batch on its way: being filled, sealed, sent (perhaps several times), decided.

It holds state and decides nothing: the lane says when it is sent and under which identity, and the sender sends it.
Deciding a batch settles the shipments whose rows are in it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from ottla.errors import OttlaError
from ottla.produce.delivery import Outcome, Placement, Shipment
from ottla.wire.batch import IS_TRANSACTIONAL, BatchHeader, pack_header
from ottla.wire.restamp import restamp

if TYPE_CHECKING:
    from ottla.produce.spool import Ticket
    from ottla.tally.values import Slice


class OpenBatch(Protocol):
    """What rows are appended to: a `wire.draft.Draft`, a slot, or the draft of a batch hook."""

    @property
    def count(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...


class ShipmentShare(msgspec.Struct, gc=False, frozen=True):
    """How many rows of a batch belong to a shipment. Invisible to the garbage collector, like placements."""

    shipment: Shipment
    rows: int


_SHARE_BYTES = 200
"""The memory that a share and its placement take."""
_SHIPMENT_BYTES = 550
"""The memory that a shipment takes until its rows have their outcome. Charged with its first share."""


class Identity(NamedTuple):
    """The identity under which a broker deduplicates a batch: it stores each only once."""

    producer_id: int
    epoch: int
    sequence: int


class Account:
    """The memory that batches take, and records that are in no batch yet. The owner passes it on to the budget."""

    __slots__ = ("held_bytes",)

    def __init__(self) -> None:
        self.held_bytes = 0

    def hold(self, batch: Outgoing, more_bytes: int) -> None:
        """Add to the bytes that the batch takes; negative for fewer."""
        batch.held_bytes += more_bytes
        self.held_bytes += more_bytes

    def release(self, batch: Outgoing) -> None:
        """Take all the batch's bytes off the account."""
        self.hold(batch, -batch.held_bytes)

    def resize(self, batch: Outgoing, size_bytes: int) -> None:
        """Hold this much for the records of the batch, and what its shipments take."""
        self.hold(batch, size_bytes + batch.shipments_bytes - batch.held_bytes)


class Outgoing:
    """A batch of one partition."""

    __slots__ = (
        "attempts",
        "count",
        "created",
        "deadline",
        "draft",
        "due",
        "error",
        "header",
        "held_bytes",
        "identity",
        "in_flight",
        "inherited",
        "is_doubtful",
        "is_expected",
        "opened",
        "outcomes",
        "parent",
        "part_outcomes",
        "partition",
        "parts_left",
        "raw_bytes",
        "records",
        "sent_at",
        "shipments",
        "shipments_bytes",
        "slices",
        "stored_identity",
        "ticket",
        "topic",
    )

    def __init__(self, topic: str, partition: int, *, opened: float, created: float) -> None:
        self.topic = topic
        self.partition = partition
        self.opened = opened
        """When its first record was handed in, by the monotonic clock."""
        self.created = created
        """The same in seconds since 1970."""
        self.due = opened
        """When to send it even if it is not full."""
        self.deadline = math.inf
        self.draft: OpenBatch | None = None
        self.header: BatchHeader | None = None
        self.records: memoryview | None = None
        """None while it is being filled, and while it is only on disk."""
        self.count = 0
        self.raw_bytes = 0
        self.held_bytes = 0
        """How much of the producer's memory is charged to it."""
        self.shipments: list[ShipmentShare] = []
        self.shipments_bytes = 0
        """The memory that these take."""
        self.identity: Identity | None = None
        self.attempts = 0
        self.in_flight = False
        """Whether it was sent and is neither answered nor lost."""
        self.sent_at: float | None = None
        """When it was first sent."""
        self.error: OttlaError | None = None
        """The last error."""
        self.outcomes: tuple[Outcome, ...] = ()
        self.parent: tuple[Outgoing, int] | None = None
        """Of a part: the whole, and where the part begins in it; -1 if a hook changed the number of records."""
        self.parts_left = 0
        self.part_outcomes: list[tuple[int, Outgoing, Outcome]] = []
        self.ticket: Ticket | None = None
        """Where it is on disk."""
        self.stored_identity: Identity | None = None
        self.inherited = False
        """Whether an earlier process left it in the spool."""
        self.is_doubtful = False
        """Whether it may be in the log although no answer said so."""
        self.slices: list[Slice] | None = None
        """Its records by time bucket, if they are counted and measured."""
        self.is_expected = False
        """Whether the tallies know that it is on its way."""

    @property
    def decided(self) -> bool:
        """Whether its records have their outcome."""
        return bool(self.outcomes)

    @property
    def age(self) -> float:
        """Seconds by which its records are older than the batch."""
        return 0.0 if self.header is None else max(0.0, self.created - self.header.max_timestamp / 1000)

    @property
    def whole(self) -> Outgoing:
        """The batch that shipments know: it was split into this part and others, or made into them by a hook."""
        batch = self
        while batch.parent is not None:
            batch = batch.parent[0]
        return batch

    @property
    def sealed(self) -> bool:
        """Whether it takes no more records."""
        return self.header is not None

    @property
    def size_bytes(self) -> int:
        """Its size on the wire."""
        return 0 if self.header is None else self.header.size_bytes

    def place(self, shipment: Shipment, rows: range | npt.NDArray[np.int64], first: int) -> None:
        """Note that it has these rows of the shipment, from record number `first` on."""
        self.shipments_bytes += _SHARE_BYTES if shipment.placements else _SHIPMENT_BYTES + _SHARE_BYTES
        shipment.placements.append(Placement(self, rows, first))
        self.shipments.append(ShipmentShare(shipment, len(rows)))

    def seal(self, header: BatchHeader, records: memoryview) -> None:
        """Complete the batch."""
        self.header, self.records = header, records
        self.count = header.count
        self.draft = None

    def stamp(self, identity: Identity | None, *, transactional: bool = False) -> None:
        """Set the identity it is sent under; None removes it."""
        self.identity = identity
        if identity is None:
            return
        assert self.header is not None
        attributes = self.header.attributes | IS_TRANSACTIONAL if transactional else None
        self.header = restamp(
            self.header,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=identity.sequence,
            attributes=attributes,
        )

    def parts(self) -> list[bytes | memoryview]:
        """The bytes of the batch, for a request."""
        assert self.header is not None
        assert self.records is not None
        return [pack_header(self.header), self.records]

    def decide(self, *outcomes: Outcome) -> None:
        """Set the outcomes of its records and settle their shipments. A second call does nothing."""
        if self.outcomes:
            return
        self.outcomes = outcomes
        self.records = None
        if self.parent is not None:
            self.parent[0]._part_decided(self, self.parent[1])
        shipments, self.shipments = self.shipments, []
        for share in shipments:
            share.shipment.settle(share.rows)

    def _part_decided(self, part: Outgoing, first: int) -> None:
        """Collect the outcome of a part. The last part decides the whole.

        If a hook changed the number of records, single records cannot be mapped to rows: all get a common outcome.
        """
        self.part_outcomes += [(first, part, outcome) for outcome in part.outcomes]
        self.parts_left -= 1
        if self.parts_left:
            return
        if all(first >= 0 for first, _, _ in self.part_outcomes):
            ordered = sorted(self.part_outcomes, key=lambda entry: (entry[0], entry[2].first))
            self.decide(*(outcome._replace(first=first + outcome.first) for first, _, outcome in ordered))
        else:
            self.decide(self._common_outcome())
        self.part_outcomes = []

    def _common_outcome(self) -> Outcome:
        """The outcome of records that a hook changed: a failure if any part failed, else where the first part is."""
        outcomes = [outcome for _, _, outcome in self.part_outcomes]
        failed = next((outcome for outcome in outcomes if outcome.error is not None), None)
        chosen = failed or min(outcomes, key=lambda outcome: outcome.base_offset)
        parts = {id(part): part.count for _, part, _ in self.part_outcomes}
        return chosen._replace(first=0, made=sum(parts.values()))

    def __repr__(self) -> str:
        state = "decided" if self.decided else "in flight" if self.in_flight else "sealed" if self.sealed else "open"
        return f"<Outgoing {self.topic}-{self.partition}, {self.count} records, {self.identity}, {state}>"
