"""Every call of a producer, interrupted at random: by Ctrl-C, and by a handler that sends itself.

The producer must keep working, or be closed cleanly. What was acknowledged is in the log, at its place. What a call
accepted is there once, unless its delivery says why not. What was interrupted is there once or not at all. Every
delivery gets an outcome.
"""

from __future__ import annotations

import contextlib
import gc
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from tests.interrupting import ctrl_c, exits, signals

from ottla import Batching, BulkDelivery, Delivery, Producer, Spool
from ottla.errors import NotDelivered, OttlaError
from ottla.testing import FakeKafka

from .stand import SOON, new

FOLDERS = ("/ottla/produce/", "/ottla/net/")
Lever = Callable[["World", Callable[[], None]], None]


class World:
    """A producer, what was sent with it, and the random source that decides what happens next."""

    def __init__(self, kafka: FakeKafka, seed: int, spool: Path | None) -> None:
        self.kafka = kafka
        self.chance = random.Random(seed)
        self.spool = spool
        self.numbers = iter(range(1 << 30))
        self.interrupted: set[bytes] = set()
        """Values of calls that did not return."""
        self.single: list[tuple[bytes, Delivery]] = []
        self.bulk: list[tuple[list[bytes], BulkDelivery]] = []
        self.rounds: Counter[str] = Counter()
        self.producer = self.new_producer()
        # Ctrl-C during the very first use breaks numba for the rest of the process.
        for call in (self.send, self.send_many, self.send_table, self.flush, self.partition_for):
            call()

    def new_producer(self) -> Producer:
        options: dict[str, Any] = {} if self.spool is None else {"spool": Spool(self.spool, write_ahead=True)}
        return new(self.kafka, batching=Batching(linger=self.chance.choice([0.0, 0.002])), **options)

    def values(self, count: int) -> list[bytes]:
        made = [b"value %d" % next(self.numbers) for _ in range(count)]
        self.interrupted |= set(made)  # until the call has returned
        return made

    def accepted(self, values: list[bytes]) -> None:
        self.interrupted -= set(values)

    # The calls

    def send(self) -> None:
        (value,) = self.values(1)
        key = b"key of " + value if self.chance.random() < 0.5 else None
        self.single.append((value, self.producer.send("t", value, key)))
        self.accepted([value])

    def send_many(self) -> None:
        values = self.values(self.chance.choice([0, 1, 20]))
        self.bulk.append((values, self.producer.send_many("t", [(b"key of " + value, value) for value in values])))
        self.accepted(values)

    def send_table(self) -> None:
        values = self.values(20)
        table = pa.table({"topic": [self.chance.choice(["t", "many"]) for _ in values], "value": values})
        self.bulk.append((values, self.producer.send_table(None, table)))
        self.accepted(values)

    def flush(self) -> None:
        self.producer.flush(SOON)

    def persist(self) -> None:
        if self.spool is not None:
            self.producer.persist(SOON)

    def result(self) -> None:
        if self.single:
            self.single[-1][1].result(SOON)

    def result_of_many(self) -> None:
        if self.bulk:
            self.bulk[-1][1].result(SOON)

    def exception(self) -> None:
        if self.single:
            assert self.single[-1][1].exception(SOON) is None

    def outcomes(self) -> None:
        if self.bulk:
            values, delivery = self.bulk[-1]
            assert sum(len(outcome.rows) for outcome in delivery.outcomes(SOON)) == len(values)

    def partition_for(self) -> None:
        assert 0 <= self.producer.partition_for("many", b"key") < 4

    def close(self) -> None:
        try:
            self.producer.close(SOON)
        finally:
            self.closed = True

    closed = False

    # Checks

    def check_alive(self) -> None:
        """It works, whatever has happened to it."""
        if self.closed:
            with contextlib.suppress(NotDelivered):  # what an interrupted close gave up
                self.producer.close(SOON)
            self.closed = False
            self.producer = self.new_producer()
        self.send()
        self.single[-1][1].result(SOON)
        self.producer.flush(SOON)

    def check_all(self) -> None:
        self.producer.close(SOON)
        log = {
            (topic, partition): [record.value or b"" for record in self.kafka.records(topic, partition)]
            for topic, partitions in (("t", 1), ("many", 4))
            for partition in range(partitions)
        }
        occurrences = Counter(value for values in log.values() for value in values)
        assert max(occurrences.values()) == 1, "nothing is there twice"
        for value, delivery in self.single:
            if delivery.exception(SOON) is None:
                sent = delivery.result(0)
                assert log[sent.topic, sent.partition][sent.offset] == value
        for values, bulk in self.bulk:
            for outcome in bulk.outcomes(SOON):
                if outcome.error is None:
                    stop = outcome.offset + len(outcome.rows)
                    assert log[outcome.at][outcome.offset : stop] == [values[row] for row in outcome.rows.tolist()]
        given_up = sum(delivery.exception(0) is not None for _, delivery in self.single)
        assert given_up == 0 or self.rounds["close"], "only an interrupted close gives anything up"


CALLS = [
    name
    for name in vars(World)
    if name
    in (
        "send",
        "send_many",
        "send_table",
        "flush",
        "persist",
        "result",
        "result_of_many",
        "exception",
        "outcomes",
        "partition_for",
        "close",
    )
]


# Interruptions


@contextlib.contextmanager
def _traced(step: int, interruption: Callable[[], None]) -> Iterator[None]:
    """Call `interruption` before instruction number `step` of ours on this thread."""
    seen = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen
        if not any(folder in frame.f_code.co_filename for folder in FOLDERS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode" and frame.f_lasti not in exits(frame.f_code):
            seen += 1
            if seen == step:
                interruption()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def ctrl_c_at_an_instruction(world: World, call: Callable[[], None]) -> None:
    with contextlib.suppress(KeyboardInterrupt), _traced(int(10 ** world.chance.uniform(0, 3.7)), ctrl_c):
        call()


def handler_at_an_instruction(world: World, call: Callable[[], None]) -> None:
    with _traced(int(10 ** world.chance.uniform(0, 3.7)), lambda: _handler(world)):
        call()


def _handler(world: World) -> None:
    if world.closed:
        return
    with contextlib.suppress(OttlaError):  # in the middle of a close
        for _ in range(world.chance.choice([1, 3])):
            world.send()


def ctrl_c_by_signal(world: World, call: Callable[[], None]) -> None:
    with contextlib.suppress(KeyboardInterrupt), signals(world.chance.uniform(1e-5, 0.003), 0.0, ctrl_c):
        call()


def handler_by_signal(world: World, call: Callable[[], None]) -> None:
    with signals(world.chance.uniform(1e-5, 0.003), 0.0005, lambda: _handler(world)):
        call()


LEVERS = [ctrl_c_at_an_instruction, handler_at_an_instruction, ctrl_c_by_signal, handler_by_signal]


def _play(world: World, lever: Lever, rounds: int) -> None:
    for number in range(rounds):
        name = world.chance.choice(CALLS)
        if name == "close" and world.chance.random() < 0.8:
            name = "flush"
        world.rounds[name] += 1
        try:
            lever(world, getattr(world, name))
        except NotDelivered:
            assert world.rounds["close"]
        if world.closed or number % 10 == 9:
            world.check_alive()
    world.check_alive()
    world.check_all()


# If Ctrl-C comes right after a socket is opened, the interpreter closes it and warns about that.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("spooling", [False, True])
@pytest.mark.parametrize("lever", LEVERS)
@pytest.mark.parametrize("rounds", [60, pytest.param(1500, marks=pytest.mark.long)])
def test_interrupts_at_random_harm_nothing(
    kafka: FakeKafka, tmp_path: Path, lever: Lever, spooling: bool, rounds: int
) -> None:
    kafka.delay("Produce", 0.002, times=None)
    world = World(kafka, rounds, tmp_path / "spool" if spooling else None)
    _play(world, lever, rounds)
    gc.collect()  # while the warnings are expected
