"""Waiting and counting that no interrupt can break: Ctrl-C at every instruction, signal handlers, threads."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.interrupting import interrupted
from tests.waiting import eventually

from ottla.net.waiting import Flag, Total, Waiters

FILES = ("net/waiting.py",)
SOON = 20.0


def _ctrl_c() -> None:
    raise KeyboardInterrupt


def _everywhere(work: Callable[[], None], interruption: Callable[[], None]) -> Iterator[int]:
    """Repeat the work, interrupted at its first, second, third instruction and so on."""
    for step in range(1, 1000):
        reached = True
        with contextlib.suppress(KeyboardInterrupt):
            reached = interrupted(work, step, interruption, files=FILES)
        yield step
        if not reached:
            assert step > 10, "it was interrupted in many places"
            return
    raise AssertionError("it has no end")


def test_ctrl_c_anywhere_in_a_wait_breaks_neither_the_flag_nor_those_who_wait_beside() -> None:
    """A bug: an interrupt inside Event.wait left its lock in a state in which set() raised, on the sender's thread."""
    flags = [Flag()]
    for _ in _everywhere(lambda: void(flags[-1].wait(0.001)), _ctrl_c):
        _assert_works(flags[-1])
        flags.append(Flag())


def test_ctrl_c_anywhere_in_setting_leaves_a_flag_that_can_be_set() -> None:
    flags = [Flag()]
    for _ in _everywhere(lambda: flags[-1].set(), _ctrl_c):
        _assert_works(flags[-1])
        flags.append(Flag())


def _assert_works(flag: Flag) -> None:
    told: list[bool] = []
    beside = threading.Thread(target=lambda: told.append(flag.wait(SOON)))
    beside.start()
    flag.set()
    beside.join(SOON)
    assert told == [True]
    assert flag.wait(0)


def test_a_flag_may_be_set_at_any_instruction_of_the_wait() -> None:
    flags = [Flag()]
    for _ in _everywhere(lambda: flags.append(Flag()) if flags[-1].wait(SOON) else None, lambda: flags[-1].set()):
        if not flags[-1]._waiters:
            flags[-1].set()  # for the last round, in which no other thread does
    assert all(flag.is_set() for flag in flags)


def test_a_wait_ends_when_its_time_is_over_and_leaves_nothing_behind() -> None:
    flag = Flag()
    for seconds in (0, 0.0, -5, 0.001):
        assert flag.wait(seconds) is False
    assert len(flag._waiters) == 0


def test_a_change_before_the_look_is_seen() -> None:
    waiters = Waiters()
    started = time.monotonic()
    waiters.wait(SOON, unless=lambda: True)
    assert time.monotonic() - started < SOON / 2


def test_all_who_wait_are_woken() -> None:
    waiters, woken = Waiters(), Total()
    ready: list[bool] = []

    def wait() -> None:
        while not ready:
            waiters.wait(SOON, unless=lambda: bool(ready))
        woken.add(1)

    threads = [threading.Thread(target=wait) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(waiters) == 8, "all wait")
    ready.append(True)
    waiters.notify_all()
    for thread in threads:
        thread.join(SOON)
    assert woken.value == 8
    assert len(waiters) == 0


def test_an_addition_in_the_middle_of_an_addition_counts_and_so_does_the_one_around_it() -> None:
    total = Total()
    expected = 0
    for step in range(1, 200):
        reached = interrupted(lambda: void(total.add(1)), step, lambda: void(total.add(1000)), files=FILES)
        expected += 1001 if reached else 1
        assert total.value == expected
        if not reached:
            return
    pytest.fail("an addition has no end")


def test_an_addition_that_ctrl_c_ends_counts_or_not_and_no_other_is_lost() -> None:
    total = Total()
    for _ in _everywhere(lambda: void(total.add(1)), _ctrl_c):
        before = total.value
        assert total.add(5) == before + 5
        assert total.value == before + 5


def test_sums_are_right_with_many_threads() -> None:
    total = Total()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:

        def work() -> None:
            for _ in range(3000):
                total.add(3)
                total.value  # noqa: B018 - looking adds up what others have left
                total.add(-2)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
    finally:
        sys.setswitchinterval(before)
    assert total.value == 4 * 3000


def void(_: object) -> None:
    """Run something and ignore its result."""
