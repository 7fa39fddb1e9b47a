"""One module for each client that is measured with many partitions, all with the same names.

    VARIANTS    what it can be asked for, by name: a function from a `Job` to what was `Moved`

Records have a key, which decides about their partition. Each function makes its client, does a little that does not
count, and only then starts the clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from bench.harness import Sample, Stopwatch
from bench.records import Case, values

LINGER = 0.005
CHUNK = 1000
"""Records in one list, for calls that take lists."""
AT_ONCE = 500
"""Messages in one list that is read, as in `peers/consume`."""
WARMUP = 10_000
WAIT_SECONDS = 90.0
SETTLE_SECONDS = 3.0
"""Before somebody counts as idle."""
_VALUES = 60_000
"""Different ones; then they come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one variant: so many records into a topic, or all of a topic that has so many."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    seconds: float = 0.0
    """How long to be idle."""


@dataclass(frozen=True, slots=True)
class Moved:
    """How many records went or came, and how long they took."""

    records: int
    time: Sample
    warmup: int = 0


def pairs(count: int, first: int = 0) -> Iterator[tuple[bytes, bytes]]:
    """Keys of 8 bytes, all different, and values of 100."""
    pool = _pool()
    for number in range(first, first + count):
        yield b"%08d" % (number * 7919 % 10**8), pool[number % len(pool)]


@cache
def lists(records: int) -> list[list[tuple[bytes, bytes]]]:
    """The same in lists, made beforehand."""
    return [list(pairs(CHUNK, first)) for first in range(0, records, CHUNK)]


@cache
def _pool() -> list[bytes]:
    return values(Case(record_bytes=100, codec="none", batch_bytes=0, shape="value", records=_VALUES))


def counted(batches: Iterable[int], records: int) -> int:
    """Takes numbers of records until there are as many as asked for; how many there were."""
    count, heard = 0, time.monotonic()
    for more in batches:
        if more:
            count, heard = count + more, time.monotonic()
            if count >= records:
                break
        elif time.monotonic() > heard + WAIT_SECONDS:
            raise AssertionError(f"{count} of {records} records came, and then none for {WAIT_SECONDS:.0f} s")
    return count


class Members:
    """Two members of a group, each with a thread. The clock starts when the group has given out all partitions, which
    are paused until then."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._held = [0, 0]
        self._count = 0
        self._watch: Stopwatch | None = None
        self._errors: list[BaseException] = []
        self.is_over = threading.Event()
        self.time: Sample | None = None

    def holds(self, member: int, partitions: int) -> bool:
        """Whether everybody has something and nothing is missing; so many does this member have now."""
        with self._lock:
            self._held[member] = partitions
            if self._watch is None and min(self._held) > 0 and sum(self._held) == self._job.partitions:
                self._watch = Stopwatch()
            return self._watch is not None

    def got(self, records: int) -> None:
        """So many more."""
        with self._lock:
            self._count += records
            if self._count >= self._job.records and self.time is None and self._watch is not None:
                self.time = self._watch.stop()
                self.is_over.set()

    def run(self, member: Callable[[Members, int], None]) -> Moved:
        """Both, until all records have come."""
        threads = [threading.Thread(target=self._tried, args=(member, number), daemon=True) for number in (0, 1)]
        for thread in threads:
            thread.start()
        self.is_over.wait(WAIT_SECONDS)
        self.is_over.set()
        for thread in threads:
            thread.join(WAIT_SECONDS)
        if self._errors:
            raise self._errors[0]
        if self.time is None:
            raise AssertionError(f"{self._count} of {self._job.records} records came; the members had {self._held}")
        return Moved(self._count, self.time)

    def _tried(self, member: Callable[[Members, int], None], number: int) -> None:
        try:
            member(self, number)
        except BaseException as error:
            self._errors.append(error)
            self.is_over.set()
