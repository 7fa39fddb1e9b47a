"""Where what callers handed in is received: topics, their records on the way into batches, and those that still wait.

Handovers come in from the intake; rows go into the lanes of their partitions, wait until the partitions of their topic
are known, or are refused. Used by the sender's thread; it asks nobody and sends nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

from ottla.errors import NotDelivered, OttlaError
from ottla.events import Dropped
from ottla.produce.delivery import Placement, Refusal, Shipment
from ottla.produce.intake import Handover
from ottla.produce.keeper import Keeper
from ottla.produce.lane import Lane
from ottla.produce.lanes import Lanes
from ottla.produce.packing import Topic, pack
from ottla.produce.parts import Parts
from ottla.produce.route import Partitions
from ottla.produce.scout import Scout

_FORGET_SECONDS = 1.0
_FEW_SHIPMENTS = 64


class Reception:
    """All topics in use, and all shipments without an outcome."""

    def __init__(self, parts: Parts, lanes: Lanes) -> None:
        self._parts = parts
        self._lanes = lanes
        self.topics: dict[str, Topic] = {}
        self.scout: Scout
        """Set once by the owner: the scout keeps the topics up to date, and is asked when one is new."""
        self.settled: Callable[[Shipment], None] | None = None
        """Hears of each shipment that has its outcome, sooner or later."""
        self._shipments: deque[Shipment] = deque()
        self._forgot_at = 0.0
        self._hurried: set[str] = set()
        """Topics of which something is to be sent as soon as their partitions are known."""

    @property
    def waiting(self) -> bool:
        """Whether records wait for the partitions of their topic to be known."""
        return any(topic.waiting for topic in self.topics.values())

    def unsettled(self) -> list[Shipment]:
        """What has no outcome yet."""
        return [shipment for shipment in self._shipments if shipment.unsettled]

    def take(self, now: float) -> float:
        """Receives what is due; when the next is."""
        handed, next_due = self._parts.intake.take(now, self._linger)
        for handover in handed:
            self.let_go()
            self._shipments.append(handover.shipment)
            self._accept(handover)
        return next_due

    def hurry(self) -> None:
        """Everything that waits for company goes now."""
        self._parts.intake.take_all()
        now = time.monotonic()
        self.take(now)
        _make_due((lane for _, lane in self._lanes), now)
        self._hurried |= {topic.name for topic in self.topics.values() if topic.waiting}

    def let_go(self) -> None:
        """Forgets the shipments that have their outcome."""
        while self._shipments and self._shipments[0].unsettled == 0:
            self._tell(self._shipments.popleft())

    def forget_settled(self, now: float) -> None:
        """The same behind a shipment that waits long, when there are many."""
        if len(self._shipments) <= _FEW_SHIPMENTS or now < self._forgot_at + _FORGET_SECONDS:
            return
        self._forgot_at = now
        done = [shipment for shipment in self._shipments if shipment.unsettled == 0]
        self._shipments = deque(shipment for shipment in self._shipments if shipment.unsettled)
        for shipment in done:
            self._tell(shipment)

    def topic(self, name: str) -> Topic:
        """The topic, in use from now on."""
        topic = self.topics.get(name)
        if topic is None:
            parts = self._parts
            topic = self.topics[name] = Topic(
                name,
                parts.settings_of(name),
                router=parts.router_of(name),
                failed=parts.outcomes.failed,
                refused=parts.outcomes.count,
            )
            self.scout.remember(topic)
            count = 0 if parts.keeper is None else parts.keeper.partition_count(name)
            if topic.partitions is None and count:
                topic.partitions = Partitions(count)
                self.scout.doubt(name)
        return topic

    def inherit(self, keeper: Keeper) -> None:
        """The batches that a program which ended has left: they come before anything new in their partitions."""
        for stored in keeper.inherited():
            batch = keeper.adopt(stored)
            shipment = Shipment(stored.topic)
            shipment.count = shipment.unsettled = batch.count
            shipment.placements.append(Placement(batch, range(batch.count), 0))
            batch.shipments.append((shipment, batch.count))
            self._shipments.append(shipment)
            topic = self.topic(stored.topic)
            lane = topic.lane(stored.partition)
            lane.floor = stored.floor_offset if not lane.line else lane.floor
            lane.add(batch)
            lane.must_check = True
            self._lanes.activate(topic, lane)

    def known(self, topic: Topic) -> None:
        """The partitions of a topic are known: what waited for that goes on."""
        assert topic.partitions is not None
        if self._parts.keeper is not None:
            self._parts.keeper.remember(topic.name, topic.partitions.count)
        while topic.waiting:
            self._pack(topic, topic.waiting.popleft())
        if topic.name in self._hurried:
            self._hurried.discard(topic.name)
            _make_due(topic.lanes.values(), time.monotonic())

    def no_such_topic(self, topic: Topic, error: OttlaError) -> None:
        """The topic does not exist: what waits for it is refused."""
        self._refuse_waiting(topic, error)
        del self.topics[topic.name]

    def refuse_all(self, error: OttlaError) -> None:
        """Nothing that waits will be delivered."""
        for topic in self.topics.values():
            self._refuse_waiting(topic, error)

    def refuse(self, handover: Handover, error: OttlaError) -> None:
        """None of these rows gets into a batch."""
        self._parts.budget.add(-handover.held_bytes)
        shipment = handover.shipment
        placed = sum(len(placement.rows) for placement in shipment.placements)
        count = handover.columns.count
        if not placed:
            shipment.unsettled = count
            shipment.placements.append(Placement(Refusal(handover.topic, -1, error), range(count), 0))
            self._parts.outcomes.count(count, error)
            shipment.settle(count)

    def expire(self, now: float) -> None:
        """Refuses what has waited for its partitions for too long."""
        for topic in list(self.topics.values()):
            limit = topic.settings.delivery_timeout
            while topic.waiting and topic.waiting[0].opened + limit <= now:
                reason = f"the partitions of the topic were not known within {limit:g} s: {self.scout.error}"
                self._refuse_first(topic, reason)

    def drop_waiting(self) -> None:
        """Drops the oldest that wait for their partitions, until there is room."""
        for topic in self.topics.values():
            while topic.waiting and self._parts.budget.full:
                first = topic.waiting[0]
                reason = f"dropped to make room: the partitions of the topic are not known: {self.scout.error}"
                dropped = Dropped(
                    topic.name, -1, first.columns.count, first.held_bytes, first.created, first.created, reason
                )
                self._parts.events.emit(dropped)
                self._refuse_first(topic, reason)

    def _accept(self, handover: Handover) -> None:
        topic = self.topic(handover.topic)
        if topic.partitions is None:
            topic.waiting.append(handover)
            self.scout.doubt(topic.name)
        else:
            self._pack(topic, handover)

    def _pack(self, topic: Topic, handover: Handover) -> None:
        try:
            pack(
                topic,
                handover,
                held=self._parts.outcomes.hold,
                touched=lambda lane: self._lanes.activate(topic, lane),
            )
        except OttlaError as error:
            self.refuse(handover, error)
        else:
            self._parts.budget.add(-handover.held_bytes)

    def _refuse_first(self, topic: Topic, reason: str) -> None:
        handover = topic.waiting.popleft()
        count, cause = handover.columns.count, self.scout.error
        self.refuse(handover, NotDelivered(reason, topic=topic.name, records=count, cause=cause))

    def _refuse_waiting(self, topic: Topic, error: OttlaError) -> None:
        while topic.waiting:
            self.refuse(topic.waiting.popleft(), error)

    def _linger(self, topic: str) -> float:
        known = self.topics.get(topic)
        settings = known.settings if known is not None else self._parts.settings_of(topic)
        return settings.batching.linger

    def _tell(self, shipment: Shipment) -> None:
        if self.settled is not None:
            self.settled(shipment)


def _make_due(lanes: Iterable[Lane], now: float) -> None:
    for lane in lanes:
        if lane.open is not None:
            lane.open.due = min(lane.open.due, now)
