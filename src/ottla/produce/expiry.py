"""Gives batches up: past their deadline, dropped to make room, failed with all others, or left at the end.

The lanes and the time come in; `Settle` and `Report` effects go out. The log is not looked at: a batch that was sent
and is given up may have been written, and its error says so. Pure, like the rest of the core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection

from ottla.errors import Fenced, NotDelivered, OttlaError
from ottla.events import Dropped
from ottla.produce.broker_states import BrokerStates
from ottla.produce.delivery import Shipment
from ottla.produce.effects import Effect
from ottla.produce.lane import Lane
from ottla.produce.outgoing import Outgoing
from ottla.produce.packing import Topic
from ottla.produce.topics import Report, Topics

_OPEN_SECONDS = 1.0
"""How long a batch that cannot be sent stays open. All its records have the deadline of the first one."""


class Expiry:
    """Gives up what is not delivered. Part of the core, whose effects it appends to."""

    def __init__(self, topics: Topics, brokers: BrokerStates, effects: deque[Effect]) -> None:
        self._topics = topics
        self._brokers = brokers
        self._effects = effects

    def expire(self, now: float) -> None:
        """Seal batches that are overdue, and give up those past their deadline."""
        self._brokers.now = now
        for topic, lane in self._topics.sealed_lanes():
            limit = topic.settings.delivery_timeout
            if lane.open is not None and now >= min(lane.open.deadline, lane.open.due + min(_OPEN_SECONDS, limit / 10)):
                self._topics.seal(topic, lane)
            for batch in [batch for batch in lane.queue if batch.deadline <= now]:
                self._give_up(topic, lane, batch, f"not acknowledged within {limit:g} s")
        self._topics.expire(now)

    def fail_all(self, error: OttlaError) -> None:
        """Fail everything that is not in flight."""
        self._topics.fail_waiting(error)
        reason = getattr(error, "reason", str(error))
        kind = Fenced if isinstance(error, Fenced) else NotDelivered
        for topic, lane in self._topics.sealed_lanes():
            self._topics.seal(topic, lane)
            for batch in [batch for batch in lane.queue if not batch.in_flight]:
                lane.given_up(batch)
                failed = not_delivered(batch, reason, kind=kind, maybe_written=batch.attempts > 0, cause=error)
                self._topics.fail(batch, failed)

    def withdraw(self, shipments: Collection[Shipment], error: OttlaError) -> None:
        """Give up batches that have records of these shipments alone, are not on disk and were never sent."""
        for _, lane in self._topics.sealed_lanes():
            for batch in list(lane.queue):
                is_ours = bool(batch.shipments) and all(share.shipment in shipments for share in batch.shipments)
                if is_ours and not (batch.ticket or batch.attempts or batch.in_flight or batch.parent):
                    lane.given_up(batch)
                    reason = "the spool did not take it"
                    self._topics.fail(batch, not_delivered(batch, reason, maybe_written=False, cause=error))

    def end(self, reason: str, *, kept: Callable[[Lane, Outgoing], bool] | None = None) -> None:
        """End the producer.

        Batches for which `kept` returns true stay on disk for the next producer; the rest is given up.
        """
        for topic, lane in self._topics.sealed_lanes():
            self._topics.seal(topic, lane)
            for batch in list(lane.queue):
                if kept is not None and kept(lane, batch):
                    lane.given_up(batch)
                else:
                    self._give_up(topic, lane, batch, reason)

    def _give_up(self, topic: Topic, lane: Lane, batch: Outgoing, reason: str) -> None:
        """Fail a batch for good, with what is known of its broker."""
        leader = topic.leaders.get(lane.tp.partition, -1)
        state = self._brokers.find(leader, self._topics.brokers)
        cause = batch.error or (None if state is None else state.error)
        last_error = f"; last error: {cause}" if cause is not None else ""
        broker = "no leader is known" if state is None else self._brokers.describe(leader, state, self._topics.brokers)
        lane.given_up(batch)
        message = f"{reason}, {batch.attempts} attempts; {broker}{last_error}"
        maybe_written = batch.attempts > 0 or batch.inherited
        self._topics.fail(batch, not_delivered(batch, message, maybe_written=maybe_written, cause=cause))

    def drop_unsent(self, size_bytes: int) -> None:
        """Drop the oldest records that were never sent, until this many bytes of memory are free."""

        def freed_by(batch: Outgoing) -> int:
            return batch.held_bytes if not batch.attempts and not batch.inherited else 0

        self._topics.drop_waiting(self._drop(size_bytes, freed_by))

    def drop_stored(self, size_bytes: int) -> None:
        """Drop the oldest batches on disk that are not in flight, until this many bytes of disk are free."""
        self._drop(size_bytes, lambda batch: batch.size_bytes if batch.ticket and not batch.in_flight else 0)

    def _drop(self, size_bytes: int, freed_by: Callable[[Outgoing], int]) -> int:
        """Drop the oldest batches first, until `size_bytes` are free. Returns how many bytes are still missing.

        `freed_by` returns what dropping a batch frees, or 0 if the batch must stay.
        """
        candidates = [
            (batch.created, number, topic, lane, batch)
            for number, (topic, lane) in enumerate(self._topics.sealed_lanes())
            for batch in lane.queue
            if freed_by(batch)
        ]
        for _, _, topic, lane, batch in sorted(candidates, key=lambda entry: entry[:2]):
            if size_bytes <= 0:
                break
            size_bytes -= freed_by(batch)
            self._effects.append(Report(_dropped(lane, batch)))
            self._give_up(topic, lane, batch, "dropped to make room: these were the oldest records")
        return size_bytes


def _dropped(lane: Lane, batch: Outgoing) -> Dropped:
    """The event for a batch that is dropped to make room. Its times are in seconds."""
    assert batch.header is not None
    times = batch.header.base_timestamp / 1000, batch.header.max_timestamp / 1000
    return Dropped(*lane.tp, batch.count, batch.size_bytes, *times, "dropped to make room")


def not_delivered(
    batch: Outgoing,
    reason: str,
    *,
    kind: type[NotDelivered] = NotDelivered,
    maybe_written: bool,
    cause: OttlaError | None,
) -> NotDelivered:
    """The error for a batch, with its topic, partition and number of records."""
    return kind(
        reason,
        topic=batch.topic,
        partition=batch.partition,
        records=batch.count,
        maybe_written=maybe_written,
        cause=cause,
    )
