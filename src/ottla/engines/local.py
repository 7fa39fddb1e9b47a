"""Runs a job over ranges in threads of this process.

A job (a function of a range) and ranges come in; results go out as they are ready, in no order. The first error stops
the rest and is raised with its range; leaving the iterator early stops the rest, too. What a job does is not known:
the decoding and compressing that jobs spend their time with leave the interpreter's lock alone, so threads suffice.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar, cast

from ottla.errors import EngineFailed
from ottla.model import OffsetRange

T = TypeVar("T")
Job = Callable[[OffsetRange], T]
_LOOK_SECONDS = 0.2
"""How long a wait for results may hide a signal."""


def default_workers() -> int:
    """As many as there are processors for this process."""
    return len(os.sched_getaffinity(0))


def run(job: Job[T], ranges: Iterable[OffsetRange], *, workers: int | None = None) -> Generator[T, None, None]:
    """What the job returns for each range, as they are done.

    A job that has a method `until(is_stopped)` is asked to end in the middle when another range has failed or nobody
    wants the results any more; of any other, what has begun is waited for. Results that nobody takes any more are
    handed to the job's method `undo`, if it has one.
    """
    waiting: queue.SimpleQueue[OffsetRange] = queue.SimpleQueue()
    count = 0
    for one in ranges:
        waiting.put(one)
        count += 1
    if not count:
        return
    stopped = threading.Event()
    results: queue.SimpleQueue[T | _Failed] = queue.SimpleQueue()
    runner = _Runner(_stoppable(job, stopped), waiting, results, stopped)
    number = min(count, workers or default_workers())
    threads = [threading.Thread(target=runner.run, name=f"ottla-job-{i}", daemon=True) for i in range(number)]
    try:
        for thread in threads:
            thread.start()
        while count:
            try:
                result = results.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                continue
            if isinstance(result, _Failed):
                raise result.as_raised()
            count -= 1
            yield result
    finally:
        stopped.set()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        _undo(job, results)


def _undo(job: Job[T], results: queue.SimpleQueue[T | _Failed]) -> None:
    undo = getattr(job, "undo", None)
    while undo is not None and not results.empty():
        result = results.get()
        if not isinstance(result, _Failed):
            undo(result)


class _Failed:
    """What a thread hands over when its job has raised."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def as_raised(self) -> Exception:
        """A job that ends its thread, by `sys.exit` for one, must not end the program as if all were done."""
        error = self._error
        if isinstance(error, Exception):
            return error
        failed = EngineFailed(f"a job has raised {type(error).__name__}{f': {error}' if str(error) else ''}")
        for note in getattr(error, "__notes__", ()):
            failed.add_note(note)
        failed.__cause__ = error
        return failed


class _Runner:
    """The work of each thread."""

    def __init__(self, job: Job[Any], waiting: Any, results: Any, stopped: threading.Event) -> None:
        self._job = job
        self._waiting = waiting
        self._results = results
        self._stopped = stopped

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                one = self._waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self._results.put(self._job(one))
            except BaseException as error:
                error.add_note(f"while {one} was worked on")
                self._results.put(_Failed(error))
                return


def _stoppable(job: Job[T], stopped: threading.Event) -> Job[T]:
    bind = getattr(job, "until", None)
    return cast(Job[T], bind(stopped.is_set)) if bind is not None else job
