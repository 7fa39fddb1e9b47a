"""One module for each way to share the work on topics, all with the same name.

    VARIANTS    what it can be asked for, by name: a function from a `Job` to what one node has `Done`

A node is a process. All nodes of a job get it at the same time; the clock is the monotonic one, which the processes of
a machine share. It starts for each with the first records that it may work on, and stops when the last are done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

WAIT_SECONDS = 60.0
"""How long a node waits for the others, or for records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one variant: all of a topic, by so many nodes."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    group: str
    """New for each run, and the same for all nodes of it."""
    nodes: int = 1
    store: str = ""
    handler_us: float = 0.0
    """Processor time that a record costs beyond being read."""
    seconds: float = 10.0
    """How long to wait for nothing."""
    small_topic: str
    small_records: int

    def small(self) -> Job:
        """All of the small topic, alone."""
        return replace(
            self, topic=self.small_topic, records=self.small_records, partitions=1, nodes=1, group=f"{self.group}-small"
        )


@dataclass(frozen=True, slots=True)
class Done:
    """What one node has done."""

    records: int
    began: int
    """Nanoseconds of the monotonic clock."""
    ended: int
    cpu: int
    """Nanoseconds of processor time between the two, all threads."""
    overheads: list[float] = field(default_factory=list)
    """Milliseconds from the last record of each unit to the next unit."""


class Moment(NamedTuple):
    """Nanoseconds: of the monotonic clock, and of processor time of this process."""

    wall: int
    cpu: int

    @classmethod
    def now(cls) -> Moment:
        """Now."""
        return cls(time.monotonic_ns(), time.process_time_ns())


class Watch:
    """The clock of a node."""

    def __init__(self) -> None:
        self._began = self._now = Moment.now()

    def lap(self) -> None:
        """Something is done."""
        self._now = Moment.now()

    def done(self, records: int, overheads: list[float] | None = None) -> Done:
        """What there is to say, up to the last lap."""
        return Done(
            records, self._began.wall, self._now.wall, self._now.cpu - self._began.cpu, overheads if overheads else []
        )


def warmed(run: Callable[[Job], Done]) -> Callable[[Job], Done]:
    """The same after a run on the small topic, unless there was one already in this process."""
    done: list[Done] = []

    def both(job: Job) -> Done:
        if not done:
            done.append(run(job.small()))
        return run(job)

    return both


def burn(records: int, job: Job) -> None:
    """What the handler costs: processor time of this thread, in Python, as a handler in Python would."""
    until = time.thread_time_ns() + int(records * job.handler_us * 1000)
    while time.thread_time_ns() < until:
        pass
