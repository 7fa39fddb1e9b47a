"""One module for each client that is measured, all with the same names.

    VARIANTS    what it can be asked for, by name: a function from a `Job` to what it `Received`
    PACED       the same for latency: from a `Job` to the seconds from send to receipt of each record

A variant reads a small topic first, once in its process; then each run makes its client, connects, and starts the clock
just before it says what to read, since clients begin to fetch at that moment.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

from bench.harness import ROOT, Sample

WAIT_SECONDS = 30.0
"""How long a client may have nothing new before it is given up."""
AT_ONCE = 500
"""Messages in one list. From about 700 on CPython looks for garbage among them, which doubles the processor time of
confluent-kafka and of aiokafka."""
_STAMP_DIGITS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one variant: the last `records` of a topic, from `start` on in each of its partitions."""

    bootstrap: str
    topic: str
    partitions: int
    start: int
    records: int
    small_topic: str
    """Has one partition, compressed in the same way."""
    small_records: int

    def small(self) -> Job:
        """All of the small topic."""
        return replace(self, topic=self.small_topic, partitions=1, start=0, records=self.small_records)


@dataclass(frozen=True, slots=True)
class Received:
    """How many records came, and how long they took."""

    records: int
    time: Sample


def warmed(run: Callable[[Job], Received]) -> Callable[[Job], Received]:
    """The same after a run on the small topic, unless there was one already."""
    small = cache(run)

    def both(job: Job) -> Received:
        small(job.small())
        return run(job)

    return both


def counted(batches: Iterable[int], records: int) -> int:
    """Takes numbers of records until there are as many as asked for, or more; how many there were."""
    count = 0
    heard = time.monotonic()
    for more in batches:
        if more:
            count += more
            heard = time.monotonic()
            if count >= records:
                break
        elif time.monotonic() > heard + WAIT_SECONDS:
            raise AssertionError(f"{count} of {records} records came, and then none for {WAIT_SECONDS:.0f} s")
    return count


def stamped(size: int) -> bytes:
    """A value of so many bytes that begins with the time."""
    return b"%0*d" % (_STAMP_DIGITS, time.monotonic_ns()) + bytes(size - _STAMP_DIGITS)


class Ages:
    """How old each record was when it came. The clock is the same one in all processes of a machine."""

    def __init__(self, records: int) -> None:
        self.seconds: list[float] = []
        self._records = records

    @property
    def is_complete(self) -> bool:
        """Whether all records came."""
        return len(self.seconds) >= self._records

    def note(self, now: int, values: Iterable[bytes]) -> None:
        """These came at `now`, by `time.monotonic_ns`."""
        self.seconds += [(now - int(value[:_STAMP_DIGITS])) / 1e9 for value in values]


@contextmanager
def busy() -> Iterator[None]:
    """Within the block another thread of this process computes, in Python."""
    is_over = threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            sum(number * number for number in range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def beside(latency: Callable[[Job], list[float]]) -> Callable[[Job], list[float]]:
    """The same with a thread that computes beside it."""

    def run(job: Job) -> list[float]:
        with busy():
            return latency(job)

    return run


@contextmanager
def pacing(job: Job) -> Iterator[None]:
    """Within the block another process sends a thousand records a second, until all are sent."""
    command = [sys.executable, "-m", f"{__name__}.pacer", job.bootstrap, job.topic, str(job.records)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        yield
    except BaseException:
        process.kill()
        raise
    finally:
        code = process.wait(WAIT_SECONDS)
    if code:
        raise AssertionError(f"the process that sends ended with {code}")
