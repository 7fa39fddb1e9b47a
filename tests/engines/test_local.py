"""The local engine: every range once, the first error ends it, nothing is left running."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import pytest
from tests.waiting import eventually

from ottla.engines import local
from ottla.errors import InputError
from ottla.model import OffsetRange

RANGES = [OffsetRange("clicks", 0, start, start + 10) for start in range(0, 200, 10)]


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ottla-job")]


def test_every_range_is_done_once() -> None:
    assert sorted(local.run(lambda unit: unit, RANGES, workers=3)) == RANGES
    assert list(local.run(len, [])) == []
    assert threads() == []


def test_as_many_run_at_a_time_as_there_are_workers() -> None:
    together = threading.Barrier(4, timeout=30)
    done = local.run(lambda unit: together.wait() >= 0, RANGES[:4], workers=4)
    assert list(done) == [True] * 4


def test_the_first_error_stops_the_rest_and_names_its_range() -> None:
    begun: list[OffsetRange] = []

    def job(unit: OffsetRange) -> int:
        begun.append(unit)
        if unit.start == 20:
            raise InputError("wrong")
        return unit.start

    with pytest.raises(InputError, match="wrong") as failed:
        list(local.run(job, RANGES, workers=1))
    assert failed.value.__notes__ == ["while clicks-0[20, 30) was worked on"]
    assert begun == RANGES[:3]
    assert threads() == []


class Patient:
    """A job that waits until the engine stops it."""

    def __init__(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        self.is_stopped = is_stopped
        self.undone: list[int] = []
        self.begun = threading.Event()

    def until(self, is_stopped: Callable[[], bool]) -> Patient:
        self.is_stopped = is_stopped
        return self

    def undo(self, result: int) -> None:
        self.undone.append(result)

    def __call__(self, unit: OffsetRange) -> int:
        if unit.start < 20:
            return unit.start
        self.begun.set()
        eventually(self.is_stopped, "the engine to stop")
        return unit.start


def test_leaving_early_stops_what_is_under_way_and_undoes_unused_results() -> None:
    job = Patient()
    with closing(local.run(job, RANGES, workers=1)) as results:
        assert next(results) == 0
        assert job.begun.wait(30)
    assert job.undone == [10, 20]
    assert threads() == []
