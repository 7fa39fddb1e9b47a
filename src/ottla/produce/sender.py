"""The thread of a producer: takes what callers handed in, feeds it to the core, and carries out the core's effects.

Callers' chunks, answers, metadata and the time come in; requests, files, outcomes and events go out. It decides nothing
itself (`core.py` does) and never blocks: everything slow runs in the background of its loop (`net/background.py`).
Requests, slow questions and the spool have modules of their own: `requests.py`, `inquiries.py`, `spool_writer.py`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.config import LONGEST
from ottla.errors import NotDelivered, OttlaError
from ottla.events import Events, FlushAcknowledged
from ottla.net import Cluster
from ottla.net.deadline import Deadline
from ottla.net.loop import Loop
from ottla.net.refresh import Lookup, MetadataRefresh
from ottla.produce.broker_states import MOST_REQUESTS
from ottla.produce.compression import CompressionPool
from ottla.produce.core import Core
from ottla.produce.delivery import Outcome, Placement, Shipment
from ottla.produce.effects import Connect, Effect, Identify, ReadTail, Replace, Send, Store
from ottla.produce.failures import Failures
from ottla.produce.fast_path import FastPath, Offer
from ottla.produce.inquiries import Inquiries
from ottla.produce.intake import Budget, Handover, Intake
from ottla.produce.options import SettingsByTopic, Spool, WhenFull
from ottla.produce.outgoing import Outgoing, ShipmentShare
from ottla.produce.packing import RefuseRows, Settle, Topic
from ottla.produce.participants import LATE, Gate, Join
from ottla.produce.requests import UNSTARTED_SECONDS, Requests
from ottla.produce.topics import Forget, Recall, Refuse, Remember, Report
from ottla.produce.waiting import SENDER_THREAD
from ottla.wire.columns import NO_KEYS
from ottla.wire.partitioning import partition_of_key

if TYPE_CHECKING:
    from ottla.produce.counting import Counting
    from ottla.produce.spool import Store as SpoolStore
    from ottla.produce.spool_writer import SpoolWriter
    from ottla.produce.spooling import Spooling

_log = logging.getLogger(__name__)
_LANE = "produce"
"""The name of the producer's connections to brokers."""
_SWEEP_SECONDS = 0.1
"""How often deadlines are checked."""
_POLL_SECONDS = 0.005
"""How often `drop_all` checks whether anything is still in flight."""
_FORGET_SECONDS = 1.0
"""How often settled shipments behind an open one are dropped."""
_FEW_SHIPMENTS = 64
"""Up to this many shipments, settled ones in the middle may stay."""


@dataclass(frozen=True, slots=True)
class SenderContext:
    """What a sender works with."""

    cluster: Cluster
    intake: Intake
    budget: Budget
    failures: Failures
    events: Events
    topics: SettingsByTopic
    spool: tuple[Spool, SpoolStore] | None = None
    gate: Gate | None = None
    transactional_id: str | None = None
    counting: Counting | None = None


class Sender:
    """Drives the core of one producer. `start` starts its thread, `stop` ends it."""

    def __init__(self, context: SenderContext, loop: Loop[Send]) -> None:
        cluster = context.cluster
        self._context = context
        self._counting = context.counting
        self._cluster = cluster
        self._loop = loop
        refresh = MetadataRefresh(
            cluster.retry,
            loop.chance,
            longest=cluster.timeouts.total,
            refresh_seconds=cluster.timeouts.metadata_age,
        )
        self._compression = CompressionPool(loop.name)
        self._core = Core(
            refresh,
            retry=cluster.retry,
            chance=loop.chance,
            spooling=context.spool is not None,
            gate=context.gate,
            compress=self._compression.compress,
        )
        self._requests = Requests(
            self._core, loop, cluster, transactional_id=context.transactional_id, counting=context.counting
        )
        self._inquiries = Inquiries(self._core, loop.background, cluster, context.failures)
        self.spooling: Spooling | None = None
        self._spool: SpoolWriter | None = None
        if context.spool is not None:
            from ottla.produce.spool_writer import SpoolWriter
            from ottla.produce.spooling import Spooling

            self.spooling = Spooling(*context.spool, account=self._core.account, events=context.events)
            self._spool = SpoolWriter(
                self.spooling, self._core, cluster=cluster, budget=context.budget, failures=context.failures
            )
        self._shipments: deque[Shipment] = deque()
        """Shipments without an outcome, and some that have theirs."""
        self._charged_bytes = 0
        """How much of the core's account is charged to the budget."""
        self.fast_path: FastPath | None = None
        if context.spool is None and context.gate is None and context.counting is None:
            seconds = cluster.timeouts.request
            self.fast_path = FastPath(self._core, loop, context.intake, request_seconds=seconds)
        self._swept_at = 0.0
        self._forgot_at = 0.0
        self._stray_bytes = 0

    # Any thread

    def start(self) -> None:
        """Start sending. Calling it again is harmless, so it may be interrupted anywhere."""
        self._loop.start(self)

    @property
    def has_stopped(self) -> bool:
        """Whether the loop was started and has ended."""
        return self._loop.has_stopped

    def hurry(self) -> None:
        """Send everything now, without lingering. Returns at once."""
        self._loop.call(self._hurry)

    def send_everything(self, deadline: Deadline) -> list[Shipment]:
        """Send everything handed in so far without lingering. Returns the shipments that have no outcome yet."""

        def collect() -> list[Shipment]:
            self._hurry()
            return [shipment for shipment in self._shipments if shipment.unsettled]

        return self._loop.result_of(collect, deadline)

    def identify(self, producer_id: int, epoch: int) -> None:
        """Number batches under this identity from now on, in every partition."""
        self._loop.result_of(lambda: self._core.start_over(producer_id, epoch))

    def drop_all(self, error: OttlaError, *, deadline: Deadline | None = None) -> None:
        """Fail everything that was handed in. Blocks until nothing is in flight, or until the deadline."""

        def drop() -> int:
            self._hurry()
            self._fail_all(error)
            return self._core.in_flight

        limit = deadline or Deadline.after(LONGEST)
        while self._loop.result_of(drop) and self._loop.is_elsewhere and not limit.expired():
            time.sleep(_POLL_SECONDS)

    def fail_all(self, error: OttlaError) -> None:
        """Fail everything that is not in flight. Returns at once."""
        self._loop.call(lambda: self._fail_all(error))

    def persist(self, deadline: Deadline) -> OttlaError | None:
        """Write everything handed in so far to disk, unless it is acknowledged. Returns the error if that failed."""

        def write() -> OttlaError | None:
            self._hurry()
            assert self._spool is not None
            return self._spool.write_all() or self._core.topics.waiting_error()

        return self._loop.result_of(write, deadline)

    def persist_each(self, deliveries: Sequence[Sequence[Shipment]], deadline: Deadline) -> list[OttlaError | None]:
        """Write everything to disk. Returns why the shipments of each delivery are neither there nor decided.

        What the disk refuses is given up, where that concerns these deliveries alone.
        """

        def write() -> list[OttlaError | None]:
            self._hurry()
            assert self._spool is not None
            refusal = self._spool.write_all()
            if refusal is not None:
                asked = {shipment for shipments in deliveries for shipment in shipments}
                self._core.expiry.withdraw(asked, refusal)
            self._carry_out(time.monotonic())
            return self._spool.missing(deliveries, refusal)

        return self._loop.result_of(write, deadline)

    def stop(self, deadline: Deadline) -> None:
        """End the loop. What has no outcome by then is given up, or stays in the spool."""
        self._loop.stop(self, Deadline.after(deadline.remaining() + 5.0))
        self._cluster.close()
        self._loop.background.join(Deadline.after(5.0))

    def holding(self) -> str:
        """Describe what most of the memory waits for."""
        lanes = [
            (sum(batch.held_bytes for batch in list(lane.queue)), topic, lane)
            for topic, lane in self._core.topics.lanes
        ]
        waiting = [topic for topic in self._core.topics.all() if topic.waiting]
        error = self._core.topics.refresh.error
        if waiting and (error is not None or not lanes):
            return f"the partitions of topic {waiting[0].name} are not known: {error or 'no broker has answered yet'}"
        if not lanes:
            return "nothing is in flight at the moment: the buffer is small for what one call hands in"
        size, topic, lane = max(lanes, key=lambda entry: entry[0])
        link = self._loop.links.find(topic.leaders.get(lane.tp.partition, -1))
        failed = next((batch.error for batch in list(lane.queue) if batch.error is not None), None)
        led_by = "which has no leader" if link is None else f"led by {link}"
        last_error = "" if failed is None else f"; last error: {failed}"
        return f"{size:,} bytes of it wait for {lane.tp}, {led_by}, {lane.in_flight} batches in flight{last_error}"

    def topic(self, name: str) -> Topic | None:
        """The topic, or None if it is not in use."""
        return self._core.topics.get(name)

    # The loop

    def begin(self) -> None:
        """Take over what an earlier process left in the spool."""
        if self.spooling is None:
            return
        for stored in self.spooling.inherited():
            batch = self.spooling.adopt(stored)
            shipment = Shipment(stored.topic)
            shipment.count = shipment.unsettled = batch.count
            shipment.placements.append(Placement(batch, range(batch.count), 0))
            batch.shipments.append(ShipmentShare(shipment, batch.count))
            self._shipments.append(shipment)
            self._core.topics.inherit(self._topic(stored.topic), batch, floor=stored.floor_offset)

    def turn(self, now: float) -> float:
        """Do everything that can be done now. Returns when to be called again."""
        core = self._core
        core.is_reporting = self._context.events.active
        self._take_back_offer(now)
        requests = self._requests
        if requests.unstarted:
            requests.give_up_unstarted(now)
        requests.send_held()
        for answer in self._loop.answers():
            requests.handle_answer(answer, now)
            self._carry_out(now)
        for link in self._loop.links.changed():
            core.link_changed(link.broker.id, is_up=link.is_up, away_since=link.down_since, error=link.error)
        for result in self._loop.lookups.done():
            core.topics.metadata_result(result, now)
        next_due = self._take(now)
        self._carry_out(now)
        while core.dispatch(now):
            self._carry_out(now)
        core.topics.request_metadata(now)
        self._carry_out(now)
        if now >= self._swept_at + _SWEEP_SECONDS:
            self._sweep(now)
        if self.spooling is not None:
            self.spooling.settle()
        until = min(next_due, core.next_at(), self._loop.links.next_at(now))
        if requests.unstarted or requests.has_held:
            until = min(until, now + UNSTARTED_SECONDS)
        elif self.fast_path is not None:
            self.fast_path.offer = Offer()
        return until if core.is_idle else min(until, self._swept_at + _SWEEP_SECONDS)

    def recover(self) -> None:
        """Never called: only the loop's own thread, which is never interrupted, takes its turns."""
        raise AssertionError("only its own thread drives a sender's loop")

    def end(self, error: OttlaError | None) -> None:
        """Give every record an outcome: the loop has ended."""
        self._context.intake.shut(error or OttlaError("this producer was closed"))
        try:
            now = time.monotonic()
            self._take_back_offer(now)
            handovers, _ = self._context.intake.take(math.inf, lambda _: 0.0)
            reason = str(error or f"the producer was closed before they could be sent{self._unknown_reason()}")
            for handover in handovers:
                self._charged_bytes += handover.held_bytes
                if handover.columns.count:
                    self._refuse(handover, reason, error)
                else:
                    self._settle_empty(handover)
            self._core.topics.refuse_all(reason, error)
            kept = None if self._spool is None else self._spool.leave_behind
            self._core.expiry.end(str(error or self._closed_reason()), kept=kept)
            self._carry_out(now)
        except Exception:
            _log.exception("could not settle every delivery after the sender ended")
        self._compression.close()
        self._context.budget.wake()

    # Records come in

    def _take(self, now: float) -> float:
        """Take what callers handed in. Returns when the next chunk is due."""
        handovers, next_due = self._context.intake.take(now, self._linger)
        gate = self._context.gate
        for handover in handovers:
            self._drop_settled()
            self._shipments.append(handover.shipment)
            self._charged_bytes += handover.held_bytes
            self._topic(handover.topic)
            if not handover.columns.count:
                self._settle_empty(handover)
            elif gate is not None and handover.transaction not in (0, gate.number):
                self._refuse(handover, LATE)  # its transaction has ended since its caller checked that
            else:
                self._core.topics.handed_over(handover, now)
            self._carry_out(now)
        return next_due

    def _take_back_offer(self, now: float) -> None:
        """Withdraw the offer to callers.

        A record that a caller sent meanwhile is tracked like any other from now on.
        """
        fast_path = self.fast_path
        if fast_path is None or fast_path.offer is None:
            return
        offer, fast_path.offer = fast_path.offer, None
        record = None if offer.claim(None) else offer.claims[0]
        if record is None:
            return
        self._shipments.append(record.shipment)
        topic = record.topic
        if not record.has_key and topic.partitions is not None:
            topic.router.route(NO_KEYS, 1, partitions=topic.partitions)  # the record counts for the strategy
        self._requests.sent_by_caller(record, now)
        self._carry_out(now)

    def _refuse(self, handover: Handover, reason: str, cause: OttlaError | None = None) -> None:
        """Fail the rows of a handover that the core never gets. Its memory is given back with the effects."""
        refusal = NotDelivered(reason, topic=handover.topic, records=handover.columns.count, cause=cause)
        self._core.effects.append(Refuse(handover, refusal))

    def _settle_empty(self, handover: Handover) -> None:
        """Settle a handover without rows and give its memory back."""
        handover.shipment.unsettled = 0
        handover.shipment.settle(0)  # it is in no batch that would settle it
        self._charged_bytes -= handover.held_bytes
        self._context.budget.add(-handover.held_bytes)

    def _hurry(self) -> None:
        """Take everything from callers and send it without lingering."""
        now = time.monotonic()
        self._take_back_offer(now)
        self._context.intake.take_all()
        self._take(now)
        self._core.topics.send_now(now)

    def _linger(self, topic: str) -> float:
        """How long chunks of a topic may wait for more records, in seconds."""
        return self._context.topics.settings(topic).batching.linger

    def _topic(self, name: str) -> Topic:
        """The topic, taken into use if it is new."""
        topic = self._core.topics.get(name)
        if topic is None:
            topics = self._context.topics
            topic = Topic(name, topics.settings(name), router=topics.router(name))
            topic.bucket_ms = 0 if self._counting is None else self._counting.bucket_ms
            if topic.allows_fast_path:
                # Compile the kernel here, not in a caller: Ctrl-C while it compiles breaks it for the whole process.
                partition_of_key(b"", 1)
            self._core.topics.use(topic, time.monotonic(), self._cluster.remembered(frozenset([name])))
            self._carry_out(time.monotonic())
        return topic

    def _drop_settled(self) -> None:
        """Drop the first shipments that have their outcome."""
        while self._shipments and self._shipments[0].unsettled == 0:
            self._shipments.popleft()

    def _drop_all_settled(self, now: float) -> None:
        """Drop settled shipments behind one that waits long, if there are many."""
        if len(self._shipments) > _FEW_SHIPMENTS and now >= self._forgot_at + _FORGET_SECONDS:
            self._forgot_at = now
            self._shipments = deque(shipment for shipment in self._shipments if shipment.unsettled)

    # Effects

    def _carry_out(self, now: float) -> None:
        """Carry out all effects, including those that result from them, and update the budget."""
        effects = self._core.effects
        while effects:
            self._perform(effects.popleft(), now)
        held = self._core.account.held_bytes
        if held != self._charged_bytes:
            self._context.budget.add(held - self._charged_bytes)
            self._charged_bytes = held

    def _perform(self, effect: Effect, now: float) -> None:
        """Carry out one effect. The frequent kinds come first: this runs for every batch."""
        match effect:
            case Settle(batch, outcome):
                self._settle(batch, outcome, now)
            case Send():
                self._requests.send(effect)
            case Report(event):
                self._context.events.emit(event)
            case Store(lane, batch):
                assert self._spool is not None
                self._spool.store(lane, batch, now)
            case Connect(broker):
                link = self._loop.links.get(broker)
                if link is not None:
                    self._loop.links.connect(link, now)
            case Lookup():
                self._loop.lookups.run(effect)
            case Refuse(handover, error):
                self._context.failures.refuse(handover, error)
            case RefuseRows():
                self._context.failures.refuse_rows(effect)
            case _:
                self._perform_rare(effect, now)

    def _perform_rare(self, effect: Effect, now: float) -> None:
        """Carry out an effect of the kinds that are rare."""
        match effect:
            case Identify():
                self._inquiries.identify()
            case ReadTail():
                self._inquiries.read_tail(effect)
            case Join():
                self._inquiries.join(effect)
            case Replace(lane, whole, parts):
                if self._counting is not None:
                    self._counting.replaced(whole)
                if self.spooling is not None:
                    self.spooling.replace_by_parts(whole, parts, lane)
                whole.records = None
            case Recall():
                count = 0 if self._spool is None else self._spool.partition_count(effect.topic.name)
                self._core.topics.recalled(effect, count, now)
            case Remember(topic_name, partitions):
                if self.spooling is not None:
                    self.spooling.remember(topic_name, partitions)
            case Forget(topic_name, is_unknown):
                self._forget(topic_name, is_unknown=is_unknown)

    def _settle(self, batch: Outgoing, outcome: Outcome, now: float) -> None:
        """Settle a batch: it is in the log, or has failed, or a hook left nothing of it."""
        events = self._context.events
        if outcome.error is not None:
            self._context.failures.failed(batch, outcome.error)
        elif events.active and batch.header is not None:
            seconds = now - (now if batch.sent_at is None else batch.sent_at)
            sizes = batch.count, batch.size_bytes
            partition = batch.topic, batch.partition
            events.emit(FlushAcknowledged(*partition, *sizes, outcome.base_offset, seconds, batch.attempts))
        if self._counting is not None:
            self._counting.settled(batch, outcome)
        batch.decide(outcome)
        if self._spool is not None:
            self._spool.done(batch, is_delivered=outcome.error is None)

    def _forget(self, topic: str, *, is_unknown: bool) -> None:
        """Drop what is known of a topic: its router and metadata, and in the spool if it does not exist."""
        if self.spooling is not None and is_unknown:
            self.spooling.forget(topic)
        if self._core.topics.get(topic) is None:
            self._context.topics.forget(topic)
            self._cluster.forget([topic])

    def _fail_all(self, error: OttlaError) -> None:
        """Fail everything that is not in flight, including what a caller has just sent."""
        now = time.monotonic()
        self._take_back_offer(now)
        self._core.expiry.fail_all(error)
        self._carry_out(now)

    # Time

    def _sweep(self, now: float) -> None:
        """Do what depends on time only: deadlines, idle topics, brokers that are away, the spool, full buffers."""
        self._swept_at = now
        core, budget = self._core, self._context.budget
        self._drop_settled()
        self._drop_all_settled(now)
        core.forget_idle(now, seconds=self._cluster.timeouts.metadata_age)
        for link in list(self._loop.links):
            # `dispatch` connects only to brokers that have batches, and an away broker may have none.
            if link.is_away and core.topics.leads(link.broker.id):
                self._loop.links.connect(link, now)
        if self._spool is not None:
            self._spool.write_overdue(now, self._carry_out)
        core.expiry.expire(now)
        self._carry_out(now)
        self._correct_budget()
        if budget.buffering.when_full is WhenFull.DROP_OLDEST and budget.full:
            core.expiry.drop_unsent(budget.used - budget.buffering.bytes // 2)
            self._carry_out(now)

    def _correct_budget(self) -> None:
        """Reset the budget if nothing is left that uses memory: an interrupted call may not have counted its bytes."""
        budget = self._context.budget
        stray = budget.used if self._core.is_idle and self._context.intake.idle() else 0
        if stray and stray == self._stray_bytes:  # twice in a row, so no call is about to count it
            budget.add(-stray)
            stray = 0
        self._stray_bytes = stray

    def _unknown_reason(self) -> str:
        """Why the partitions of a topic never became known."""
        unseen = "" if self.spooling is None else ", or kept: this spool has never seen the topic"
        error = self._core.topics.refresh.error
        return unseen if error is None else f"{unseen}; {error}"

    def _closed_reason(self) -> str:
        """Why batches are given up when the producer is closed."""
        error = None if self.spooling is None else self.spooling.error
        return "the producer was closed" + ("" if error is None else f" and could not keep them: {error}")


def new_loop(cluster: Cluster, *, name: str, events: Events) -> Loop[Send]:
    """Create the loop that a sender runs on."""
    thread = f"{SENDER_THREAD}-{name}"
    return Loop(cluster, channel=_LANE, name=thread, most_requests=MOST_REQUESTS, events=events)
