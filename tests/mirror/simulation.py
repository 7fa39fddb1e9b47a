"""A simulated mirror of one partition: real lanes and takeovers on a model of a broker, with kills, zombies and losses.

Processes take small steps in random order. A killed process leaves its messages in the network, where they arrive later
or never; a frozen one goes on after others have taken over. The model follows the broker's rules for idempotent batches
and for markers, and refuses what a broker refuses.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ottla.errors import ErrorCode, Fenced
from ottla.fetch.cursor import Cursor, Piece, ResponseMemory
from ottla.mirror.lane import Lane, Outbound, Phase, Verdict
from ottla.mirror.passage import Acceptance
from ottla.mirror.recode import Recoder
from ottla.mirror.takeover import Tail, locate, scan_start
from ottla.mirror.terms import Mark, Term, in_order, joined
from ottla.model import TopicPartition
from ottla.wire.batch import IS_CONTROL, IS_TRANSACTIONAL, Batch, BatchHeader, pack_header
from ottla.wire.columns import from_list
from ottla.wire.encode import encode
from ottla.wire.restamp import restamp

SOURCE, TARGET = TopicPartition("s", 0), TopicPartition("t", 0)
_NOTHING = BatchHeader(0, 49, 0, 2, 0, 0, 0, 0, 0, -1, -1, -1, 0)
_MARKER = _NOTHING._replace(attributes=IS_CONTROL | IS_TRANSACTIONAL)


def source_log(chance: random.Random, batches: int) -> tuple[list[Batch], list[bytes]]:
    """A source log with gaps and markers, and the values that must arrive."""
    log: list[Batch] = []
    values: list[bytes] = []
    offset, epoch = chance.randrange(3), 0
    for _ in range(batches):
        epoch += chance.random() < 0.1
        if chance.random() < 0.25:  # a marker, or offsets that compaction took away
            attributes = IS_CONTROL | IS_TRANSACTIONAL
            marker = _NOTHING._replace(
                base_offset=offset, leader_epoch=epoch, attributes=attributes, producer_id=9, count=0
            )
            log.append(Batch(memoryview(pack_header(marker)), 0, marker))
            offset += 1
            if chance.random() < 0.3:
                offset += chance.randrange(1, 4)
            continue
        count = chance.randrange(1, 4)
        new = [b"%d" % (offset + number) for number in range(count)]
        (batch,) = encode(from_list(new), now_ms=1000 + offset)
        header = restamp(batch.header, base_offset=offset, leader_epoch=epoch)
        log.append(Batch.parse(pack_header(header) + bytes(batch.records)))
        values += new
        offset += count
    return log, values


@dataclass
class Broker:
    """A target partition, by the broker's rules."""

    log: list[tuple[BatchHeader, list[bytes]]] = field(default_factory=list)
    end: int = 0
    _producers: dict[int, tuple[int, int, list[tuple[int, int, int]]]] = field(default_factory=dict)

    def append(self, header: BatchHeader, values: list[bytes]) -> tuple[int, int]:
        """Append a batch; an error code and an offset."""
        known = self._producers.get(header.producer_id)
        epoch, last, batches = known or (header.producer_epoch, header.base_sequence - 1, [])
        if header.producer_epoch < epoch:
            return int(ErrorCode.invalid_producer_epoch), -1
        if header.producer_epoch > epoch:
            last, batches = -1, []
        for sequence, count, offset in batches:
            if (sequence, count) == (header.base_sequence, header.count):
                return 0, offset
        if header.base_sequence != last + 1:
            return int(ErrorCode.out_of_order_sequence_number), -1
        offset = self._write(header, values)
        batches = [*batches[-4:], (header.base_sequence, header.count, offset)]
        self._producers[header.producer_id] = header.producer_epoch, header.base_sequence + header.count - 1, batches
        return 0, offset

    def mark(self, producer_id: int, epoch: int) -> bool:
        """Append a marker; False for an epoch that is over."""
        if epoch < self._producers.get(producer_id, (0, 0, []))[0]:
            return False
        self._producers[producer_id] = epoch, -1, []
        attributes = IS_CONTROL | IS_TRANSACTIONAL
        self._write(
            _NOTHING._replace(producer_id=producer_id, producer_epoch=epoch, attributes=attributes, count=1), []
        )
        return True

    def foreign(self, values: list[bytes]) -> None:
        """Somebody else writes."""
        self._write(_NOTHING._replace(count=len(values), last_offset_delta=len(values) - 1), values)

    def values(self) -> list[bytes]:
        """What a reader of uncommitted data sees."""
        return [value for _, values in self.log for value in values]

    def _write(self, header: BatchHeader, values: list[bytes]) -> int:
        offset = self.end
        self.log.append((header._replace(base_offset=offset), values))
        self.end += max(1, len(values))
        return offset


@dataclass
class World:
    """Everything outside of the processes."""

    chance: random.Random
    source: list[Batch]
    broker: Broker = field(default_factory=Broker)
    epoch: int = -1
    journal: dict[tuple[int, int], Term] = field(default_factory=dict)
    """By epoch and chunk."""
    network: list[Callable[[], object]] = field(default_factory=list)
    """Messages of dead processes that may still arrive."""

    def terms(self) -> list[Term]:
        chunks: dict[int, list[Term]] = {}
        for (epoch, _), term in sorted(self.journal.items()):
            chunks.setdefault(epoch, []).append(term)
        return in_order(joined(parts) for parts in chunks.values())


class Process:
    """One mirror process, in small steps."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.lane = Lane(SOURCE, TARGET, first=0, stop=1 << 40)
        self.is_over = False
        self._step: Callable[[], None] = self._init
        self._recoder = Recoder()
        self._fetched = 0
        self._epoch = -1
        self._requests: list[tuple[Outbound, tuple[int, int]]] = []
        self._answers: list[tuple[Outbound, tuple[int, int], int, int]] = []
        self._writing: Term | None = None
        self._written: list[object] = []
        self._now = 0.0

    def step(self) -> None:
        if not self.is_over:
            self._step()

    def die(self) -> None:
        """End here; what is on its way may still arrive, in order."""
        self.is_over = True
        world = self.world
        for outbound, _ in self._requests:
            world.network.append(partial(world.broker.append, *_sent(outbound)))
        if self._writing is not None:
            term = self._writing
            world.network.append(lambda: world.journal.__setitem__((term.epoch, term.chunk), term))

    # Taking over

    def _init(self) -> None:
        self.world.epoch += 1
        self._epoch = self.world.epoch
        self._step = self._mark

    def _mark(self) -> None:
        # The coordinator refuses a transaction of an earlier epoch.
        if self._epoch < self.world.epoch or not self.world.broker.mark(7, self._epoch):
            self.is_over = True
            return
        self._step = self._locate

    def _locate(self) -> None:
        terms = self.world.terms()
        if any(term.epoch > self._epoch for term in terms):
            self.is_over = True
            return
        start = scan_start(terms, 0)
        headers = []
        for header, _ in self.world.broker.log:
            if header.base_offset + max(header.count, 1) <= start:
                continue
            if header.is_control and header.producer_epoch == self._epoch:
                marker = header.base_offset
                break
            headers.append(header)
        else:
            raise AssertionError("the marker is not there")
        position = locate(terms, Tail(headers, 0, marker), producer_id=7, source_id=None, target_id=None)
        assert not position.findings, position.findings
        source = 0 if position.source is None else position.source
        previous = position.previous
        self._term = Term(
            index=terms[-1].index + 1 if terms else 0,
            producer_id=7,
            epoch=self._epoch,
            source_id=None,
            target_id=None,
            start=Mark(0, source, marker + 1),
            previous=None if previous is None else previous.identity,
            previous_count=position.previous_count,
        )
        self._step = self._write_term

    def _write_term(self) -> None:
        self.world.journal[self._epoch, 0] = self._term
        self.lane.phase = Phase.IDLE
        self.lane.taken_over(self._term, Cursor(SOURCE, self._term.start.source), self._now, self._now)
        self.lane.accepts = Acceptance(max_bytes=1 << 20)
        self._fetched = self._term.start.source
        self._requests.clear()
        self._answers.clear()
        self._writing = None
        self._step = self._run

    # Mirroring

    def _run(self) -> None:
        self._now += 1.0
        chance = self.world.chance
        actions = [self._fetch, self._send, self._deliver, self._answer, self._journal, self._journal_done, self._lose]
        chance.choice(actions)()

    def _fetch(self) -> None:
        ahead = [batch for batch in self.world.source if batch.header.next_offset > self._fetched]
        if not ahead:
            return
        piece_batches = ahead[: self.world.chance.randrange(1, 4)]
        stop = piece_batches[-1].header.next_offset
        assert self.lane.cursor is not None
        piece = Piece(self.lane.cursor, piece_batches, self._fetched, 1 << 40, stop, ResponseMemory(0))
        self.lane.add(piece, self._recoder)
        self._fetched = stop

    def _send(self) -> None:
        outbound = self.lane.sendable(self._now)
        if outbound is not None and self.lane.term is not None:
            self.lane.sent(outbound, self._now, self._now)
            self._requests.append((outbound, self.lane.term.identity))

    def _deliver(self) -> None:
        if self._requests:
            outbound, identity = self._requests.pop(0)
            self._answers.append((outbound, identity, *self.world.broker.append(*_sent(outbound))))

    def _answer(self) -> None:
        if not self._answers or self.lane.term is None:
            return
        outbound, identity, code, offset = self._answers.pop(0)
        if identity != self.lane.term.identity:
            return
        if code == 0:
            self.lane.accept(outbound, offset)
            return
        match self.lane.verdict_on(outbound, code):
            case Verdict.RETRY:
                self.lane.retry(outbound, Fenced("", records=0), self._now, resume_at=self._now)
            case Verdict.TAKE_OVER:
                self.lane.give_up_term()
                self._step = self._init
            case _:
                self.is_over = True

    def _lose(self) -> None:
        """A connection is cut: requests and answers on it are lost, or only the answers."""
        if self.world.chance.random() < 0.7 or self.lane.term is None:
            return
        lost = [answer[0] for answer in self._answers] + [outbound for outbound, _ in self._requests]
        if self.world.chance.random() < 0.5:  # what was sent may still be read by the broker, before anything else
            for outbound, _ in self._requests:
                self.world.broker.append(*_sent(outbound))
        self._answers.clear()
        self._requests.clear()
        for outbound in lost:
            self.lane.retry(outbound, Fenced("", records=0), self._now, resume_at=self._now)

    def _journal(self) -> None:
        if self._writing is None and (self.lane.needs_journal or not self.lane.is_marked):
            self._entry = self.lane.entry()
            self._writing = self._entry.term

    def _journal_done(self) -> None:
        if self._writing is not None:
            self.world.journal[self._writing.epoch, self._writing.chunk] = self._writing
            self._writing = None
            self.lane.journaled(self._entry)


def _sent(outbound: Outbound) -> tuple[BatchHeader, list[bytes]]:
    batch = Batch.parse(pack_header(outbound.header) + bytes(outbound.records))
    batch.verify()
    return outbound.header, _values(batch)


def _values(batch: Batch) -> list[bytes]:
    from ottla.wire.decode import Decoder

    return [value for decoded in Decoder(("value",)).decode([batch]) for value in decoded.records.column(0).to_pylist()]


def play(seed: int, *, batches: int = 12, steps: int = 400) -> tuple[World, list[bytes]]:
    """Play one history to its end. Checks at every step that no reader sees a repeat or a wrong order."""
    chance = random.Random(seed)
    log, values = source_log(chance, batches)
    world = World(chance, log)
    processes = [Process(world)]
    for step in range(steps):
        event = chance.random()
        if event < 0.02 and step < steps - 150:
            processes[-1].die()
            processes.append(Process(world))
        elif event < 0.035 and step < steps - 150:
            processes.append(Process(world))  # the old one is only frozen, and goes on when it is its turn
        elif event < 0.06 and world.network:
            world.network.pop(0)()
        process = processes[-1] if chance.random() < 0.85 else chance.choice(processes)
        process.step()
        _check(world, values, seed)
    last = Process(world)
    for _ in range(4000):
        last.step()
        if world.network and chance.random() < 0.2:
            world.network.pop(0)()
        if world.broker.values() == values and not last.lane.queue:
            break
    _check(world, values, seed)
    return world, values


def _check(world: World, values: list[bytes], seed: int) -> None:
    written = world.broker.values()
    assert written == values[: len(written)], f"seed {seed}: {written} is not a beginning of {values}"


def numbers(values: list[bytes]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The source offsets of records."""
    return np.array([int(value) for value in values], np.int64)
