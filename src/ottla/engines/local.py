"""Runs a job over ranges in threads of this process.

A job and ranges come in; results go out as soon as they are ready, in any order. The first error stops the rest and is
raised with its range. Closing the iterator early stops the rest, too. The engine does not look into the job. Threads
are enough: jobs spend their time decoding and compressing, which releases the interpreter's lock.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Generator, Iterable, Iterator
from typing import Any, TypeVar

from ottla.engines import contract
from ottla.engines.contract import Job
from ottla.errors import EngineFailed
from ottla.model import OffsetRange

T = TypeVar("T")
_SIGNAL_CHECK_SECONDS = 0.2
"""How long a wait for results may delay a signal handler."""


def default_workers() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run(job: Job[T], ranges: Iterable[OffsetRange], *, workers: int | None = None) -> Generator[T, None, None]:
    """Yield what the job returns for each range, in the order of completion.

    When a range fails or the caller closes the iterator, a `StoppableJob` is asked to end in the middle; other jobs
    finish the ranges they have begun. Results that were not yielded go to the job's `undo`, if it is an `UndoableJob`.
    Raises what the job raised, or `EngineFailed` if that was not an `Exception`, for example `SystemExit`.
    """
    pending: queue.SimpleQueue[OffsetRange] = queue.SimpleQueue()
    count = 0
    for unit in ranges:
        pending.put(unit)
        count += 1
    if not count:
        return
    stopped = threading.Event()
    results: queue.SimpleQueue[T | _Failed] = queue.SimpleQueue()
    runner = _Runner(contract.stoppable(job, stopped.is_set), pending, results, stopped)
    number = min(count, workers or default_workers())
    threads = [threading.Thread(target=runner.run, name=f"ottla-job-{i}", daemon=True) for i in range(number)]
    try:
        for thread in threads:
            thread.start()
        while count:
            try:
                result = results.get(timeout=_SIGNAL_CHECK_SECONDS)
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
        contract.undo(job, _unused(results))


def _unused(results: queue.SimpleQueue[T | _Failed]) -> Iterator[T]:
    while not results.empty():
        result = results.get()
        if not isinstance(result, _Failed):
            yield result


class _Failed:
    """What a thread puts into the queue when its job has raised."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def as_raised(self) -> Exception:
        """Return the error to raise in the caller's thread."""
        error = self._error
        if isinstance(error, Exception):
            return error
        # A job that calls sys.exit() must not end the program as if everything were done.
        failed = EngineFailed(f"a job raised {type(error).__name__}{f': {error}' if str(error) else ''}")
        for note in getattr(error, "__notes__", ()):
            failed.add_note(note)
        failed.__cause__ = error
        return failed


class _Runner:
    """The loop of each thread."""

    def __init__(self, job: Job[Any], pending: Any, results: Any, stopped: threading.Event) -> None:
        self._job = job
        self._pending = pending
        self._results = results
        self._stopped = stopped

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                unit = self._pending.get_nowait()
            except queue.Empty:
                return
            try:
                self._results.put(self._job(unit))
            except BaseException as error:
                error.add_note(f"while {unit} was worked on")
                self._results.put(_Failed(error))
                return
