"""Decides when batches go to disk: before they are sent, when they have waited long, on `persist`, and at the end.

The core's lanes and the time come in; writes to the spool go out (`spooling.py`), and the core gets what came of them.
It runs on the sender's thread and sends nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

from ottla.errors import KeptInSpool, NotDelivered, OttlaError
from ottla.net import Cluster
from ottla.produce.core import Core
from ottla.produce.delivery import Carrier, Shipment
from ottla.produce.failures import Failures
from ottla.produce.intake import Budget
from ottla.produce.lane import Lane
from ottla.produce.options import WhenFull
from ottla.produce.outgoing import Outgoing
from ottla.produce.spooling import Spooling


class SpoolWriter:
    """Writes the batches of one producer to its spool."""

    def __init__(self, spooling: Spooling, core: Core, *, cluster: Cluster, budget: Budget, failures: Failures) -> None:
        self._spooling = spooling
        self._core = core
        self._cluster = cluster
        self._budget = budget
        self._failures = failures

    def store(self, lane: Lane, batch: Outgoing, now: float) -> None:
        """Write a batch to disk before it is sent, and report the result to the core."""
        try:
            if self._spooling.may_send(batch, lane):
                self._core.stored(lane, batch)
            else:
                self._core.not_stored(lane, now)
        except NotDelivered as error:
            self._core.damaged(lane, batch, error)

    def done(self, batch: Outgoing, *, is_delivered: bool) -> None:
        """Remove a decided batch from the spool, and the wholes that are decided with it.

        A split batch is decided when its last part is; parts may have been split again.
        """
        decided = [batch]
        while decided[-1].parent is not None and decided[-1].parent[0].decided:
            decided.append(decided[-1].parent[0])
        self._spooling.done(decided, delivered=is_delivered)

    def write_all(self) -> OttlaError | None:
        """Write every batch to disk, durably. Returns the error if the disk refused one of them."""
        refusal = self._write_lanes(self._core.all_lanes_numbered())
        return refusal if self._spooling.make_durable() else refusal or self._spooling.error

    def missing(self, deliveries: Iterable[Sequence[Shipment]], refusal: OttlaError | None) -> list[OttlaError | None]:
        """Return why records of each delivery are neither on disk nor decided, None if they are.

        `refusal` is what `write_all` returned just now.
        """
        refused = set() if refusal is None else self._unwritten()
        return [self._waits_for(shipments, refused, refusal) for shipments in deliveries]

    def _waits_for(
        self, shipments: Sequence[Shipment], refused: Collection[Carrier], refusal: OttlaError | None
    ) -> OttlaError | None:
        """Return why records of these shipments are missing, None if they are not."""
        for shipment in shipments:
            if not shipment.is_placed:
                return self._core.topics.waiting_error(shipment.topic) or OttlaError(f"{shipment.topic} is not in use")
            if any(placement.carrier in refused for placement in shipment.placements):
                return refusal
        return None

    def _unwritten(self) -> set[Carrier]:
        """Return the batches, as shipments know them, of which something is not on disk."""
        lanes = self._core.topics.lanes
        return {batch.whole for _, lane in lanes for batch in lane.queue if not self._spooling.keeps(batch)}

    def write_overdue(self, now: float, carry_out: Callable[[float], None]) -> None:
        """Write to disk what has waited too long, and unload it if memory is short.

        `carry_out` carries out the core's effects: what is dropped first leaves no work behind for what follows.
        """
        spooling, budget = self._spooling, self._budget
        self._write_lanes(self._core.overdue_lanes(older_than=now - spooling.spool.after, now=now))
        carry_out(now)
        if spooling.is_full and spooling.spool.when_full is WhenFull.DROP_OLDEST:
            self._core.expiry.drop_stored(budget.used)
            carry_out(now)
        if budget.used > budget.buffering.bytes // 2:
            spooling.make_durable()
            for _, lane in self._core.topics.lanes:
                for batch in lane.queue:
                    if batch.ticket is not None and batch.stored_identity == batch.identity:
                        spooling.unload(batch)
        carry_out(now)

    def leave_behind(self, lane: Lane, batch: Outgoing) -> bool:
        """Whether the batch stays on disk for the next producer, now that this one ends."""
        spooling = self._spooling
        if not (batch.ticket or spooling.write(batch, lane) or spooling.is_stored_in_whole(batch)):
            return False
        reason = f"kept in the spool {spooling.path}, from which the next producer delivers them"
        tp, maybe_written = lane.tp, batch.attempts > 0 or batch.inherited
        kept = KeptInSpool(
            reason, topic=tp.topic, partition=tp.partition, records=batch.count, maybe_written=maybe_written
        )
        self._core.account.release(batch)
        self._failures.keep_in_spool(batch, kept)
        return True

    def partition_count(self, topic: str) -> int:
        """Return the partitions of a topic as the spool or earlier metadata remember them, 0 if neither does."""
        known = self._cluster.known.topics.get(topic)
        return self._spooling.partition_count(topic) or (0 if known is None else len(known.partitions))

    def _write_lanes(self, lanes: Iterable[tuple[Lane, list[Outgoing]]]) -> OttlaError | None:
        """Write batches to disk, those of each lane in order. Returns the first error if the disk refused one."""
        refusal: OttlaError | None = None
        for lane, batches in lanes:
            if not self._write_lane(lane, batches):
                refusal = refusal or self._spooling.error
        return refusal

    def _write_lane(self, lane: Lane, batches: Iterable[Outgoing]) -> bool:
        """Write the batches of a lane in order. Returns False at the first that the disk refuses."""
        for batch in batches:
            try:
                if not self._spooling.write(batch, lane):
                    return False
            except NotDelivered as error:
                self._core.damaged(lane, batch, error)
        return True
