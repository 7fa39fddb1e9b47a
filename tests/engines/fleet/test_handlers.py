"""What handlers raise counts as their failure, except an interrupt from outside; what cannot be called is refused."""

from __future__ import annotations

import asyncio
import functools
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ottla import Charter, Fleet, Producer, Reader, Unit, Units
from ottla.engines import local
from ottla.errors import EngineFailed, InputError
from ottla.model import OffsetRange
from ottla.testing.fake.kafka import FakeKafka

TOPIC = "clicks"
RECORDS = 40


@pytest.fixture
def brokers(fake_kafka: FakeKafka) -> str:
    fake_kafka.create_topic(TOPIC)
    with Producer(fake_kafka.bootstrap) as producer:
        producer.send_many(TOPIC, [b"%d" % number for number in range(RECORDS)])
    return fake_kafka.bootstrap


@pytest.fixture
def fleet(brokers: str, group: str) -> Iterator[Fleet]:
    """With four units."""
    with Fleet(
        brokers,
        group=group,
        topics=TOPIC,
        store="memory://",
        start="earliest",
        units=Units(records=10),
        charter=Charter(max_attempts=2, lease_seconds=60),
    ) as fleet:
        yield fleet


class Odd(BaseException):
    """A handler by an author who does not know better."""


@pytest.mark.parametrize(
    "raised", [SystemExit(3), SystemExit(), GeneratorExit(), KeyboardInterrupt(), Odd("odd")], ids=repr
)
@pytest.mark.parametrize("threads", [1, 3])
def test_whatever_a_handler_raises_is_an_attempt_and_the_node_works_on(
    fleet: Fleet, raised: BaseException, threads: int
) -> None:
    handled: list[int] = []

    def handle(unit: Unit) -> None:
        if unit.range.start == 10:
            raise raised
        handled.append(unit.range.start)

    fleet.run(handle, threads=threads, until_end=True)
    assert sorted(handled) == [0, 20, 30]
    (failure,) = fleet._store.failures()
    assert (failure.range.start, failure.attempts) == (10, 2)
    assert failure.reason.startswith(type(raised).__name__)
    assert "test_handlers.py" in failure.traceback
    counts = fleet.look().counts
    assert (counts.failed, counts.given_up, counts.given_back) == (2, 1, 0)


def taken(fleet: Fleet, work: Callable[[], object], expected: type[BaseException]) -> Unit:
    """A unit in whose block something happens, in a loop of the program's own."""
    for unit in fleet.units():
        with pytest.raises(expected), unit:
            work()
        return unit
    raise AssertionError("there is none")


def test_leaving_the_program_in_a_block_is_a_failure_of_the_unit(fleet: Fleet) -> None:
    unit = taken(fleet, lambda: sys.exit("enough"), SystemExit)
    assert repr(unit).endswith(", failed>")
    assert fleet.look().counts.failed == 1


def test_ctrl_c_in_a_block_gives_the_unit_back_without_blame(fleet: Fleet) -> None:
    unit = taken(fleet, lambda: signal.raise_signal(signal.SIGINT), KeyboardInterrupt)
    assert repr(unit).endswith(", given back>")
    again = next(iter(fleet.units()))
    assert (again.range, again.attempt) == (unit.range, 1)


def test_a_signal_that_ends_the_program_in_a_block_gives_the_unit_back(fleet: Fleet) -> None:
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        unit = taken(fleet, lambda: signal.raise_signal(signal.SIGTERM), SystemExit)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert repr(unit).endswith(", given back>")


def test_an_interrupt_cannot_come_to_another_thread_from_outside(fleet: Fleet) -> None:
    units: list[Unit] = []

    def work() -> None:
        def interrupt() -> None:
            raise KeyboardInterrupt

        units.append(taken(fleet, interrupt, KeyboardInterrupt))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert repr(units[0]).endswith(", failed>")


def test_the_end_of_a_generator_or_a_task_gives_the_unit_back(fleet: Fleet) -> None:
    def starts() -> Iterator[int]:
        for unit in fleet.units():
            with unit:
                yield unit.range.start

    generator = starts()
    assert next(generator) == 0
    generator.close()  # type: ignore[attr-defined]

    async def work() -> None:
        unit = next(iter(fleet.units()))
        with unit:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())
    counts = fleet.look().counts
    assert (counts.given_back, counts.failed) == (2, 0)


# What cannot be called


async def later(unit: Unit) -> None:
    """Does nothing until it is awaited."""


async def much_later(unit: Unit) -> Any:
    yield unit


def in_parts(unit: Unit) -> Iterator[Unit]:
    yield unit


class Later:
    async def __call__(self, unit: Unit) -> None:
        pass


@pytest.mark.parametrize(
    ("handler", "text"),
    [
        (5, "the handler is int, which cannot be called"),
        (None, "the handler is NoneType, which cannot be called"),
        ("shop:handle", "the handler is str, which cannot be called"),
        (lambda: None, "cannot be called with one argument"),
        (lambda unit, other: None, "cannot be called with one argument"),
        (later, "is a coroutine function"),
        (functools.partial(later), "is a coroutine function"),
        (Later(), "is a coroutine function"),
        (much_later, "is an asynchronous generator"),
        (in_parts, "is a generator function"),
    ],
)
def test_a_handler_that_cannot_be_called_is_refused_at_the_call(fleet: Fleet, handler: Any, text: str) -> None:
    with pytest.raises(InputError, match=text):
        fleet.run(handler, until_end=True)
    assert fleet.look().nodes == (), "it has not even joined"


@pytest.mark.parametrize("function", [later, in_parts, much_later])
def test_a_handler_that_returns_work_instead_of_doing_it_has_failed(fleet: Fleet, function: Any) -> None:
    fleet.run(lambda unit: function(unit) if unit.range.start == 10 else None, until_end=True)
    (failure,) = fleet._store.failures()
    assert "which is never run, so no work was done" in failure.reason


def test_other_functions_that_are_handed_in_are_looked_at_too(brokers: str) -> None:
    wrong: Any = 5
    with Reader(brokers) as reader:
        with pytest.raises(InputError, match="the function of a fold is int, which cannot be called"):
            reader.fold(wrong, 0, TOPIC)
        with pytest.raises(InputError, match="cannot be called with 2 arguments"):
            reader.fold(lambda state: state, 0, TOPIC)  # type: ignore[arg-type, misc]
        with pytest.raises(InputError, match="progress is int, which cannot be called"):
            reader.fingerprint(TOPIC, progress=wrong)
    with Producer(brokers) as producer:
        delivery = producer.send(TOPIC, b"x")
        with pytest.raises(InputError, match="a callback is int, which cannot be called"):
            delivery.add_done_callback(wrong)
        bulk = producer.send_many(TOPIC, [b"x"])
        with pytest.raises(InputError, match="a callback is a coroutine function"):
            bulk.add_done_callback(later)  # type: ignore[arg-type]


# Jobs


@pytest.mark.parametrize("raised", [SystemExit(0), KeyboardInterrupt()], ids=repr)
def test_a_job_that_ends_its_thread_does_not_end_the_program(raised: BaseException) -> None:
    def job(unit: OffsetRange) -> None:
        raise raised

    with pytest.raises(EngineFailed, match=f"a job raised {type(raised).__name__}") as caught:
        list(local.run(job, [OffsetRange("clicks", 0, 0, 10)]))
    assert caught.value.__notes__ == ["while clicks-0[0, 10) was worked on"]
