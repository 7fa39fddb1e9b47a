"""The core of a producer in a world that goes wrong: simulated brokers, network, metadata, disk and coordinator.

Effects of the core are carried out here, late, in another order than they came, or not at all, as a history says; the
brokers judge numbers as Kafka does (`lane_world.SimulatedBroker`). `check_promises` says whether a record was lost,
doubled, reordered, told wrongly or forgotten.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count as numbers
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ottla.config import Address, Retry
from ottla.errors import ConnectionLost, ErrorCode, NotDelivered, OttlaError
from ottla.events import Events
from ottla.model import TopicPartition
from ottla.net.metadata import Broker, Metadata, Partition
from ottla.net.metadata import Topic as TopicMetadata
from ottla.net.refresh import Lookup, LookupResult, MetadataRefresh
from ottla.produce.coordinator import PreparedTransaction
from ottla.produce.core import Connect, Core, Effect, Identify, ReadTail, Replace, Send, Store
from ottla.produce.delivery import Delivery, Shipment
from ottla.produce.failures import Failures
from ottla.produce.fast_path import FastPath, Offer
from ottla.produce.intake import Handover
from ottla.produce.lane import Lane
from ottla.produce.options import Batching, Settings
from ottla.produce.outgoing import Identity, Outgoing
from ottla.produce.packing import RefuseRows, Settle, Topic
from ottla.produce.participants import Gate, Join
from ottla.produce.spool import Ticket
from ottla.produce.topics import Forget, Recall, Refuse, Remember, Report
from ottla.wire.columns import from_list
from ottla.wire.produce import Produced

from .lane_world import NOT_LEADER, OK, TOO_LARGE, SimulatedBroker

Row = tuple[int, int]
"""A record: the number of its handover, and its row in it."""
DELIVERY_SECONDS = 30.0
MOST_RECORDS = 4
"""In a batch, until a broker finds that too large."""
GHOST = "ghost"
"""A topic that does not exist, at first."""
REFUSED = OttlaError("the coordinator refused")


class Sending(NamedTuple):
    """A batch in a request, as it was when it was sent."""

    at: TopicPartition
    batch: Outgoing
    identity: Identity
    rows: tuple[Row, ...]


@dataclass
class Line:
    """The connection to one broker: requests on their way, and answers."""

    requests: deque[tuple[Send, list[Sending]]] = field(default_factory=deque)
    answers: deque[tuple[Send, dict[TopicPartition, Produced]]] = field(default_factory=deque)

    @property
    def sends(self) -> list[Send]:
        return [*(send for send, _ in self.answers), *(send for send, _ in self.requests)]


@dataclass
class Disk:
    """A spool, as far as the core knows one."""

    refuses: bool = False
    damaged: set[Outgoing] = field(default_factory=set)
    identities: dict[Outgoing, Identity | None] = field(default_factory=dict)
    tickets: Any = field(default_factory=lambda: numbers(1))


class _Beside:
    """What a caller finds of the loop while it sleeps: links to brokers, and a way to send on them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.links = self
        self.wakeup = self
        self.is_interrupted = False
        """The caller does not get to send what it has claimed."""
        self.wakes: Offer | None = None
        """The loop takes this offer back while a caller looks at it."""

    def find(self, broker: int) -> _Beside | None:
        if self.wakes is not None:
            assert self.wakes.claim(None)
        line = self.world.lines.get(broker)
        self.broker = self.world.brokers.get(broker)
        return None if line is None or len(line.sends) >= 5 else self

    has_room = True
    unsent_bytes = 0
    is_encrypted = False

    @property
    def connection(self) -> _Beside:
        return self

    def version(self, *_: object, **__: object) -> int:
        return 9

    def ring(self) -> None:
        pass

    def idle(self) -> bool:
        return True

    def request_beside(self, send: Send, *_: object, **__: object) -> None:
        (carried,) = send.carried.values()
        self.world.name(carried.batch.shipments[0].shipment)
        if self.is_interrupted:
            raise KeyboardInterrupt
        self.world.send(send)


class World:
    """Core, brokers and everything between them. Each method is something that may happen.

    Between two of them the loop sleeps, and callers may send a record themselves.
    """

    def __init__(self, seed: int, *, spooling: bool = False, transactional: bool = False) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.gate = Gate() if transactional else None
        retry = Retry(initial=0.05, maximum=1.0)
        watch = MetadataRefresh(retry, self.chance, longest=10.0, refresh_seconds=300.0)
        self.core = Core(watch, retry=retry, chance=self.chance, spooling=spooling, gate=self.gate)
        self.failures = Failures(events=Events())
        self.disk = Disk() if spooling else None
        self.brokers = {number: Broker(number, f"b{number}", 9092) for number in (1, 2)}
        self.partitions = {"a": 2, "b": 1}
        self.leaders: dict[TopicPartition, int] = {}
        self.logs: dict[TopicPartition, SimulatedBroker] = {}
        for topic in self.partitions:
            self._create(topic)
        self.most_records = MOST_RECORDS
        """In one batch, before brokers find it too large."""
        self.lines: dict[int, Line | None] = dict.fromkeys(self.brokers)
        self.late: list[deque[list[Sending]]] = []
        self.connecting: set[int] = set()
        self.lookups: list[Lookup] = []
        self.waiting: list[Identify | ReadTail | Join] = []
        """What takes long."""
        self.joined: set[TopicPartition] = set()
        self.transaction = 0
        self._ids = numbers(7)
        self._handovers = numbers()
        self.shipments: dict[int, Shipment] = {}
        self.numbers: dict[Shipment, int] = {}
        self.opened: dict[int, float] = {}
        self.asked: dict[Row, int | None] = {}
        self._rows: dict[Outgoing, tuple[Row, ...]] = {}
        self.reports: Counter[str] = Counter()
        self.sent: Counter[Row] = Counter()
        self._beside = _Beside(self)
        beside: Any = self._beside
        self._way = FastPath(self.core, beside, beside, request_seconds=1.0)
        self.expressed = 0
        if transactional:
            self.begin_transaction()

    def _create(self, topic: str) -> None:
        for partition in range(self.partitions[topic]):
            at = TopicPartition(topic, partition)
            self.leaders[at] = self.chance.choice(list(self.brokers))
            self.logs[at] = SimulatedBroker()

    # The program

    def express(self, topic: str, *, key: bytes | None, is_interrupted: bool, wakes_in_between: bool) -> None:
        """A caller sends a record himself, if he can; an interrupt, or the loop, may come in the middle of it."""
        self._way.offer = offer = Offer()
        self._beside.is_interrupted = is_interrupted
        self._beside.wakes = offer if wakes_in_between else None
        delivery = None
        try:
            delivery = self._way.send(topic, b"value", key)
        except KeyboardInterrupt:
            pass
        assert delivery is None or not wakes_in_between, "the loop is awake, and does as if nothing was sent"
        express = offer.claims[0] if offer.claims else None
        self._way.offer = None
        if express is None:
            assert delivery is None
            return
        self.expressed += 1
        # The loop wakes up.
        self.core.sent_by_caller(express.send, self.now)
        self.carry_out()
        if not express.is_started:
            self.core.lost(express.send, ConnectionLost(Address("b", 1), "interrupted"), self.now)
            self.carry_out()

    def name(self, shipment: Shipment) -> None:
        """A record that its caller sends himself gets its number, as handovers do."""
        number = next(self._handovers)
        self.shipments[number], self.numbers[shipment], self.opened[number] = shipment, number, self.now
        self.asked[number, 0] = None

    def hand_over(self, topic: str, count: int, *, key: bytes | None = None, partition: int | None = None) -> None:
        number = next(self._handovers)
        self._use(topic)
        shipment = Shipment(topic)
        shipment.count = count
        columns = from_list([(key, b"%d/%d" % (number, row)) for row in range(count)])
        chosen = None if partition is None else np.full(count, partition, np.int32)
        handover = Handover(topic, shipment, columns, chosen, self.now, self.now, held_bytes=100 * count)
        self.shipments[number] = shipment
        self.opened[number] = self.now
        self.numbers[shipment] = number
        for row in range(count):
            self.asked[number, row] = partition
        self.core.topics.handed_over(handover, self.now)
        self.carry_out()

    def _use(self, topic: str) -> None:
        if self.core.topics.get(topic) is None:
            linger = 0.0 if topic == "b" else 0.01
            batching = Batching(records=MOST_RECORDS, linger=linger)
            settings = Settings(delivery_timeout=DELIVERY_SECONDS, batching=batching)
            self.core.topics.use(Topic(topic, settings), self.now)
            self.carry_out()

    def hurry(self) -> None:
        self.core.topics.send_now(self.now)
        self.carry_out()

    def fail_all(self) -> None:
        self.core.fail_all(NotDelivered("the transaction was aborted"))
        self.carry_out()

    def begin_transaction(self) -> None:
        """The one before it is over: everything of it has its outcome, and nothing is under way."""
        assert self.gate is not None
        self.gate.sending = False
        self.fail_all()
        if self.core.in_flight or self.gate.joining:
            return
        self.late.clear()  # the coordinator has ended the one before: what comes late of it is refused
        self.transaction += 1
        who = PreparedTransaction("tx", next(self._ids), 0)
        self.core.start_over(who.producer_id, who.epoch)
        self.joined.clear()
        self.gate.begin(self.transaction, who)

    # Time

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def sweep(self) -> None:
        """What the sender does every tenth of a second."""
        self.core.expire(self.now)
        self.carry_out()
        self.core.forget_idle(self.now, seconds=300.0)
        self.carry_out()

    def turn(self) -> None:
        while self.core.dispatch(self.now):
            self.carry_out()
        self.carry_out()
        self.core.topics.request_metadata(self.now)
        self.carry_out()

    def drop(self, size_bytes: int) -> None:
        self.core.drop_unsent(size_bytes)
        dropped = [effect.batch for effect in self.core.effects if isinstance(effect, Settle)]
        assert not any(batch.attempts for batch in dropped), "only what was never sent"
        self.carry_out()

    def drop_stored(self, size_bytes: int) -> None:
        self.core.drop_stored(size_bytes)
        self.carry_out()

    def keep(self) -> None:
        """What waits for long goes to disk."""
        assert self.disk is not None
        for lane, batches in self.core.overdue_lanes(older_than=self.now - 1.0, now=self.now):
            for batch in batches:
                if not self._stored(lane, batch):
                    break
        self.carry_out()

    # Effects

    def carry_out(self) -> None:
        while self.core.effects:
            self._do(self.core.effects.popleft())

    def _do(self, effect: Effect) -> None:
        match effect:
            case Send():
                self.send(effect)
            case Connect(broker):
                if self.lines[broker] is None:
                    self.connecting.add(broker)
            case Lookup():
                self.lookups.append(effect)
            case Identify() | ReadTail() | Join():
                self.waiting.append(effect)
            case Store(lane, batch):
                if self._stored(lane, batch):
                    self.core.stored(lane, batch)
                elif not batch.decided:
                    self.core.not_stored(lane, self.now)
            case Replace(_, whole, _):
                whole.records = None
            case Settle(batch, outcome):
                self._rows_of(batch)
                assert batch.held_bytes == 0
                if outcome.error is not None:
                    self.failures.failed(batch, outcome.error)
                batch.decide(outcome)
            case Refuse(handover, error):
                self.failures.refuse(handover, error)
            case RefuseRows():
                self.failures.refuse_rows(effect)
            case Recall():
                self.core.topics.recalled(effect, 0, self.now)
            case Report(event):
                self.reports[type(event).__name__] += 1
            case Remember() | Forget():
                pass

    def send(self, send: Send) -> None:
        line = self.lines[send.broker]
        sendings = []
        for at, (_, _, batch) in send.carried.items():
            header = batch.header
            assert header is not None
            assert batch.records is not None
            identity = Identity(header.producer_id, header.producer_epoch, header.base_sequence)
            assert identity == batch.identity
            assert not batch.decided, "nothing is sent that has its outcome"
            if self.disk is not None:
                assert self.disk.identities.get(batch) == identity, "it is on disk under the number it is sent with"
            if self.gate is not None:
                assert self.gate.sending, "nothing leaves while no transaction is open"
                assert at in self.joined, f"the coordinator does not know {at}"
                assert header.is_transactional
            rows = self._rows_of(batch)
            self.sent.update(rows)
            sendings.append(Sending(at, batch, identity, rows))
        if line is None:
            self.core.lost(send, ConnectionLost(Address("b", 1), "it has just ended"), self.now)
        else:
            assert len(line.sends) < 5
            line.requests.append((send, sendings))

    def _stored(self, lane: Lane, batch: Outgoing) -> bool:
        assert self.disk is not None
        if batch in self.disk.damaged:
            self.core.damaged(lane, batch, NotDelivered("damaged", records=batch.count, maybe_written=True))
            return False
        if self.disk.identities.get(batch, ...) == batch.identity:
            return True
        if self.disk.refuses:
            return False
        self.disk.identities[batch] = batch.stored_identity = batch.identity
        if batch.ticket is None:
            batch.ticket = Ticket(next(self.disk.tickets), 0, 0, 0)
        batch.deadline = float("inf")
        return True

    def _rows_of(self, batch: Outgoing) -> tuple[Row, ...]:
        found = self._rows.get(batch)
        if found is None:
            if batch.parent is not None:
                whole, first = batch.parent
                found = self._rows_of(whole)[first : first + batch.count]
            else:
                found = tuple(
                    (self.numbers[shipment], int(row))
                    for shipment in dict.fromkeys(share.shipment for share in batch.shipments)
                    for placement in shipment.placements
                    if placement.carrier is batch
                    for row in placement.rows
                )
            if batch.sealed or batch.decided:
                self._rows[batch] = found
        return found

    # The network and the brokers

    def up(self) -> list[int]:
        return [broker for broker, line in self.lines.items() if line is not None]

    def connect(self, broker: int) -> None:
        self.connecting.discard(broker)
        self.lines[broker] = Line()
        self.core.link_changed(broker, is_up=True, away_since=None, error=None)
        self.carry_out()

    def not_connected(self, broker: int) -> None:
        self.connecting.discard(broker)
        error = ConnectionLost(self.brokers[broker].address, "refused")
        self.core.link_changed(broker, is_up=False, away_since=self.now, error=error)
        self.carry_out()

    def lose(self, broker: int, kept: int) -> None:
        """The connection ends: answers are lost, some of its requests may still be worked on, later."""
        line, self.lines[broker] = self.lines[broker], None
        assert line is not None
        self.late.append(deque([sendings for _, sendings in line.requests][:kept]))
        error = ConnectionLost(self.brokers[broker].address, "lost")
        for send in line.sends:
            self.core.lost(send, error, self.now)
            self.carry_out()
        self.core.link_changed(broker, is_up=False, away_since=self.now, error=error)
        self.carry_out()

    def idle_out(self, broker: int) -> None:
        """The broker closes a connection that nobody uses."""
        line = self.lines[broker]
        if line is not None and not line.sends:
            self.lines[broker] = None
            self.core.link_changed(broker, is_up=False, away_since=None, error=None)
            self.carry_out()

    def process(self, broker: int, error: int = OK) -> None:
        """The broker works on the next request, and answers each batch with `error` if it is one."""
        line = self.lines[broker]
        assert line is not None
        send, sendings = line.requests.popleft()
        answers = {}
        for sending in sendings:
            code, offset = self._handled(broker, sending, error)
            answers[sending.tp] = Produced(*sending.tp, code, offset, -1, -1, None, (), None)
        line.answers.append((send, answers))

    def _handled(self, broker: int, sending: Sending, error: int) -> tuple[int, int]:
        at = sending.tp
        if at not in self.logs:
            return int(ErrorCode.unknown_topic_or_partition), -1
        if self.leaders[at] != broker:
            return NOT_LEADER, -1
        if error != OK:
            return error, -1
        if len(sending.rows) > self.most_records:
            return TOO_LARGE, -1
        return self.logs[at].take(sending.identity, len(sending.rows), sending.rows)  # type: ignore[arg-type]

    def process_late(self, place: int) -> None:
        requests = self.late[place % len(self.late)]
        if requests:
            for sending in requests.popleft():
                if sending.tp in self.logs:
                    self._handled(self.leaders[sending.tp], sending, OK)

    def answer(self, broker: int) -> None:
        line = self.lines[broker]
        assert line is not None
        send, answers = line.answers.popleft()
        self.late.clear()
        self.core.answered(send, answers, self.now, moved=())
        self.carry_out()

    def leader_moves(self, at: TopicPartition) -> None:
        self.leaders[at] = self.chance.choice(list(self.brokers))
        self.late.clear()

    def shrink(self, most_records: int) -> None:
        """Brokers take batches of this size from now on. All copies of a batch that is on its way meet one limit."""
        self.late.clear()
        self.most_records = most_records

    def create_ghost(self) -> None:
        if GHOST not in self.partitions:
            self.partitions[GHOST] = 1
            self._create(GHOST)

    def grow(self) -> None:
        """Topic a gets another partition."""
        if self.partitions["a"] < 4:
            at = TopicPartition("a", self.partitions["a"])
            self.partitions["a"] += 1
            self.leaders[at] = self.chance.choice(list(self.brokers))
            self.logs[at] = SimulatedBroker()

    # What takes long

    def look_up(self, place: int, *, succeed: bool) -> None:
        lookup = self.lookups.pop(place % len(self.lookups))
        error = None if succeed else ConnectionLost(Address("b", 1), "nobody is there")
        self.core.topics.metadata_result(LookupResult(lookup, self.metadata(lookup) if succeed else None, error), self.now)
        self.carry_out()

    def metadata(self, lookup: Lookup) -> Metadata:
        found = {}
        for name in lookup.topics:
            count = self.partitions.get(name, 0)
            listed = tuple(Partition(index, self.leaders[TopicPartition(name, index)]) for index in range(count))
            error = ErrorCode.none if count else ErrorCode.unknown_topic_or_partition
            found[name] = TopicMetadata(name, partitions=listed, error=error)
        return Metadata(brokers=MappingProxyType(self.brokers), topics=MappingProxyType(found))

    def finish(self, place: int, *, succeed: bool) -> None:
        effect = self.waiting.pop(place % len(self.waiting))
        match effect:
            case Identify():
                if succeed:
                    self.core.identified(next(self._ids))
                else:
                    self.core.not_identified(OttlaError("no id"), self.now)
            case ReadTail(topic, lane, search, wanted):
                if succeed:
                    found = self.logs[lane.tp].find(search.floor, set(wanted))
                    self.core.tail_read(topic, lane, found)
                else:
                    self.core.tail_not_read(lane, OttlaError("not read"), self.now)
            case Join():
                assert self.gate is not None
                if succeed:
                    if effect.number == self.transaction:
                        self.joined |= effect.partitions
                    self.core.joined(effect)
                else:
                    self.core.not_joined(effect, REFUSED)
        self.carry_out()

    # The end

    def heal(self) -> None:
        """Nothing goes wrong any more: everything has its outcome after a bounded number of steps."""
        if self.disk is not None:
            self.disk.refuses = False
        self.hurry()
        young = [row for row in self.asked if not Delivery(self.shipments[row[0]], row[1]).done]
        if any(self.opened[number] < self.now - 5.0 for number, _ in young):
            young = []  # what is in one batch with an old record has its deadline
        for _ in range(400):
            if self.core.is_idle and not self.core.effects:
                self._check_in_time(young)
                return
            self.pass_time(0.3)
            self.turn()
            while self.lookups:
                self.look_up(0, succeed=True)
            while self.waiting:
                self.finish(0, succeed=True)
            for broker in list(self.connecting):
                self.connect(broker)
            for broker in self.up():
                line = self.lines[broker]
                while line is not None and line.requests:
                    self.process(broker)
                while line is not None and line.answers:
                    self.answer(broker)
            self.sweep()
        raise AssertionError(f"does not come to an end: {self.core.topics.lanes}, {self.core.topics.waiting_error()}")

    def _check_in_time(self, rows: list[Row]) -> None:
        """What was handed over a moment before everything was well again has not run out of time."""
        for number, row in rows:
            delivery = Delivery(self.shipments[number], row)
            assert delivery.done, f"{number, row} was forgotten"
            error = delivery.exception(0)
            assert error is None or " within " not in str(error), f"{number, row} was stuck: {error}"

    def check_promises(self) -> None:
        assert self.core.account.held_bytes == 0, "memory is counted that nothing takes"
        stored: dict[Row, tuple[TopicPartition, int]] = {}
        for at, log in self.logs.items():
            in_log: list[Row] = []
            for entry in log.log:
                rows: Any = entry.content
                for place, row in enumerate(rows):
                    assert row not in stored, f"{row} is in the log twice"
                    stored[row] = at, entry.offset + place
                in_log += rows
            self._check_order(at, in_log)
        for (number, row), partition in self.asked.items():
            delivery = Delivery(self.shipments[number], row)
            assert delivery.done, f"{number, row} was forgotten"
            error = delivery.exception(0)
            found = stored.get((number, row))
            if error is None:
                sent = delivery.result(0)
                assert found == (TopicPartition(sent.topic, sent.partition), sent.offset), f"{number, row} is {found}"
                assert partition is None or sent.partition == partition
            elif not error.maybe_written:
                assert found is None, f"{number, row} was told as not written: {error}"

    def _is_delivered(self, row: Row) -> bool:
        delivery = Delivery(self.shipments[row[0]], row[1])
        return delivery.done and delivery.exception(0) is None

    def _check_order(self, at: TopicPartition, in_log: list[Row]) -> None:
        """What was acknowledged is in the order in which it was handed over."""
        told = [row for row in in_log if self._is_delivered(row)]
        assert all(before < after for before, after in pairwise(told)), f"out of order in {at}: {told}"
