"""A lane in a faulty world: a simulated broker, a simulated network, and a driver.

The broker checks sequence numbers like Kafka does. The network loses requests and answers and delivers some late. The
driver treats the lane like the core does. A history decides what happens when; `check_promises` finds out whether
anything was lost, duplicated or reordered.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count as numbers
from itertools import pairwise
from typing import NamedTuple

from ottla.errors import ErrorCode
from ottla.model import TopicPartition
from ottla.produce.lane import MOST_IN_FLIGHT, Lane, Verdict, verdict_on
from ottla.produce.outgoing import Identity, Outgoing
from ottla.wire.columns import from_list
from ottla.wire.encode import NewBatch, encode

REMEMBERED = 5
SEQUENCES = 1 << 31
OK = int(ErrorCode.none)
OUT_OF_ORDER = int(ErrorCode.out_of_order_sequence_number)
OLD_EPOCH = int(ErrorCode.invalid_producer_epoch)
NOT_LEADER = int(ErrorCode.not_leader_or_follower)
TOO_LARGE = int(ErrorCode.message_too_large)
INVALID = int(ErrorCode.invalid_record)
BEFORE_APPEND = (NOT_LEADER, int(ErrorCode.not_enough_replicas), int(ErrorCode.kafka_storage_error))
AFTER_APPEND = (int(ErrorCode.not_enough_replicas_after_append), int(ErrorCode.request_timed_out))
FOREIGN_EPOCHS = 1000

Content = tuple[int, ...]
"""The identity of a batch's content: the number of its `add`, then that of the part if it was split."""


def _template() -> NewBatch:
    return next(encode(from_list([b"x"]), now_ms=0))


TEMPLATE = _template()


class Remembered(NamedTuple):
    """What a broker remembers of one batch."""

    sequence: int
    records: int
    offset: int


@dataclass
class ProducerState:
    """What a partition knows of one producer id."""

    epoch: int
    last: deque[Remembered] = field(default_factory=lambda: deque(maxlen=REMEMBERED))


class Stored(NamedTuple):
    """A batch in the log."""

    offset: int
    identity: Identity
    content: Content


class SimulatedBroker:
    """One partition: checks producer id, epoch and sequence like Kafka's ProducerStateManager."""

    def __init__(self) -> None:
        self.log: list[Stored] = []
        self.end = 0
        self.producers: dict[int, ProducerState] = {}
        self.batch_of: dict[tuple[Identity, int], Content] = {}

    def take(self, identity: Identity, count: int, content: Content) -> tuple[int, int]:
        """Append a batch. Returns the error code and the offset."""
        producer_id, epoch, sequence = identity
        state = self.producers.get(producer_id)
        if state is not None:
            if epoch == state.epoch:
                for batch in state.last:
                    if (batch.sequence, batch.records) == (sequence, count):
                        # A broker compares numbers, not bytes: different bytes would be acknowledged and lost.
                        assert self.batch_of[identity, count] == content, f"{identity} is used for another batch"
                        return OK, batch.offset
            code = self._check_sequence(state, epoch, sequence)
            if code != OK:
                return code, -1
        return OK, self._append(identity, count, content)

    @staticmethod
    def _check_sequence(state: ProducerState, epoch: int, sequence: int) -> int:
        if epoch < state.epoch:
            return OLD_EPOCH
        newest = state.last[-1] if state.last else Remembered(0, 0, 0)
        expected = 0 if epoch > state.epoch else (newest.sequence + newest.records) % SEQUENCES
        return OK if sequence == expected else OUT_OF_ORDER

    def _append(self, identity: Identity, count: int, content: Content) -> int:
        offset, self.end = self.end, self.end + count
        self.log.append(Stored(offset, identity, content))
        self.batch_of[identity, count] = content
        state = self.producers.setdefault(identity.producer_id, ProducerState(identity.epoch))
        if state.epoch != identity.epoch:
            state.epoch = identity.epoch
            state.last.clear()
        state.last.append(Remembered(identity.sequence, count, offset))
        return offset

    def find(self, floor: int, identities: set[Identity]) -> dict[Identity, int]:
        """Like `tail.find`: search the end of the log from the floor on."""
        return {
            entry.identity: entry.offset for entry in self.log if entry.offset >= floor and entry.identity in identities
        }


@dataclass
class Sending:
    """A batch in a request, with its identity when it was sent."""

    batch: Outgoing
    identity: Identity
    count: int
    content: Content


@dataclass
class Wire:
    """One connection: requests in flight to the broker, answers in flight back."""

    number: int
    stale: bool = False
    """Whether it leads to a broker that is no longer the leader."""
    requests: deque[Sending] = field(default_factory=deque)
    answers: deque[tuple[Sending, int, int]] = field(default_factory=deque)


class World:
    """Lane, driver, network and broker. Each method is something that may happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lane = Lane(TopicPartition("t", 0))
        self.broker = SimulatedBroker()
        self.wires: list[Wire] = []
        self.late: list[deque[Sending]] = []
        self._made = numbers()
        self._ids = numbers(7)
        self._wires = numbers()
        self.content: dict[Outgoing, Content] = {}
        self.kind: dict[Outgoing, int] = {}
        """How the broker answers a batch: OK, TOO_LARGE until it is split, INVALID."""
        self.acknowledged: dict[Content, int] = {}
        self.given_up: set[Content] = set()
        self.refused: set[Content] = set()
        self.offsets_found: dict[Identity, int] | None = None
        self.reconnect()

    # The program

    def add(self, count: int, kind: int = OK) -> None:
        self.lane.add(self._new((next(self._made),), count, kind))

    def _new(self, content: Content, count: int, kind: int) -> Outgoing:
        batch = Outgoing("t", 0, opened=self.now, created=self.now)
        header = TEMPLATE.header._replace(count=count, last_offset_delta=count - 1)
        batch.seal(header, TEMPLATE.records)
        self.content[batch], self.kind[batch] = content, kind
        return batch

    def inherit(self, counts: list[int], *, stored: int, kept: int, expired: bool) -> None:
        """A dead process's spool: the first `stored` of its batches are in the log, those from `kept` on are on
        disk."""
        sequence = 0
        for index, count in enumerate(counts):
            identity = Identity(1, 0, sequence)
            sequence += count
            batch = self._new((next(self._made),), count, OK)
            if index < stored:
                assert self.broker.take(identity, count, self.content[batch])[0] == OK
            if index >= kept:
                batch.stamp(identity)
                batch.inherited = True
                self.lane.add(batch)
        if expired:
            self.broker.producers.clear()
        self.lane.must_check = bool(self.lane.queue)

    # The sender

    def can_send(self) -> bool:
        return self.lane.sendable(self.now) is not None

    def send(self) -> None:
        batch = self._numbered()
        if batch is None:
            return
        self.lane.sent(batch, self.now)
        header = batch.header
        assert header is not None
        identity = Identity(header.producer_id, header.producer_epoch, header.base_sequence)
        assert identity == batch.identity
        self.wires[-1].requests.append(Sending(batch, identity, batch.count, self.content[batch]))
        assert sum(len(wire.requests) + len(wire.answers) for wire in self.wires) <= MOST_IN_FLIGHT

    def number_only(self) -> None:
        """A disk that refuses: the batch gets its number and is not sent yet."""
        self._numbered()

    def number_all(self) -> None:
        """Waiting batches are written to disk under the numbers they will be sent with."""
        self._identify()
        for batch in self.lane.queue:
            self.lane.number(batch)

    def _identify(self) -> None:
        if self.lane.needs_identity:
            producer_id = next(self._ids)
            assert self.lane.may_adopt(producer_id)
            self.lane.adopt(producer_id)

    def _numbered(self) -> Outgoing | None:
        self._identify()
        batch = self.lane.sendable(self.now)
        if batch is not None:
            self.lane.number(batch)
        return batch

    def give_up(self, place: int) -> None:
        batch = self.lane.queue[place % len(self.lane.queue)]
        self.lane.given_up(batch)
        self._decide(batch, self.given_up)

    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def start_check(self) -> None:
        self.lane.checking = True
        self.offsets_found = None

    def read_log(self) -> None:
        identities = {batch.identity for batch in self.lane.queue if batch.identity is not None}
        self.offsets_found = self.broker.find(self.lane.floor, identities)

    def finish_check(self) -> None:
        assert self.offsets_found is not None
        front = self.lane.queue[0] if self.lane.queue else None
        first_try = self.lane.is_stale or (front is not None and front.inherited and front.attempts == 0)
        for batch, offset in self.lane.check_done(self.offsets_found):
            self._acknowledged(batch, offset)
        self.offsets_found = None
        if not first_try:
            self.lane.renumber()

    def fail_check(self) -> None:
        self.lane.checking = False
        self.offsets_found = None

    # The broker

    def process(self, place: int, error: int = OK) -> None:
        """A broker processes the next request of a connection, and answers with `error` unless that is OK."""
        wire = self.wires[place % len(self.wires)]
        sending = wire.requests.popleft()
        wire.answers.append((sending, *self._handled(sending, NOT_LEADER if wire.stale else error)))

    def _handled(self, sending: Sending, error: int) -> tuple[int, int]:
        if error in BEFORE_APPEND:
            return error, -1
        if self.kind[sending.batch] != OK:
            return self.kind[sending.batch], -1
        code, offset = self.broker.take(sending.identity, sending.count, sending.content)
        return (error, -1) if code == OK and error in AFTER_APPEND else (code, offset)

    def leader_moves(self) -> None:
        """Another broker becomes leader, with the same log and the same memory of producers."""
        for wire in self.wires:
            wire.stale = True
        self.late.clear()

    def expire_ids(self) -> None:
        """A day passes without a batch. Everything in flight is long decided."""
        self.pass_time(86_400.0)
        self.late.clear()
        self.broker.producers.clear()

    def foreign_use(self) -> None:
        """Another client uses our producer id, with a newer epoch."""
        for state in self.broker.producers.values():
            state.epoch += FOREIGN_EPOCHS
            state.last.clear()

    # The network

    def reconnect(self) -> None:
        self.wires.append(Wire(next(self._wires)))

    def answer(self, place: int) -> None:
        """The next answer of a connection arrives."""
        wire = self.wires[place % len(self.wires)]
        sending, code, offset = wire.answers.popleft()
        if wire is self.wires[-1]:
            self.late.clear()
        self._interpret(sending.batch, code, offset)
        if wire.stale and wire is self.wires[-1]:
            self.reconnect()
        self._drop_idle_wires()

    def lose(self, place: int, kept: int) -> None:
        """A connection ends: answers are lost, and the first `kept` of its requests may still be processed later."""
        wire = self.wires.pop(place % len(self.wires))
        if not wire.stale:
            self.late.append(deque(list(wire.requests)[:kept]))
        if not self.wires:
            self.reconnect()
        for sending in [*(answered for answered, _, _ in wire.answers), *wire.requests]:
            self._retry(sending.batch)

    def process_late(self, place: int) -> None:
        requests = self.late[place % len(self.late)]
        if requests:
            self._handled(requests.popleft(), OK)

    def _drop_idle_wires(self) -> None:
        self.wires = [wire for wire in self.wires[:-1] if wire.requests or wire.answers] + self.wires[-1:]

    # What the core makes of answers

    def _interpret(self, batch: Outgoing, code: int, offset: int) -> None:
        if batch.decided:
            self.lane.forgotten(batch)
        elif code == OK:
            self.lane.acknowledged(batch, offset)
            self._acknowledged(batch, offset)
        else:
            self._refused(batch, code)

    def _refused(self, batch: Outgoing, code: int) -> None:
        verdict = verdict_on(code, records=batch.count)
        if verdict is Verdict.RETRY:
            self._retry(batch)
        elif verdict is Verdict.CHECK:
            self.lane.misnumbered(batch)
            if code == OLD_EPOCH:
                self.lane.disown()
        elif verdict is Verdict.SPLIT:
            self._split(batch)
        else:
            self.lane.refused(batch)
            self._decide(batch, self.refused)

    def _split(self, batch: Outgoing) -> None:
        content, half = self.content[batch], batch.count // 2
        self.lane.replaced(
            batch, [self._new((*content, 0), half, OK), self._new((*content, 1), batch.count - half, OK)]
        )

    def _retry(self, batch: Outgoing) -> None:
        if batch.decided:
            self.lane.forgotten(batch)
        else:
            self.lane.retry(batch, resume_at=self.now + 0.1)

    def _acknowledged(self, batch: Outgoing, offset: int) -> None:
        content = self.content[batch]
        assert content not in self.acknowledged
        self.acknowledged[content] = offset
        batch.outcomes = (None,)  # type: ignore[assignment]  # decided

    def _decide(self, batch: Outgoing, outcomes: set[Content]) -> None:
        outcomes.add(self.content[batch])
        batch.outcomes = (None,)  # type: ignore[assignment]

    # The end

    def heal(self) -> None:
        """Stop all faults: everything is delivered in a bounded number of steps."""
        for _ in range(500):
            if self.lane.is_idle:
                return
            self.pass_time(0.2)
            self.can_send()  # a lane that was silent for long notices here that it must check the log
            if self.lane.ready_to_check or self.lane.checking:
                self.start_check()
                self.read_log()
                self.finish_check()
            while self.can_send():
                self.send()
            for place, wire in reversed(list(enumerate(self.wires))):
                while wire.requests:
                    self.process(place)
            for wire in list(self.wires):
                while wire.answers:
                    self.answer(self.wires.index(wire))
        raise AssertionError(f"does not finish: {list(self.lane.queue)}")

    def check_promises(self) -> None:
        stored = {entry.content: entry.offset for entry in self.broker.log}
        duplicates = [
            content for content, times in Counter(entry.content for entry in self.broker.log).items() if times > 1
        ]
        assert not duplicates, f"twice in the log: {duplicates}"
        for content, offset in self.acknowledged.items():
            assert stored.get(content) == offset, f"{content} was reported at {offset}: {stored.get(content)}"
        assert not self.refused & stored.keys()
        in_log = [entry.content for entry in self.broker.log if entry.content in self.acknowledged]
        assert all(earlier < later for earlier, later in pairwise(in_log)), f"out of order: {in_log}"
        decided = {content for batch, content in self.content.items() if batch.decided}
        assert decided == self.acknowledged.keys() | self.given_up | self.refused
        assert not self.lane.queue
