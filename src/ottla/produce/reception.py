"""Where what callers handed in is received: topics, their records on the way into batches, and those that still wait.

Handovers come in from the intake; rows go into the lanes of their partitions, wait until the partitions of their topic
are known, or are refused. Used by the sender's thread; it asks nobody and sends nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from ottla.errors import BrokerError, ErrorCode, NotDelivered, OttlaError
from ottla.events import Dropped
from ottla.produce.delivery import Placement, Refusal, Shipment
from ottla.produce.intake import Handover
from ottla.produce.keeper import Keeper
from ottla.produce.lane import Lane
from ottla.produce.lanes import Lanes
from ottla.produce.packing import Late, Topic, pack
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
        return any(topic.waiting or topic.late for topic in self.topics.values())

    def why_waiting(self) -> OttlaError | None:
        """What the first of them waits for; None when none does."""
        topic = next((topic for topic in self.topics.values() if topic.waiting or topic.late), None)
        if topic is None:
            return None
        if topic.waiting:
            return OttlaError(f"the partitions of topic {topic.name} were never seen: {self.scout.error}")
        return OttlaError(f"{self._missing(topic, topic.late[0])}: {self.scout.error or 'it is being looked up'}")

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
        self._hurried |= {topic.name for topic in self.topics.values() if topic.waiting or topic.late}

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
            topic.used_at = time.monotonic()
            self.scout.remember(topic)
            if topic.partitions is None and self.scout.is_in_the_dark:
                self.without_metadata(topic)
        return topic

    def without_metadata(self, topic: Topic) -> None:
        """No broker can be asked: the spool may remember how many partitions the topic had. What is routed by that
        stays where it is when brokers are back; from then on metadata decides."""
        keeper = self._parts.keeper
        if topic.partitions is not None or keeper is None:
            return
        seen = self._parts.cluster.known.topics.get(topic.name)
        count = keeper.partition_count(topic.name) or (0 if seen is None else len(seen.partitions))
        if count:
            topic.partitions = Partitions(count)
            self._pack_waiting(topic)

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

    def known(self, topic: Topic, asked_at: float) -> None:
        """The partitions of a topic are what was just asked for at `asked_at`: what waited for that goes on."""
        assert topic.partitions is not None
        if self._parts.keeper is not None:
            self._parts.keeper.remember(topic.name, topic.partitions.count)
        late, topic.late = topic.late, deque()
        for handover, rows, since in late:
            self._pack_rows(topic, handover, rows, since=since, is_final=since <= asked_at)
        self._pack_waiting(topic)

    def _pack_waiting(self, topic: Topic) -> None:
        while topic.waiting:
            self._pack(topic, topic.waiting.popleft())
        if topic.name in self._hurried:
            self._hurried.discard(topic.name)
            _make_due(topic.lanes.values(), time.monotonic())

    def no_such_topic(self, topic: Topic, error: OttlaError) -> None:
        """The topic does not exist: what waits for it is refused."""
        self._refuse_waiting(topic, error)
        unknown = isinstance(error, BrokerError) and error.code is ErrorCode.unknown_topic_or_partition
        if self._parts.keeper is not None and unknown:
            self._parts.keeper.forget(topic.name)
        if topic.is_idle:  # else there are batches of a program that ended: it may come back for them
            self._forget(topic)

    def forget_idle(self, now: float, *, seconds: float) -> None:
        """Topics to which nothing was sent for so long are not asked for any more, and take no memory.

        Not of a transactional producer: the numbers of its lanes are the coordinator's, and go on.
        """
        if self._lanes.transactional:
            return
        for topic in list(self.topics.values()):
            if now - topic.used_at > seconds and topic.is_idle and self._lanes.forget(topic.lanes.values()):
                self._forget(topic)

    def _forget(self, topic: Topic) -> None:
        del self.topics[topic.name]
        self._hurried.discard(topic.name)
        self._parts.forget_router(topic.name)
        self._parts.cluster.forget([topic.name])

    def refuse_all(self, error: OttlaError) -> None:
        """Nothing that waits will be delivered."""
        for topic in self.topics.values():
            self._refuse_waiting(topic, error)

    def refuse(self, handover: Handover, error: OttlaError) -> None:
        """None of the rows that are in no batch yet gets into one."""
        self._parts.budget.add(-handover.held_bytes)
        shipment = handover.shipment
        count = handover.columns.count
        is_open = np.ones(count, np.bool_)
        for placement in shipment.placements:
            is_open[np.asarray(placement.rows)] = False
        rows = np.flatnonzero(is_open)
        if len(rows) == count:
            shipment.unsettled = count
        if len(rows):
            shipment.placements.append(Placement(Refusal(handover.topic, -1, error), rows, 0))
            self._parts.outcomes.count(len(rows), error)
            shipment.settle(len(rows))

    def expire(self, now: float) -> None:
        """Refuses what has waited for its partitions for too long."""
        for topic in list(self.topics.values()):
            limit = topic.settings.delivery_timeout
            while topic.waiting and topic.waiting[0].opened + limit <= now:
                reason = f"the partitions of the topic were not known within {limit:g} s: {self.scout.error}"
                self._refuse_first(topic, reason)
            while topic.late and topic.late[0].handover.opened + limit <= now:
                late = topic.late.popleft()
                reason = f"{self._missing(topic, late)}, and that could not be asked within {limit:g} s"
                error = NotDelivered(reason, topic=topic.name, records=len(late.rows), cause=self.scout.error)
                self.refuse(late.handover, error)

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
        topic.used_at = time.monotonic()
        if topic.partitions is None:
            topic.waiting.append(handover)
            self.scout.doubt(topic.name)
        else:
            self._pack(topic, handover)

    def _pack(self, topic: Topic, handover: Handover) -> None:
        self._pack_rows(topic, handover, None, since=time.monotonic(), is_final=False)

    def _pack_rows(
        self, topic: Topic, handover: Handover, rows: npt.NDArray[np.int64] | None, *, since: float, is_final: bool
    ) -> None:
        """Unless `is_final`, rows for a partition that is not known wait for a look at the metadata: it may be new."""
        try:
            late = pack(
                topic,
                handover,
                held=self._parts.outcomes.hold,
                touched=lambda lane: self._lanes.activate(topic, lane),
                rows=rows,
                refuse=is_final,
            )
        except OttlaError as error:
            self.refuse(handover, error)
            return
        if len(late) and not is_final:
            topic.late.append(Late(handover, late, since))
            self.scout.doubt(topic.name)
        else:
            self._parts.budget.add(-handover.held_bytes)

    @staticmethod
    def _missing(topic: Topic, late: Late) -> str:
        assert topic.partitions is not None
        assert late.handover.partitions is not None
        wanted, last = int(late.handover.partitions[late.rows[0]]), topic.partitions.count - 1
        return f"topic {topic.name} had no partition {wanted} when it was last seen, but partitions 0 to {last}"

    def _refuse_first(self, topic: Topic, reason: str) -> None:
        handover = topic.waiting.popleft()
        count, cause = handover.columns.count, self.scout.error
        self.refuse(handover, NotDelivered(reason, topic=topic.name, records=count, cause=cause))

    def _refuse_waiting(self, topic: Topic, error: OttlaError) -> None:
        while topic.waiting:
            self.refuse(topic.waiting.popleft(), error)
        while topic.late:
            self.refuse(topic.late.popleft().handover, error)

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
