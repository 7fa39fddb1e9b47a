"""A node of a fleet that calls a handler until it is stopped: what `ottla work run` does in each process.

A `Task` has plain values that can be sent to a child process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from ottla.cli.values.places import ReaderPlace
from ottla.cli.work.handlers import Takes, load
from ottla.config import Security
from ottla.engines.fleet.fleet import Fleet
from ottla.engines.fleet.held_units import Ending
from ottla.engines.fleet.planning import Units
from ottla.engines.fleet.store import open_store
from ottla.engines.fleet.units import Charter
from ottla.events import Event, RotatingFiles, Sink, UnitEnded
from ottla.fetch.options import Fetching

_RATE_SECONDS = 5.0
"""The period of a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The arguments of `ottla work run`."""

    handler: str
    takes: Takes
    bootstrap: str
    security: Security
    store: str
    group: str
    topics: tuple[str, ...]
    start: ReaderPlace
    units: Units
    settings: Mapping[str, Any]
    """Settings of the group from the command line; the others are as the group has them."""
    on_lost: str
    commit_group: str | None
    unit_timeout: float | None
    isolation: str
    fetching: Fetching
    threads: int
    until_end: bool
    events: Path | None


class Tally(NamedTuple):
    """Counts of what a process has done."""

    done: int = 0
    """Units, and parts of units."""
    records: int = 0
    size_bytes: int = 0
    failed: int = 0
    """Attempts that ended with an error."""
    given_back: int = 0
    lost: int = 0
    """Units that another node took over, or may have taken over."""

    def plus(self, other: Tally) -> Tally:
        """Return the sum of both."""
        return Tally(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


class TallySink:
    """An event sink that counts units that ended."""

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


class RecentRate:
    """A count per second, over the last seconds."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, count: int) -> float:
        """Return the rate after the count has reached `count`."""
        now = time.monotonic()
        self._samples.append((now, count))
        while len(self._samples) > 2 and now - self._samples[0][0] > _RATE_SECONDS:
            self._samples.popleft()
        first, before = self._samples[0]
        return (count - before) / (now - first) if now > first else 0.0


def agree(task: Task) -> Charter:
    """Return the settings of the group, with those that the task requires; create the group if it does not exist."""
    store = open_store(task.store, task.group)
    try:
        return replace(store.found(Charter(**task.settings)), **task.settings)
    finally:
        store.close()


class HandlerNode:
    """A node that calls a handler on threads while the block runs; leaving the block gives back unfinished units."""

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
            charter=agree(task),
            on_lost=task.on_lost,
            commit_group=task.commit_group,
            most_seconds=task.unit_timeout,
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

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the node; return whether it has ended. Raises the error that ended it."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            return False
        if self._failures:
            raise self._failures[0]
        return True

    def stop(self) -> None:
        """Start no more units."""
        self._fleet.stop()

    def _work(self, run: Callable[[], None]) -> None:
        try:
            run()
        except BaseException as error:
            self._failures.append(error)
