"""The core of a producer in a faulty world: simulated brokers, network, metadata, disk and coordinator.

The core's effects are carried out here late, out of order, or not at all, as a history decides. The brokers check
sequence numbers like Kafka does (`lane_world.SimulatedBroker`). `check_promises` finds out whether a record was lost,
duplicated, reordered, reported wrongly or forgotten.
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
from ottla.produce.core import Core
from ottla.produce.delivery import Delivery, Shipment
from ottla.produce.effects import Connect, Effect, Identify, ReadTail, Replace, Send, Store
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
"""In a batch, until a broker rejects that as too large."""
GHOST = "ghost"
"""A topic that does not exist at first."""
REFUSED = OttlaError("the coordinator refused")


class Sending(NamedTuple):
    """A batch in a request, in its state when it was sent."""

    tp: TopicPartition
    batch: Outgoing
    identity: Identity
    rows: tuple[Row, ...]


@dataclass
class Connection:
    """The connection to one broker: requests in flight, and answers."""

    requests: deque[tuple[Send, list[Sending]]] = field(default_factory=deque)
    answers: deque[tuple[Send, dict[TopicPartition, Produced]]] = field(default_factory=deque)

    @property
    def sends(self) -> list[Send]:
        return [*(send for send, _ in self.answers), *(send for send, _ in self.requests)]


@dataclass
class Disk:
    """A spool, as the core sees it."""

    refuses: bool = False
    damaged: set[Outgoing] = field(default_factory=set)
    identities: dict[Outgoing, Identity | None] = field(default_factory=dict)
    tickets: Any = field(default_factory=lambda: numbers(1))


class _SleepingLoop:
    """What a caller finds of the loop while it sleeps: links to brokers, and a way to send on them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.links = self
        self.wakeup = self
        self.is_interrupted = False
        """Whether the caller is interrupted before it sends what it has claimed."""
        self.wakes: Offer | None = None
        """An offer that the loop takes back while a caller looks at it."""

    def find(self, broker: int) -> _SleepingLoop | None:
        if self.wakes is not None:
            assert self.wakes.claim(None)
        connection = self.world.connections.get(broker)
        self.broker = self.world.brokers.get(broker)
        return None if connection is None or len(connection.sends) >= 5 else self

    has_room = True
    unsent_bytes = 0
    is_encrypted = False

    @property
    def connection(self) -> _SleepingLoop:
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
        refresh = MetadataRefresh(retry, self.chance, longest=10.0, refresh_seconds=300.0)
        self.core = Core(refresh, retry=retry, chance=self.chance, spooling=spooling, gate=self.gate)
        self.failures = Failures(events=Events())
        self.disk = Disk() if spooling else None
        self.brokers = {number: Broker(number, f"b{number}", 9092) for number in (1, 2)}
        self.partitions = {"a": 2, "b": 1}
        self.leaders: dict[TopicPartition, int] = {}
        self.logs: dict[TopicPartition, SimulatedBroker] = {}
        for topic in self.partitions:
            self._create(topic)
        self.most_records = MOST_RECORDS
        """In one batch, before brokers reject it as too large."""
        self.connections: dict[int, Connection | None] = dict.fromkeys(self.brokers)
        self.late: list[deque[list[Sending]]] = []
        self.connecting: set[int] = set()
        self.lookups: list[Lookup] = []
        self.waiting: list[Identify | ReadTail | Join] = []
        """Background work of the sender."""
        self.joined: set[TopicPartition] = set()
        self.transaction = 0
        self._ids = numbers(7)
        self._handovers = numbers()
        self.shipments: dict[int, Shipment] = {}
        self.numbers: dict[Shipment, int] = {}
        self.opened: dict[int, float] = {}
        self.explicit_partitions: dict[Row, int | None] = {}
        self._rows: dict[Outgoing, tuple[Row, ...]] = {}
        self.reports: Counter[str] = Counter()
        self.sent: Counter[Row] = Counter()
        self._sleeping_loop = _SleepingLoop(self)
        sleeping_loop: Any = self._sleeping_loop
        self._fast_path = FastPath(self.core, sleeping_loop, sleeping_loop, request_seconds=1.0)
        self.sent_by_callers = 0
        if transactional:
            self.begin_transaction()

    def _create(self, topic: str) -> None:
        for partition in range(self.partitions[topic]):
            tp = TopicPartition(topic, partition)
            self.leaders[tp] = self.chance.choice(list(self.brokers))
            self.logs[tp] = SimulatedBroker()

    # The program

    def send_by_caller(self, topic: str, *, key: bytes | None, is_interrupted: bool, wakes_in_between: bool) -> None:
        """A caller sends a record itself if it can. An interrupt, or the loop, may come in the middle of it."""
        self._fast_path.offer = offer = Offer()
        self._sleeping_loop.is_interrupted = is_interrupted
        self._sleeping_loop.wakes = offer if wakes_in_between else None
        delivery = None
        try:
            delivery = self._fast_path.send(topic, b"value", key)
        except KeyboardInterrupt:
            pass
        assert delivery is None or not wakes_in_between, "the loop is awake and acts as if nothing was sent"
        record = offer.claims[0] if offer.claims else None
        self._fast_path.offer = None
        if record is None:
            assert delivery is None
            return
        self.sent_by_callers += 1
        # The loop wakes up.
        self.core.sent_by_caller(record.send, self.now)
        self.carry_out()
        if not record.is_started:
            self.core.lost(record.send, ConnectionLost(Address("b", 1), "interrupted"), self.now)
            self.carry_out()

    def name(self, shipment: Shipment) -> None:
        """Number a record that its caller sends itself, like handovers."""
        number = next(self._handovers)
        self.shipments[number], self.numbers[shipment], self.opened[number] = shipment, number, self.now
        self.explicit_partitions[number, 0] = None

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
            self.explicit_partitions[number, row] = partition
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
        self.core.expiry.fail_all(NotDelivered("the transaction was aborted"))
        self.carry_out()

    def begin_transaction(self) -> None:
        """End the previous transaction: everything in it has its outcome, and nothing is in flight."""
        assert self.gate is not None
        self.gate.sending = False
        self.fail_all()
        if self.core.in_flight or self.gate.joining:
            return
        self.late.clear()  # the coordinator has ended the previous one: its late requests are refused
        self.transaction += 1
        identity = PreparedTransaction("tx", next(self._ids), 0)
        self.core.start_over(identity.producer_id, identity.epoch)
        self.joined.clear()
        self.gate.begin(self.transaction, identity)

    # Time

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def sweep(self) -> None:
        """What the sender does every tenth of a second."""
        self.core.expiry.expire(self.now)
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
        self.core.expiry.drop_unsent(size_bytes)
        dropped = [effect.batch for effect in self.core.effects if isinstance(effect, Settle)]
        assert not any(batch.attempts for batch in dropped), "only what was never sent"
        self.carry_out()

    def drop_stored(self, size_bytes: int) -> None:
        self.core.expiry.drop_stored(size_bytes)
        self.carry_out()

    def keep(self) -> None:
        """Write to disk what has waited for long."""
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
                if self.connections[broker] is None:
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
        connection = self.connections[send.broker]
        sendings = []
        for tp, (_, _, batch) in send.carried.items():
            header = batch.header
            assert header is not None
            assert batch.records is not None
            identity = Identity(header.producer_id, header.producer_epoch, header.base_sequence)
            assert identity == batch.identity
            assert not batch.decided, "a batch with an outcome is not sent"
            if self.disk is not None:
                assert self.disk.identities.get(batch) == identity, "it is on disk under the number it is sent with"
            if self.gate is not None:
                assert self.gate.sending, "nothing leaves while no transaction is open"
                assert tp in self.joined, f"the coordinator does not know {tp}"
                assert header.is_transactional
            rows = self._rows_of(batch)
            self.sent.update(rows)
            sendings.append(Sending(tp, batch, identity, rows))
        if connection is None:
            self.core.lost(send, ConnectionLost(Address("b", 1), "it has just ended"), self.now)
        else:
            assert len(connection.sends) < 5
            connection.requests.append((send, sendings))

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
        rows = self._rows.get(batch)
        if rows is None:
            if batch.parent is not None:
                whole, first = batch.parent
                rows = self._rows_of(whole)[first : first + batch.count]
            else:
                rows = tuple(
                    (self.numbers[shipment], int(row))
                    for shipment in dict.fromkeys(share.shipment for share in batch.shipments)
                    for placement in shipment.placements
                    if placement.carrier is batch
                    for row in placement.rows
                )
            if batch.sealed or batch.decided:
                self._rows[batch] = rows
        return rows

    # The network and the brokers

    def up(self) -> list[int]:
        return [broker for broker, connection in self.connections.items() if connection is not None]

    def connect(self, broker: int) -> None:
        self.connecting.discard(broker)
        self.connections[broker] = Connection()
        self.core.link_changed(broker, is_up=True, away_since=None, error=None)
        self.carry_out()

    def not_connected(self, broker: int) -> None:
        self.connecting.discard(broker)
        error = ConnectionLost(self.brokers[broker].address, "refused")
        self.core.link_changed(broker, is_up=False, away_since=self.now, error=error)
        self.carry_out()

    def lose(self, broker: int, kept: int) -> None:
        """The connection ends: answers are lost, and some of its requests may still be processed later."""
        connection, self.connections[broker] = self.connections[broker], None
        assert connection is not None
        self.late.append(deque([sendings for _, sendings in connection.requests][:kept]))
        error = ConnectionLost(self.brokers[broker].address, "lost")
        for send in connection.sends:
            self.core.lost(send, error, self.now)
            self.carry_out()
        self.core.link_changed(broker, is_up=False, away_since=self.now, error=error)
        self.carry_out()

    def idle_out(self, broker: int) -> None:
        """The broker closes an idle connection."""
        connection = self.connections[broker]
        if connection is not None and not connection.sends:
            self.connections[broker] = None
            self.core.link_changed(broker, is_up=False, away_since=None, error=None)
            self.carry_out()

    def process(self, broker: int, error: int = OK) -> None:
        """The broker processes the next request, and answers each batch with `error` unless that is OK."""
        connection = self.connections[broker]
        assert connection is not None
        send, sendings = connection.requests.popleft()
        answers = {}
        for sending in sendings:
            code, offset = self._handled(broker, sending, error)
            answers[sending.tp] = Produced(*sending.tp, code, offset, -1, -1, None, (), None)
        connection.answers.append((send, answers))

    def _handled(self, broker: int, sending: Sending, error: int) -> tuple[int, int]:
        tp = sending.tp
        if tp not in self.logs:
            return int(ErrorCode.unknown_topic_or_partition), -1
        if self.leaders[tp] != broker:
            return NOT_LEADER, -1
        if error != OK:
            return error, -1
        if len(sending.rows) > self.most_records:
            return TOO_LARGE, -1
        return self.logs[tp].take(sending.identity, len(sending.rows), sending.rows)  # type: ignore[arg-type]

    def process_late(self, place: int) -> None:
        requests = self.late[place % len(self.late)]
        if requests:
            for sending in requests.popleft():
                if sending.tp in self.logs:
                    self._handled(self.leaders[sending.tp], sending, OK)

    def answer(self, broker: int) -> None:
        connection = self.connections[broker]
        assert connection is not None
        send, answers = connection.answers.popleft()
        self.late.clear()
        self.core.answered(send, answers, self.now, moved=())
        self.carry_out()

    def leader_moves(self, tp: TopicPartition) -> None:
        self.leaders[tp] = self.chance.choice(list(self.brokers))
        self.late.clear()

    def shrink(self, most_records: int) -> None:
        """Brokers accept batches of this size from now on. All copies of an in-flight batch meet the same limit."""
        self.late.clear()
        self.most_records = most_records

    def create_ghost(self) -> None:
        if GHOST not in self.partitions:
            self.partitions[GHOST] = 1
            self._create(GHOST)

    def grow(self) -> None:
        """Add a partition to topic a."""
        if self.partitions["a"] < 4:
            tp = TopicPartition("a", self.partitions["a"])
            self.partitions["a"] += 1
            self.leaders[tp] = self.chance.choice(list(self.brokers))
            self.logs[tp] = SimulatedBroker()

    # Background work

    def look_up(self, place: int, *, succeed: bool) -> None:
        lookup = self.lookups.pop(place % len(self.lookups))
        error = None if succeed else ConnectionLost(Address("b", 1), "connection refused")
        self.core.topics.metadata_result(
            LookupResult(lookup, self.metadata(lookup) if succeed else None, error), self.now
        )
        self.carry_out()

    def metadata(self, lookup: Lookup) -> Metadata:
        topics = {}
        for name in lookup.topics:
            count = self.partitions.get(name, 0)
            partitions = tuple(Partition(index, self.leaders[TopicPartition(name, index)]) for index in range(count))
            error = ErrorCode.none if count else ErrorCode.unknown_topic_or_partition
            topics[name] = TopicMetadata(name, partitions=partitions, error=error)
        return Metadata(brokers=MappingProxyType(self.brokers), topics=MappingProxyType(topics))

    def finish(self, place: int, *, succeed: bool) -> None:
        effect = self.waiting.pop(place % len(self.waiting))
        match effect:
            case Identify():
                if succeed:
                    self.core.identified(next(self._ids))
                else:
                    self.core.not_identified(OttlaError("no id"), self.now)
            case ReadTail(topic, lane, search, counts):
                if succeed:
                    offsets = self.logs[lane.tp].find(search.floor, set(counts))
                    self.core.tail_read(topic, lane, offsets)
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
        """Stop all faults: everything gets its outcome in a bounded number of steps."""
        if self.disk is not None:
            self.disk.refuses = False
        self.hurry()
        young = [row for row in self.explicit_partitions if not Delivery(self.shipments[row[0]], row[1]).done]
        if any(self.opened[number] < self.now - 5.0 for number, _ in young):
            young = []  # a record in one batch with an old one has the old one's deadline
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
                connection = self.connections[broker]
                while connection is not None and connection.requests:
                    self.process(broker)
                while connection is not None and connection.answers:
                    self.answer(broker)
            self.sweep()
        raise AssertionError(f"does not finish: {self.core.topics.lanes}, {self.core.topics.waiting_error()}")

    def _check_in_time(self, rows: list[Row]) -> None:
        """Records handed over just before everything was healed did not run out of time."""
        for number, row in rows:
            delivery = Delivery(self.shipments[number], row)
            assert delivery.done, f"{number, row} was forgotten"
            error = delivery.exception(0)
            assert error is None or " within " not in str(error), f"{number, row} was stuck: {error}"

    def check_promises(self) -> None:
        assert self.core.account.held_bytes == 0, "memory is charged that nothing uses"
        stored: dict[Row, tuple[TopicPartition, int]] = {}
        for tp, log in self.logs.items():
            in_log: list[Row] = []
            for entry in log.log:
                rows: Any = entry.content
                for index, row in enumerate(rows):
                    assert row not in stored, f"{row} is in the log twice"
                    stored[row] = tp, entry.offset + index
                in_log += rows
            self._check_order(tp, in_log)
        for (number, row), partition in self.explicit_partitions.items():
            delivery = Delivery(self.shipments[number], row)
            assert delivery.done, f"{number, row} was forgotten"
            error = delivery.exception(0)
            place_in_log = stored.get((number, row))
            if error is None:
                sent = delivery.result(0)
                assert place_in_log == (TopicPartition(sent.topic, sent.partition), sent.offset), (
                    f"{number, row} is {place_in_log}"
                )
                assert partition is None or sent.partition == partition
            elif not error.maybe_written:
                assert place_in_log is None, f"{number, row} was reported as not written: {error}"

    def _is_delivered(self, row: Row) -> bool:
        delivery = Delivery(self.shipments[row[0]], row[1])
        return delivery.done and delivery.exception(0) is None

    def _check_order(self, tp: TopicPartition, in_log: list[Row]) -> None:
        """Acknowledged records are in the order in which they were handed over."""
        delivered = [row for row in in_log if self._is_delivered(row)]
        assert all(before < after for before, after in pairwise(delivered)), f"out of order in {tp}: {delivered}"
