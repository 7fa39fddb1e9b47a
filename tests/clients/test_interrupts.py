"""Every call of a reader, a consumer and an admin that waits, interrupted at random: by Ctrl-C, and by a handler that
uses the client itself. It keeps working or is closed cleanly, no record is skipped, and no thread is left."""

from __future__ import annotations

import gc
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tests.interrupting import Interrupter, ctrl_c, signals, watched
from tests.waiting import eventually

from ottla.errors import OttlaError
from ottla.testing import FakeKafka

from .subjects import SUBJECTS, Call, Subject, stock

FOLDERS = ("/ottla/admin/", "/ottla/consume/", "/ottla/fetch/", "/ottla/net/")
OURS = ("ottla-", "consume-", "read-")
ROUNDS = int(os.environ.get("OTTLA_INTERRUPTS", "0"))
"""The number of rounds for each client and way to interrupt; by default a few."""
Lever = Callable[[Subject, Call, random.Random], None]


@pytest.fixture
def kafka() -> Iterator[FakeKafka]:
    """A cluster with slow responses."""
    with FakeKafka(brokers=2, auto_create=None) as cluster:
        stock(cluster)
        yield cluster


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    eventually(lambda: not _left(before), lambda: f"no thread is left of {_left(before)}")


def _left(before: set[threading.Thread]) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread not in before and thread.name.startswith(OURS)]


# The levers


def ctrl_c_at_a_place(_: Subject, call: Call, chance: random.Random) -> None:
    with suppress(KeyboardInterrupt):
        Interrupter(ctrl_c, *FOLDERS).during(call, int(10 ** chance.uniform(0, 3.5)))


def handler_at_a_place(subject: Subject, call: Call, chance: random.Random) -> None:
    Interrupter(subject.handler, *FOLDERS).during(call, int(10 ** chance.uniform(0, 3.5)))


def ctrl_c_by_signal(_: Subject, call: Call, chance: random.Random) -> None:
    # Only inside of our code: a program cannot tell whether it got what was being returned to it.
    with suppress(KeyboardInterrupt), signals(chance.uniform(1e-5, 0.01), 0.002, ctrl_c, inside=FOLDERS):
        call()


def handler_by_signal(subject: Subject, call: Call, chance: random.Random) -> None:
    over: list[bool] = []

    def handle() -> None:
        if not over:  # once: another one would come before it is through
            over.append(True)
            subject.handler()

    with signals(chance.uniform(1e-5, 0.01), 0.002, handle, inside=FOLDERS):
        call()


LEVERS: list[Lever] = [ctrl_c_at_a_place, handler_at_a_place, ctrl_c_by_signal, handler_by_signal]


MANY_ROUNDS = pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])


# A socket that was just opened when Ctrl-C came is closed by the interpreter, which warns of that.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("rounds", [ROUNDS or 25, MANY_ROUNDS])
@pytest.mark.parametrize("lever", LEVERS)
@pytest.mark.parametrize("kind", SUBJECTS)
def test_interrupts_at_random_harm_nothing(
    kafka: FakeKafka, kind: Callable[[FakeKafka, random.Random], Subject], lever: Lever, rounds: int
) -> None:
    chance = random.Random(rounds)
    subject = kind(kafka, chance)
    done: list[str] = []
    try:
        for number in range(rounds):
            names = [name for name in subject.calls if name != "close" or chance.random() < 0.3]
            done.append(chance.choice(names))
            with watched(), suppress(OttlaError):  # of a client that a handler has closed or stopped
                lever(subject, subject.calls[done[-1]], chance)
            if number % 4 == 3 or done[-1] == "close":
                with watched():
                    subject.check()
        with watched():
            subject.check()
    except BaseException as error:
        error.add_note(f"after {done[-10:]}")
        raise
    finally:
        with watched():
            subject.close()
    del subject
    gc.collect()  # while the warnings are expected
