"""A node of a fleet that calls a handler, until it is told to stop: what `ottla work run` does in each process.

A `Task` comes in, plain values that a child process can be given. What happens is counted. Who says that it is enough,
a signal or a parent, is not known here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from ottla.cli.working.handlers import Takes, load
from ottla.config import Security
from ottla.engines.fleet.fleet import Fleet
from ottla.engines.fleet.held_units import Ending
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.store import open_store
from ottla.engines.fleet.units import Charter
from ottla.events import Event, RotatingFiles, Sink, UnitEnded
from ottla.fetch.options import Fetching

_RATE_SECONDS = 5.0
"""Over how long a rate is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What `ottla work run` was asked to do."""

    handler: str
    takes: Takes
    bootstrap: str
    security: Security
    store: str
    group: str
    topics: tuple[str, ...]
    start: str | datetime
    units: Units
    settings: Mapping[str, Any]
    """What was said of the group's charter; the rest is as the group has it."""
    on_lost: str
    commit_group: str | None
    most_seconds: float | None
    isolation: str
    fetching: Fetching
    threads: int
    until_end: bool
    events: Path | None


class Tally(NamedTuple):
    """What has happened in a process."""

    done: int = 0
    """Units, and parts of units."""
    records: int = 0
    size_bytes: int = 0
    failed: int = 0
    """Attempts that ended with an error."""
    given_back: int = 0
    lost: int = 0
    """Units that were given to another node meanwhile, or of which that is not known."""

    def plus(self, other: Tally) -> Tally:
        """Both together."""
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class Counting:
    """A sink that counts the units that have ended."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        if isinstance(event, UnitEnded):
            with self._lock:
                self.tally = self.tally.plus(_tally_of(event))


def _tally_of(event: UnitEnded) -> Tally:
    match Ending(event.status):
        case Ending.DONE | Ending.PART:
            return Tally(done=1, records=event.records, size_bytes=event.payload_bytes)
        case Ending.FAILED:
            return Tally(failed=1)
        case Ending.GIVEN_BACK:
            return Tally(given_back=1)
    return Tally(lost=1)


class Rate:
    """How many a second, over the last seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def of(self, count: int) -> float:
        """The rate, if there are so many by now."""
        now = time.monotonic()
        self._seen.append((now, count))
        while len(self._seen) > 2 and now - self._seen[0][0] > _RATE_SECONDS:
            self._seen.popleft()
        first, before = self._seen[0]
        return (count - before) / (now - first) if now > first else 0.0


def settle(task: Task) -> Charter:
    """The group's charter: as it is there, or as this task begins it; with what the task insists on."""
    store = open_store(task.store, task.group)
    try:
        return replace(store.found(Charter(**task.settings)), **task.settings)
    finally:
        store.close()


class Running:
    """A handler at work, on threads, as long as the block runs; leaving it gives back what is not done."""

    def __init__(self, task: Task, *sinks: Sink) -> None:
        handler = load(task.handler, task.takes)
        files = [] if task.events is None else [RotatingFiles(task.events)]
        self._fleet = Fleet(
            task.bootstrap,
            group=task.group,
            topics=task.topics,
            store=task.store,
            start=task.start,
            units=task.units,
            charter=settle(task),
            on_lost=task.on_lost,
            commit_group=task.commit_group,
            most_seconds=task.most_seconds,
            isolation=task.isolation,
            fetching=task.fetching,
            security=task.security,
            client_id="ottla-work",
            events=[*sinks, *files],
        )
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(
            target=self._work,
            args=(lambda: self._fleet.run(handler, threads=task.threads, until_end=task.until_end),),
            name="ottla-work",
            daemon=True,
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._fleet.close()

    def is_over(self, seconds: float = 0.0) -> bool:
        """Whether it has come to its end, after waiting so long for it; raises what ended it."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            return False
        if self._failures:
            raise self._failures[0]
        return True

    def stop(self) -> None:
        """Nothing more is begun."""
        self._fleet.stop()

    def _work(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self._failures.append(error)
