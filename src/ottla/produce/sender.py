"""The one thread of a producer: takes what callers handed in, has the core decide, and carries out its effects.

Callers' chunks, answers, metadata and the time come in; requests, files, outcomes and events go out. It decides nothing
itself (`core.py` does) and blocks on nothing: whatever takes long is an errand beside its loop.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from ottla.config import LONGEST
from ottla.errors import ConnectionLost, KeptInSpool, NotDelivered, OttlaError, WireError
from ottla.events import Events, FlushAcknowledged
from ottla.model import TopicPartition
from ottla.net import Cluster
from ottla.net.connection import Buffer
from ottla.net.deadline import Deadline
from ottla.net.loop import Answer, Loop
from ottla.net.pending import Reply
from ottla.net.refresh import Lookup, MetadataRefresh
from ottla.produce import coordinator
from ottla.produce.compression import CompressionPool
from ottla.produce.core import (
    MOST_REQUESTS,
    Caller,
    Connect,
    Core,
    Effect,
    Identify,
    ReadTail,
    Replace,
    Send,
    Store,
)
from ottla.produce.delivery import SENDER_THREAD, Outcome, Placement, Shipment
from ottla.produce.failures import Failures
from ottla.produce.fast_path import FastPath, FastRecord, Offer
from ottla.produce.identity import new_producer_id
from ottla.produce.intake import Budget, Handover, Intake
from ottla.produce.lane import Lane
from ottla.produce.options import ByTopic, Spool, WhenFull
from ottla.produce.outgoing import Identity, Outgoing, ShipmentShare
from ottla.produce.packing import RefuseRows, Settle, Topic
from ottla.produce.participants import Gate, Join
from ottla.produce.topics import Forget, Recall, Refuse, Remember, Report
from ottla.wire import produce as wire
from ottla.wire.columns import NO_KEYS
from ottla.wire.partitioning import partition_of_key

if TYPE_CHECKING:
    from ottla.produce.spool import Store as SpoolStore
    from ottla.produce.spooling import Spooling

_log = logging.getLogger(__name__)
_LANE = "produce"
_SWEEP_SECONDS = 0.1
"""How often deadlines are looked at."""
_SHORT_NAP = 0.005
_FORGET_SECONDS = 1.0
_FEW_SHIPMENTS = 64
_UNSTARTED_SECONDS = 0.1
"""How long a caller may take to send a record himself: it is some microseconds, unless he was interrupted."""


@dataclass(frozen=True, slots=True)
class SenderContext:
    """What a sender works for and with."""

    cluster: Cluster
    intake: Intake
    budget: Budget
    failures: Failures
    events: Events
    topics: ByTopic
    spool: tuple[Spool, SpoolStore] | None = None
    gate: Gate | None = None
    transactional_id: str | None = None


class Sender:
    """Drives the core of one producer. `start` begins it, `stop` ends it."""

    def __init__(self, around: SenderContext, loop: Loop[Send]) -> None:
        cluster = around.cluster
        self._around = around
        self._cluster = cluster
        self._loop = loop
        watch = MetadataRefresh(
            cluster.retry,
            loop.chance,
            longest=cluster.timeouts.total,
            refresh_seconds=cluster.timeouts.metadata_age,
        )
        self._squeezers = CompressionPool(loop.name)
        self._core = Core(
            watch,
            retry=cluster.retry,
            chance=loop.chance,
            spooling=around.spool is not None,
            gate=around.gate,
            compress=self._squeezers.compress,
        )
        self.keeper: Spooling | None = None
        if around.spool is not None:
            from ottla.produce.spooling import Spooling

            self.keeper = Spooling(*around.spool, account=self._core.account, events=around.events)
        self._shipments: deque[Shipment] = deque()
        """Those without an outcome, and some that have theirs."""
        self._charged_bytes = 0
        """What the budget knows of the core's account."""
        self.expressway: FastPath | None = None
        if around.spool is None and around.gate is None:
            seconds = cluster.timeouts.request
            self.expressway = FastPath(self._core, loop, around.intake, request_seconds=seconds)
        self._unstarted: list[tuple[FastRecord, float]] = []
        """Sent by callers who had not finished when they were last looked at."""
        self._held: list[tuple[Send, Sequence[Buffer]]] = []
        """Requests to brokers on whose connection such a caller is about to send: the two must not get mixed up."""
        self._given_up: WeakSet[Caller] = WeakSet()
        """Those who have not finished in time. One who does so later must not count twice; most never will."""
        self._swept_at = 0.0
        self._forgot_at = 0.0
        self._stray_bytes = 0

    # Any thread

    def start(self) -> None:
        """Begins to send. To start it again does no harm, so that it may be interrupted anywhere."""
        self._loop.start(self)

    @property
    def has_stopped(self) -> bool:
        """Whether the loop was there and is not any more."""
        return self._loop.has_stopped

    def hurry(self) -> None:
        """Everything that waits for company goes now."""
        self._loop.call(self._hurry)

    def everything(self, deadline: Deadline) -> list[Shipment]:
        """All that was handed in so far and has no outcome; it is sent as soon as possible."""

        def collect() -> list[Shipment]:
            self._hurry()
            return [shipment for shipment in self._shipments if shipment.unsettled]

        return self._loop.result_of(collect, deadline)

    def identify(self, producer_id: int, epoch: int) -> None:
        """Batches are numbered under this identity from now on, in every partition."""
        self._loop.result_of(lambda: self._core.start_over(producer_id, epoch))

    def drop_all(self, error: OttlaError, *, deadline: Deadline | None = None) -> None:
        """Gives up everything that was handed in, and returns when nothing is under way any more."""

        def drop() -> int:
            self._hurry()
            self._fail_all(error)
            return self._core.flying

        limit = deadline or Deadline.after(LONGEST)
        while self._loop.result_of(drop) and self._loop.is_elsewhere and not limit.expired():
            time.sleep(_SHORT_NAP)

    def fail_all(self, error: OttlaError) -> None:
        """Nothing that is not under way will be delivered; returns at once."""
        self._loop.call(lambda: self._fail_all(error))

    def persist(self, deadline: Deadline) -> OttlaError | None:
        """Puts everything that was handed in so far on disk, unless it is acknowledged; why that did not work."""

        def keep() -> OttlaError | None:
            self._hurry()
            return self._keep(self._core.all_to_be_kept(), stop_at_refusal=True) or self._core.topics.why_waiting()

        return self._loop.result_of(keep, deadline)

    def stop(self, deadline: Deadline) -> None:
        """Ends the loop; what has no outcome by then is given up, or stays in the spool."""
        self._loop.stop(self, Deadline.after(deadline.remaining() + 5.0))
        self._cluster.close()
        self._loop.background.join(Deadline.after(5.0))

    def holding(self) -> str:
        """What most of the memory waits for, in words."""
        lanes = [
            (sum(batch.held_bytes for batch in list(lane.line)), topic, lane) for topic, lane in self._core.topics.lanes
        ]
        waiting = [topic for topic in self._core.topics.all() if topic.waiting]
        error = self._core.topics.watch.error
        if waiting and error is not None:
            return f"the partitions of topic {waiting[0].name} are not known: {error}"
        if not lanes:
            return "nothing is under way at the moment: the buffer is small for what one call hands in"
        size, topic, lane = max(lanes, key=lambda entry: entry[0])
        link = self._loop.links.find(topic.leaders.get(lane.at.partition, -1))
        failed = next((batch.error for batch in list(lane.line) if batch.error is not None), None)
        where = "which has no leader" if link is None else f"led by {link}"
        last = "" if failed is None else f"; last error: {failed}"
        return f"{size:,} bytes of it wait for {lane.at}, {where}, {lane.flying} batches under way{last}"

    def topic(self, name: str) -> Topic | None:
        """What is known of a topic in use."""
        return self._core.topics.get(name)

    # The loop

    def begin(self) -> None:
        """Takes over what a program that ended has left in the spool."""
        if self.keeper is None:
            return
        for stored in self.keeper.inherited():
            batch = self.keeper.adopt(stored)
            shipment = Shipment(stored.topic)
            shipment.count = shipment.unsettled = batch.count
            shipment.placements.append(Placement(batch, range(batch.count), 0))
            batch.shipments.append(ShipmentShare(shipment, batch.count))
            self._shipments.append(shipment)
            self._core.topics.inherit(self._topic(stored.topic), batch, floor=stored.floor_offset)

    def turn(self, now: float) -> float:
        """Everything that can be done now; when to be called again."""
        core = self._core
        core.is_reporting = self._around.events.active
        self._adopt(now)
        if self._unstarted:
            self._give_up_unstarted(now)
        self._send_held()
        for answer in self._loop.answers():
            self._heard(answer, now)
        for link in self._loop.links.changed():
            core.link_changed(link.broker.id, is_up=link.is_up, away_since=link.down_since, error=link.error)
        for looked in self._loop.lookups.done():
            core.topics.looked(looked, now)
        next_due = self._take(now)
        self._carry_out(now)
        while core.dispatch(now):
            self._carry_out(now)
        core.topics.look(now)
        self._carry_out(now)
        if now >= self._swept_at + _SWEEP_SECONDS:
            self._sweep(now)
        if self.keeper is not None:
            self.keeper.settle()
        until = min(next_due, core.next_at(), self._loop.links.next_at(now))
        if self._unstarted:
            until = min(until, now + _UNSTARTED_SECONDS)
        elif self.expressway is not None:
            self.expressway.offer = Offer()
        return until if core.is_idle else min(until, self._swept_at + _SWEEP_SECONDS)

    def recover(self) -> None:
        """Nobody but the loop's own thread, which is not interrupted, takes its turns."""
        raise AssertionError("a sender's loop is driven by its own thread alone")

    def end(self, error: OttlaError | None) -> None:
        """The loop has ended: nothing is left without an outcome."""
        self._around.intake.shut(error or OttlaError("this producer was closed"))
        try:
            now = time.monotonic()
            self._adopt(now)
            handed, _ = self._around.intake.take(math.inf, lambda _: 0.0)
            reason = str(error or f"the producer was closed before they could be sent{self._why_unknown()}")
            for handover in handed:
                self._charged_bytes += handover.held_bytes
                if not handover.columns.count:
                    self._nothing(handover)
                    continue
                self._core.account.held_bytes += handover.held_bytes
                count = handover.columns.count
                refusal = NotDelivered(reason, topic=handover.topic, records=count, cause=error)
                self._core.effects.append(Refuse(handover, refusal))
                self._core.account.held_bytes -= handover.held_bytes
            self._core.topics.refuse_all(reason, error)
            self._core.end(str(error or self._why_closed()), kept=self._leave_behind)
            self._carry_out(now)
        except Exception:
            _log.exception("could not tell every delivery that the sender has ended")
        self._squeezers.close()
        self._around.budget.wake()

    # Records come in

    def _take(self, now: float) -> float:
        handed, next_due = self._around.intake.take(now, self._linger)
        for handover in handed:
            self._let_go()
            self._shipments.append(handover.shipment)
            self._charged_bytes += handover.held_bytes
            self._topic(handover.topic)
            if handover.columns.count:
                self._core.topics.handed_over(handover, now)
            else:
                self._nothing(handover)
            self._carry_out(now)
        return next_due

    def _adopt(self, now: float) -> None:
        """Takes back what was offered to callers; if one has sent a record meanwhile, it is one of ours from now on."""
        way = self.expressway
        if way is None or way.offer is None:
            return
        offer, way.offer = way.offer, None
        express = None if offer.claim(None) else offer.claims[0]
        if express is None:
            return
        self._shipments.append(express.shipment)
        express.link.requests += 1
        topic = express.topic
        if not express.has_key and topic.partitions is not None:
            topic.router.route(NO_KEYS, 1, partitions=topic.partitions)  # it counts for the strategy
        self._core.sent_by_caller(express.send, now)
        if not express.is_started:
            self._unstarted.append((express, now))
        self._carry_out(now)

    def _give_up_unstarted(self, now: float) -> None:
        """A caller was interrupted in the middle of sending: the connection is in doubt, the batch goes again."""
        waiting = [(express, since) for express, since in self._unstarted if not express.is_started]
        self._unstarted = [entry for entry in waiting if now < entry[1] + _UNSTARTED_SECONDS]
        for express, since in waiting:
            if now >= since + _UNSTARTED_SECONDS:
                send, link = express.send, express.link
                error = ConnectionLost(link.broker.address, "interrupted in the middle of sending")
                assert send.caller is not None
                self._given_up.add(send.caller)
                link.requests -= 1
                self._loop.distrust(link, error)
                self._core.lost(send, error, now)

    def _nothing(self, handover: Handover) -> None:
        handover.shipment.unsettled = 0
        handover.shipment.settle(0)  # no batch will do it
        self._charged_bytes -= handover.held_bytes
        self._around.budget.add(-handover.held_bytes)

    def _hurry(self) -> None:
        now = time.monotonic()
        self._adopt(now)
        self._around.intake.take_all()
        self._take(now)
        self._core.topics.hurry(now)

    def _linger(self, topic: str) -> float:
        return self._around.topics.settings(topic).batching.linger

    def _topic(self, name: str) -> Topic:
        topic = self._core.topics.get(name)
        if topic is None:
            topics = self._around.topics
            topic = Topic(name, topics.settings(name), router=topics.router(name))
            if topic.is_express:
                # Compiled here, before a caller needs it: Ctrl-C in the middle of that breaks it for the whole process.
                partition_of_key(b"", 1)
            self._core.topics.use(topic, time.monotonic(), self._cluster.remembered(frozenset([name])))
            self._carry_out(time.monotonic())
        return topic

    def _let_go(self) -> None:
        while self._shipments and self._shipments[0].unsettled == 0:
            self._shipments.popleft()

    def _forget_settled(self, now: float) -> None:
        """The same behind a shipment that waits long, when there are many."""
        if len(self._shipments) > _FEW_SHIPMENTS and now >= self._forgot_at + _FORGET_SECONDS:
            self._forgot_at = now
            self._shipments = deque(shipment for shipment in self._shipments if shipment.unsettled)

    # Effects

    def _carry_out(self, now: float) -> None:
        effects = self._core.effects
        while effects:
            self._do(effects.popleft(), now)
        held = self._core.account.held_bytes
        if held != self._charged_bytes:
            self._around.budget.add(held - self._charged_bytes)
            self._charged_bytes = held

    def _do(self, effect: Effect, now: float) -> None:
        match effect:
            case Settle(batch, outcome):
                self._settle(batch, outcome, now)
            case Send():
                self._send(effect)
            case Report(event):
                self._around.events.emit(event)
            case Store(lane, batch):
                self._store(lane, batch, now)
            case Connect(broker):
                link = self._loop.links.get(broker)
                if link is not None:
                    self._loop.links.connect(link, now)
            case Lookup():
                self._loop.lookups.run(effect)
            case Refuse(handover, error):
                self._around.failures.refuse(handover, error)
            case RefuseRows():
                self._around.failures.refuse_rows(effect)
            case _:
                self._do_rarely(effect, now)

    def _do_rarely(self, effect: Effect, now: float) -> None:
        match effect:
            case Identify():
                self._identify()
            case ReadTail():
                self._read_tail(effect)
            case Join():
                self._join(effect)
            case Replace(lane, whole, parts):
                if self.keeper is not None:
                    self.keeper.cut(whole, parts, lane)
                whole.records = None
            case Recall():
                self._core.topics.recalled(effect, self._partition_count(effect.topic.name), now)
            case Remember(topic_name, partitions):
                if self.keeper is not None:
                    self.keeper.remember(topic_name, partitions)
            case Forget(topic_name, is_unknown):
                self._forget(topic_name, is_unknown=is_unknown)

    def _settle(self, batch: Outgoing, outcome: Outcome, now: float) -> None:
        """The batch is in the log, or will not be delivered, or a hook has left nothing of it."""
        events = self._around.events
        if outcome.error is not None:
            self._around.failures.failed(batch, outcome.error)
        elif events.active and batch.header is not None:
            seconds = now - (now if batch.sent_at is None else batch.sent_at)
            sizes = batch.count, batch.size_bytes
            at = batch.topic, batch.partition
            events.emit(FlushAcknowledged(*at, *sizes, outcome.base_offset, seconds, batch.attempts))
        batch.decide(outcome)
        self._done(batch, is_delivered=outcome.error is None)

    def _send(self, send: Send) -> None:
        body = wire.produce_request(
            {at: carried.batch.parts() for at, carried in send.carried.items()},
            acks=send.acks,
            # So that a broker that waits for replicas answers before we give up.
            timeout_ms=int(self._cluster.timeouts.request * 800),
            transactional_id=self._around.transactional_id,
        )
        self._held.append((send, body))
        self._send_held()

    def _send_held(self) -> None:
        in_use = {express.link.broker.id for express, _ in self._unstarted if not express.is_started}
        held, self._held = self._held, []
        for send, body in held:
            if send.broker in in_use:
                self._held.append((send, body))
            else:
                self._request(send, body)

    def _request(self, send: Send, body: Sequence[Buffer]) -> None:
        link = self._loop.links.get(send.broker)
        assert link is not None
        connection = link.connection
        try:
            version = 0 if connection is None else connection.version(wire.API_KEY, highest=wire.HIGHEST_VERSION)
        except OttlaError as error:
            self._core.lost(send, error, time.monotonic())
            return
        reply = Reply.NONE if send.acks == 0 else Reply.DUE
        seconds = self._cluster.timeouts.request
        self._loop.request(send, link, wire.API_KEY, version, body, seconds=seconds, reply=reply)

    def _heard(self, answer: Answer[Send], now: float) -> None:
        send = answer.request
        if self._given_up and send.caller in self._given_up:
            answer.link.requests += 1  # it was counted when it was given up
        elif answer.error is not None:
            self._core.lost(send, answer.error, now)
        elif send.acks == 0:
            self._core.posted(send)
        else:
            try:
                answers = {TopicPartition(a.topic, a.partition): a for a in wire.produce_response(answer.body)}
            except WireError as error:
                self._loop.distrust(answer.link, error)
                self._core.lost(send, error, now)
            else:
                self._core.answered(send, answers, now, moved=self._moved(answers.values(), send.broker))
        self._carry_out(now)

    def _moved(self, answers: Iterable[wire.Produced], asked: int) -> set[TopicPartition]:
        """The partitions that have another leader by now than was asked, as answers say (KIP-951)."""
        return {
            TopicPartition(answer.topic, answer.partition)
            for answer in answers
            if (leader := answer.leader) is not None
            and leader.id not in (-1, asked)  # that one would be asked again at once, for ever
            and self._cluster.leader_moved(answer.topic, answer.partition, leader=leader.id, epoch=leader.epoch)
        }

    def _identify(self) -> None:
        self._loop.background.run(
            "identity",
            lambda: new_producer_id(self._cluster),
            done=self._core.identified,
            failed=lambda error: self._core.not_identified(error, time.monotonic()),
        )

    def _read_tail(self, effect: ReadTail) -> None:
        topic, lane, search, wanted = effect

        def look() -> dict[Identity, int]:
            from ottla.produce import tail  # reads, as few producers ever do

            return tail.find(self._cluster, search, wanted)

        self._loop.background.run(
            ("tail", lane.at),
            look,
            done=lambda found: self._core.tail_read(topic, lane, found),
            failed=lambda error: self._core.tail_not_read(lane, error, time.monotonic()),
        )

    def _join(self, join: Join) -> None:
        def failed(error: OttlaError) -> None:
            self._around.failures.failure = self._around.failures.failure or error
            self._core.not_joined(join, error)

        self._loop.background.run(
            "transaction",
            lambda: coordinator.add_partitions(self._cluster, join.who, join.partitions),
            done=lambda _: self._core.joined(join),
            failed=failed,
        )

    def _forget(self, topic: str, *, is_unknown: bool) -> None:
        if self.keeper is not None and is_unknown:
            self.keeper.forget(topic)
        if self._core.topics.get(topic) is None:
            self._around.topics.forget(topic)
            self._cluster.forget([topic])

    def _fail_all(self, error: OttlaError) -> None:
        now = time.monotonic()
        self._adopt(now)
        self._core.fail_all(error)
        self._carry_out(now)

    # The disk

    def _store(self, lane: Lane, batch: Outgoing, now: float) -> None:
        assert self.keeper is not None
        try:
            if self.keeper.may_send(batch, lane):
                self._core.stored(lane, batch)
            else:
                self._core.not_stored(lane, now)
        except NotDelivered as error:
            self._core.damaged(lane, batch, error)

    def _done(self, batch: Outgoing, *, is_delivered: bool) -> None:
        if self.keeper is not None:
            decided = [batch]
            while decided[-1].parent is not None and decided[-1].parent[0].decided:
                decided.append(decided[-1].parent[0])
            self.keeper.done(decided, delivered=is_delivered)

    def _keep(self, lanes: Iterable[tuple[Lane, list[Outgoing]]], *, stop_at_refusal: bool) -> OttlaError | None:
        """Puts batches on disk, those of each lane in order; why not, when that is refused."""
        assert self.keeper is not None
        for lane, batches in lanes:
            if not self._keep_lane(lane, batches) and stop_at_refusal:
                return self.keeper.error
        if not stop_at_refusal:
            return None
        return None if self.keeper.make_durable() else self.keeper.error

    def _keep_lane(self, lane: Lane, batches: Iterable[Outgoing]) -> bool:
        assert self.keeper is not None
        for batch in batches:
            try:
                if not self.keeper.keep(batch, lane):
                    return False
            except NotDelivered as error:
                self._core.damaged(lane, batch, error)
        return True

    def _leave_behind(self, lane: Lane, batch: Outgoing) -> bool:
        """The producer ends: whether the batch stays on disk, for the next one."""
        keeper = self.keeper
        if keeper is None or not (batch.ticket or keeper.keep(batch, lane) or keeper.keeps_whole(batch)):
            return False
        reason = f"kept in the spool {keeper.path}, from which the next producer delivers them"
        at, maybe = lane.at, batch.attempts > 0 or batch.inherited
        kept = KeptInSpool(reason, topic=at.topic, partition=at.partition, records=batch.count, maybe_written=maybe)
        self._core.account.release(batch)
        self._around.failures.left(batch, kept)
        return True

    def _partition_count(self, topic: str) -> int:
        if self.keeper is None:
            return 0
        seen = self._cluster.known.topics.get(topic)
        return self.keeper.partition_count(topic) or (0 if seen is None else len(seen.partitions))

    def _spool_what_waits(self, now: float) -> None:
        """What waits for too long goes to disk, and leaves the memory when that is short."""
        keeper, budget = self.keeper, self._around.budget
        assert keeper is not None
        self._keep(self._core.to_be_kept(older_than=now - keeper.spool.after, now=now), stop_at_refusal=False)
        self._carry_out(now)
        if keeper.is_full and keeper.spool.when_full is WhenFull.DROP_OLDEST:
            self._core.drop_stored(budget.used)
            self._carry_out(now)
        if budget.used > budget.buffering.bytes // 2:
            keeper.make_durable()
            for _, lane in self._core.topics.lanes:
                for batch in lane.line:
                    if batch.ticket is not None and batch.stored_identity == batch.identity:
                        keeper.unload(batch)
        self._carry_out(now)

    # Time

    def _sweep(self, now: float) -> None:
        self._swept_at = now
        core, budget = self._core, self._around.budget
        self._let_go()
        self._forget_settled(now)
        core.forget_idle(now, seconds=self._cluster.timeouts.metadata_age)
        for link in list(self._loop.links):
            if link.is_away and core.topics.leads(link.broker.id):
                self._loop.links.connect(link, now)  # nobody may have anything for it, as long as it is away
        if self.keeper is not None:
            self._spool_what_waits(now)
        core.expire(now)
        self._carry_out(now)
        self._balance()
        if budget.buffering.when_full is WhenFull.DROP_OLDEST and budget.full:
            core.drop_unsent(budget.used - budget.buffering.bytes // 2)
            self._carry_out(now)

    def _balance(self) -> None:
        """Where nothing is left that takes memory, none is in use: mends what an interrupted call did not add."""
        budget = self._around.budget
        stray = budget.used if self._core.is_idle and self._around.intake.idle() else 0
        if stray and stray == self._stray_bytes:  # twice in a row: no call is just about to add it
            budget.add(-stray)
            stray = 0
        self._stray_bytes = stray

    def _why_unknown(self) -> str:
        kept = "" if self.keeper is None else ", or kept: this spool has never seen the topic"
        error = self._core.topics.watch.error
        return kept if error is None else f"{kept}; {error}"

    def _why_closed(self) -> str:
        error = None if self.keeper is None else self.keeper.error
        return (
            "the producer was closed" if error is None else f"the producer was closed and could not keep them: {error}"
        )


def new_loop(cluster: Cluster, *, name: str, events: Events) -> Loop[Send]:
    """The loop that a sender runs on."""
    thread = f"{SENDER_THREAD}-{name}"
    return Loop(cluster, channel=_LANE, name=thread, most_requests=MOST_REQUESTS, events=events)
