"""The contract between jobs and engines, as types.

A job turns one offset range into a result. An engine takes a job and ranges, runs the job once or more for each range,
and yields one result per range. This module only describes the two and has the helpers that every engine shares. It
knows no job and no engine.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Protocol, TypeVar, runtime_checkable

from ottla.model import OffsetRange

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Job(Protocol[T_co]):
    """The work on one range. A plain function is a job.

    An engine may call it from several threads or processes at once, and again for a range whose first call died or
    failed. So a job must produce the same effect when it runs twice.
    """

    def __call__(self, unit: OffsetRange, /) -> T_co:
        """Return the result for this range. An `OttlaError` is final; an engine may retry after any other error."""


@runtime_checkable
class StoppableJob(Job[T_co], Protocol[T_co]):
    """A job that can end in the middle of a range. Engines wait for any other job to return."""

    def until(self, is_stopped: Callable[[], bool], /) -> Job[T_co]:
        """Return the same job, which ends soon after `is_stopped` returns True."""


@runtime_checkable
class UndoableJob(Job[T], Protocol[T]):
    """A job that can discard its own results, for example files that it wrote."""

    def undo(self, result: T, /) -> None:
        """Discard a result that the engine's caller will never receive."""


class Engine(Protocol):
    """Runs a job over ranges. `engines.local.run` with its settings bound is one."""

    def __call__(self, job: Job[T], ranges: Iterable[OffsetRange], /) -> Generator[T, None, None]:
        """Yield one result per range, in any order. Closing the generator stops the rest and undoes unused results.

        Raises the first error of the job. No further ranges begin after it.
        """


def stoppable(job: Job[T], is_stopped: Callable[[], bool]) -> Job[T]:
    """Return the job bound to `is_stopped`, or the job itself if it cannot end in the middle."""
    return job.until(is_stopped) if isinstance(job, StoppableJob) else job


def undo(job: Job[T], results: Iterable[T]) -> None:
    """Hand unused results back to the job, if it can undo them."""
    if isinstance(job, UndoableJob):
        for result in results:
            job.undo(result)
