"""A lane in a world that goes wrong: a simulated broker, a simulated network, and a driver.

The broker judges numbers as Kafka does, the network loses requests and answers and brings some late, and the driver
does with the lane what the courier does. Whoever plays with it decides what happens when; `check_promises` says
whether anything was lost, doubled or reordered.
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
"""What is in a batch: the number of its `add`, then that of the part where it was cut."""


def _template() -> NewBatch:
    return next(encode(from_list([b"x"]), now_ms=0))


TEMPLATE = _template()


class Remembered(NamedTuple):
    """A broker's memory of one batch."""

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
    """One partition: judges producer id, epoch and sequence as Kafka's ProducerStateManager does."""

    def __init__(self) -> None:
        self.log: list[Stored] = []
        self.end = 0
        self.producers: dict[int, ProducerState] = {}
        self.batch_of: dict[tuple[Identity, int], Content] = {}

    def take(self, identity: Identity, count: int, content: Content) -> tuple[int, int]:
        """The code and offset of the answer."""
        producer_id, epoch, sequence = identity
        known = self.producers.get(producer_id)
        if known is not None:
            if epoch == known.epoch:
                for batch in known.last:
                    if (batch.sequence, batch.records) == (sequence, count):
                        # A broker compares numbers, not bytes: other bytes would be acknowledged and lost.
                        assert self.batch_of[identity, count] == content, f"{identity} is used for another batch"
                        return OK, batch.offset
            code = self._judged(known, epoch, sequence)
            if code != OK:
                return code, -1
        return OK, self._append(identity, count, content)

    @staticmethod
    def _judged(known: ProducerState, epoch: int, sequence: int) -> int:
        if epoch < known.epoch:
            return OLD_EPOCH
        newest = known.last[-1] if known.last else Remembered(0, 0, 0)
        expected = 0 if epoch > known.epoch else (newest.sequence + newest.records) % SEQUENCES
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

    def find(self, floor: int, wanted: set[Identity]) -> dict[Identity, int]:
        """As `tail.find` does: the end of the log from the floor on."""
        return {s.identity: s.offset for s in self.log if s.offset >= floor and s.identity in wanted}


@dataclass
class Sending:
    """A batch in a request; the number is that of its bytes when it was sent."""

    batch: Outgoing
    identity: Identity
    count: int
    content: Content


@dataclass
class Wire:
    """One connection: requests on their way to the broker, answers on their way back."""

    number: int
    stale: bool = False
    """It leads to a broker that leads no more."""
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
        """How the broker takes a batch: OK, TOO_LARGE until it is cut, INVALID."""
        self.told: dict[Content, int] = {}
        self.given_up: set[Content] = set()
        self.refused: set[Content] = set()
        self.found: dict[Identity, int] | None = None
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
        """A dead program's spool: the first `stored` of its batches are in the log, those from `kept` on on disk."""
        sequence = 0
        for place, count in enumerate(counts):
            identity = Identity(1, 0, sequence)
            sequence += count
            batch = self._new((next(self._made),), count, OK)
            if place < stored:
                assert self.broker.take(identity, count, self.content[batch])[0] == OK
            if place >= kept:
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
        """A disk that refuses: the batch has its number and is not sent yet."""
        self._numbered()

    def number_all(self) -> None:
        """What waits is put on disk under the numbers that it will be sent with."""
        self._identify()
        for batch in self.lane.queue:
            self.lane.number(batch)

    def _identify(self) -> None:
        if self.lane.needs_identity:
            fresh = next(self._ids)
            assert self.lane.may_adopt(fresh)
            self.lane.adopt(fresh)

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
        self.found = None

    def read_log(self) -> None:
        wanted = {batch.identity for batch in self.lane.queue if batch.identity is not None}
        self.found = self.broker.find(self.lane.floor, wanted)

    def finish_check(self) -> None:
        assert self.found is not None
        front = self.lane.queue[0] if self.lane.queue else None
        first_try = self.lane.is_stale or (front is not None and front.inherited and front.attempts == 0)
        for batch, offset in self.lane.check_done(self.found):
            self._acknowledged(batch, offset)
        self.found = None
        if not first_try:
            self.lane.renumber()

    def fail_check(self) -> None:
        self.lane.checking = False
        self.found = None

    # The broker

    def process(self, place: int, error: int = OK) -> None:
        """A broker works on the next request of a connection, and answers with `error` if it is one."""
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
        """Another broker leads, with the same log and the same memory of producers."""
        for wire in self.wires:
            wire.stale = True
        self.late.clear()

    def expire_ids(self) -> None:
        """A day passes in which nobody sends; what was under way is long decided."""
        self.pass_time(86_400.0)
        self.late.clear()
        self.broker.producers.clear()

    def foreign_use(self) -> None:
        """Somebody else uses our producer id, with a newer epoch."""
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
        self._forget_quiet_wires()

    def lose(self, place: int, kept: int) -> None:
        """A connection ends: answers are lost, the first `kept` of its requests may still be worked on, later."""
        wire = self.wires.pop(place % len(self.wires))
        if not wire.stale:
            self.late.append(deque(list(wire.requests)[:kept]))
        if not self.wires:
            self.reconnect()
        for sending in [*(answered for answered, _, _ in wire.answers), *wire.requests]:
            self._again(sending.batch)

    def process_late(self, place: int) -> None:
        requests = self.late[place % len(self.late)]
        if requests:
            self._handled(requests.popleft(), OK)

    def _forget_quiet_wires(self) -> None:
        self.wires = [w for w in self.wires[:-1] if w.requests or w.answers] + self.wires[-1:]

    # What the courier makes of answers

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
            self._again(batch)
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

    def _again(self, batch: Outgoing) -> None:
        if batch.decided:
            self.lane.forgotten(batch)
        else:
            self.lane.retry(batch, resume_at=self.now + 0.1)

    def _acknowledged(self, batch: Outgoing, offset: int) -> None:
        content = self.content[batch]
        assert content not in self.told
        self.told[content] = offset
        batch.outcomes = (None,)  # type: ignore[assignment]  # decided

    def _decide(self, batch: Outgoing, how: set[Content]) -> None:
        how.add(self.content[batch])
        batch.outcomes = (None,)  # type: ignore[assignment]

    # The end

    def heal(self) -> None:
        """Nothing goes wrong any more: everything is delivered, in a bounded number of steps."""
        for _ in range(500):
            if self.lane.is_idle:
                return
            self.pass_time(0.2)
            self.can_send()  # a lane that was silent for long finds out here that it must look into the log
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
        raise AssertionError(f"does not come to an end: {list(self.lane.queue)}")

    def check_promises(self) -> None:
        stored = {entry.content: entry.offset for entry in self.broker.log}
        twice = [content for content, times in Counter(e.content for e in self.broker.log).items() if times > 1]
        assert not twice, f"twice in the log: {twice}"
        for content, offset in self.told.items():
            assert stored.get(content) == offset, f"{content} was told to be at {offset}: {stored.get(content)}"
        assert not self.refused & stored.keys()
        in_log = [entry.content for entry in self.broker.log if entry.content in self.told]
        assert all(one < other for one, other in pairwise(in_log)), f"out of order: {in_log}"
        every = {content for batch, content in self.content.items() if batch.decided}
        assert every == self.told.keys() | self.given_up | self.refused
        assert not self.lane.queue
