"""Memory is bounded: callers wait while it is used up, and get the reason if that takes too long."""

from __future__ import annotations

import threading
import time

import pytest

from ottla.errors import BufferFull, OttlaError
from ottla.events import BufferFull as BufferFullEvent
from ottla.events import Event, Events
from ottla.produce.intake import Budget
from ottla.produce.options import Buffering, WhenFull

LIMIT = 1 << 20
SOON = 10.0


def budget(happened: list[Event] | None = None, *, wait: float = SOON, policy: WhenFull = WhenFull.WAIT) -> Budget:
    events = Events() if happened is None else Events(happened.append)
    return Budget(
        Buffering(bytes=LIMIT, wait=wait, when_full=policy), holding=lambda: "broker 7 is slow", events=events
    )


def usable() -> None:
    """Never raises."""


def test_callers_do_not_wait_if_there_is_room() -> None:
    memory = budget()
    memory.add(LIMIT - 1)
    memory.wait(usable)
    assert not memory.full


def test_a_caller_waits_until_there_is_room() -> None:
    memory = budget()
    memory.add(LIMIT)
    done = threading.Event()

    def wait() -> None:
        memory.wait(usable)
        done.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    while not memory.waiting:
        time.sleep(0.001)
    memory.add(1)  # more, not less
    assert not done.wait(0.05)
    memory.add(-2)
    assert done.wait(SOON)
    waiter.join(SOON)
    assert memory.waiting == 0


@pytest.mark.parametrize(("policy", "wait"), [(WhenFull.WAIT, 0.05), (WhenFull.REFUSE, SOON), (WhenFull.WAIT, 0.0)])
def test_a_caller_gets_the_reason_for_a_full_buffer(policy: WhenFull, wait: float) -> None:
    happened: list[Event] = []
    memory = budget(happened, wait=wait, policy=policy)
    memory.add(LIMIT + 5)
    started = time.monotonic()
    with pytest.raises(BufferFull, match=r"1,048,581 bytes wait .* holds 1,048,576(.|\n)*broker 7 is slow") as caught:
        memory.wait(usable)
    assert time.monotonic() - started < SOON / 2
    assert (caught.value.waiting_bytes, caught.value.limit_bytes) == (LIMIT + 5, LIMIT)
    assert caught.value.holding == "broker 7 is slow"
    assert happened == [BufferFullEvent(LIMIT + 5, LIMIT, "broker 7 is slow")]


def test_a_waiting_caller_gets_an_error_when_the_producer_is_closed() -> None:
    memory = budget()
    memory.add(LIMIT)
    closed = False
    raised: list[OttlaError] = []

    def check() -> None:
        if closed:
            raise OttlaError("this producer was closed")

    def wait() -> None:
        try:
            memory.wait(check)
        except OttlaError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while not memory.waiting:
        time.sleep(0.001)
    closed = True
    memory.wake()
    waiter.join(SOON)
    assert [str(error) for error in raised] == ["this producer was closed"]


def test_a_reason_that_comes_while_the_last_seconds_are_waited_for_is_heard() -> None:
    """Found: a spool that became full meanwhile was reported as a full buffer."""
    memory = budget(wait=0.05)
    memory.add(LIMIT)
    looks = []

    def check() -> None:
        looks.append(time.monotonic())
        if len(looks) > 1:
            raise OttlaError("the spool is full")

    with pytest.raises(OttlaError, match="the spool is full"):
        memory.wait(check)


def test_sums_are_right_with_many_threads() -> None:
    memory = budget()

    def work() -> None:
        for _ in range(2000):
            memory.add(3)
            memory.add(-3)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert memory.used == 0
