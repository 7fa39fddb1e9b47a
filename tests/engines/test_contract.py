"""The contract of jobs and engines: what an engine may ask of a job that can stop or undo, and of one that cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ottla.engines import contract
from ottla.engines.contract import StoppableJob, UndoableJob
from ottla.model import OffsetRange

UNIT = OffsetRange("clicks", 0, 10, 20)


def length(unit: OffsetRange) -> int:
    return len(unit)


@dataclass(frozen=True)
class Careful:
    """A job that can stop and undo."""

    is_stopped: Callable[[], bool] = lambda: False
    undone: list[int] = field(default_factory=list)

    def __call__(self, unit: OffsetRange) -> int:
        return -1 if self.is_stopped() else len(unit)

    def until(self, is_stopped: Callable[[], bool]) -> Careful:
        return replace(self, is_stopped=is_stopped)

    def undo(self, result: int) -> None:
        self.undone.append(result)


def test_a_plain_function_is_a_job_that_neither_stops_nor_undoes() -> None:
    assert not isinstance(length, StoppableJob)
    assert not isinstance(length, UndoableJob)
    job = contract.stoppable(length, lambda: True)
    assert job(UNIT) == 10
    contract.undo(length, [1, 2])


def test_a_job_that_can_stop_is_bound_to_the_engine() -> None:
    stopped = False
    job = contract.stoppable(Careful(), lambda: stopped)
    assert job(UNIT) == 10
    stopped = True
    assert job(UNIT) == -1


def test_a_job_that_can_undo_gets_the_results_that_were_not_used() -> None:
    job = Careful()
    contract.undo(job, iter([3, 4]))
    assert job.undone == [3, 4]
