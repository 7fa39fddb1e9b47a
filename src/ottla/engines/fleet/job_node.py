"""A node that works on jobs: it has a steward, holds units, and has threads that run the job of the group on them.

A store comes in, and how to understand the jobs there; results go into the store. Who asked for them is not known here.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from ottla.engines.fleet.held_units import Held, HeldUnits, failure
from ottla.engines.fleet.job_notes import JOB_KEY, RESULT_KEYS, Kind, ResultNote, job_note
from ottla.engines.fleet.steward import Plans, Steward
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.unit import reason_of, trace_of
from ottla.engines.fleet.units import Charter
from ottla.errors import OttlaError, StoreUnavailable
from ottla.events import Event
from ottla.model import OffsetRange

_log = logging.getLogger(__name__)
_CHARTER = Charter(max_attempts=4)
_LOOK_SECONDS = 0.05
_LONGEST_NAP = 0.25
_LEFT_SECONDS = 10.0
"""For how long a job is left to other nodes: what keeps this one from it may pass."""
_DISMISS_SECONDS = 10.0
"""For a job that cannot be asked to end in the middle."""


class Task(NamedTuple):
    """A job of the group, as this process does it."""

    name: str
    kind: Kind[Any]
    job: Callable[[OffsetRange], Any]


class Understands(Protocol):
    """What a node does of the jobs in a group."""

    def __call__(self, noted: bytes, /) -> Task | None:
        """The job that a note tells of; None for one that is left to others."""


class Understood:
    """Jobs of known kinds. Each is made once; why one is left to others is told once."""

    def __init__(self, kinds: Iterable[Kind[Any]]) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self._lock = threading.Lock()
        self._last: tuple[bytes, Task] | None = None
        self._told: tuple[bytes, str] | None = None

    def __call__(self, noted: bytes, /) -> Task | None:
        with self._lock:
            if self._last is not None and self._last[0] == noted:
                return self._last[1]
            try:
                task = self._made(noted)
            except (OttlaError, ValueError, TypeError, KeyError, AttributeError) as error:
                if self._told != (noted, reason_of(error)):
                    self._told = (noted, reason_of(error))
                    _log.warning("a job is left to other nodes: %s", reason_of(error))
                return None
            self._last = (noted, task)
            return task

    def _made(self, noted: bytes) -> Task:
        found = job_note(noted)
        if (kind := self._kinds.get(found.kind)) is None:
            raise ValueError(f"it is of the kind {found.kind!r}, and this node does {', '.join(self._kinds)}")
        return Task(found.name, kind, kind.job(found.row))


class Node:
    """One process of the group: it has a steward, holds units, and has threads that work on them."""

    def __init__(self, store: Store, understands: Understands, planner: Plans | None, threads: int) -> None:
        self._understands = understands
        self._left: tuple[bytes, float] | None = None
        """The last job that was left to others, and until when."""
        self.host = socket.gethostname()
        name = f"{self.host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._store = store
        self._holdings = HeldUnits(store, name)
        self._done = 0
        self._stopped = threading.Event()
        self._crew = [
            threading.Thread(target=self._work, name=f"ottla-jobs-{number}", daemon=True) for number in range(threads)
        ]
        self.steward = Steward(
            store, self._holdings, planner, store.found(_CHARTER), node=name, report=self._report, tell=self._tell
        )

    def start(self) -> None:
        """It works on whatever there is."""
        self.steward.start()
        for thread in self._crew:
            thread.start()

    def finish(self) -> None:
        """Nothing more is begun; returns when what was begun is done."""
        self._stopped.set()
        for thread in self._crew:
            thread.join()

    def dismiss(self) -> None:
        """Nothing more is done: what was begun goes back."""
        self._stopped.set()
        self._holdings.give_up()
        for thread in self._crew:
            thread.join(_DISMISS_SECONDS)

    def _work(self) -> None:
        nap = _LOOK_SECONDS
        while not self._stopped.is_set():
            try:
                if self._work_once():
                    nap = _LOOK_SECONDS
                    continue
            except StoreUnavailable as error:
                _log.debug("waiting for the store: %s", error)
            except Exception:
                _log.exception("a worker of jobs failed; it goes on")
            self._stopped.wait(nap)
            nap = min(_LONGEST_NAP, 2 * nap)

    def _work_once(self) -> bool:
        if self._is_left():
            return False
        taken = self._holdings.take(1)
        if not taken:
            return False
        try:
            return self._work_on(taken[0])
        finally:
            self._holdings.forget(taken[0])  # whatever happened, nobody works on it any more

    def _is_left(self) -> bool:
        """Whether the job of the group is one that this node does not do."""
        left = self._left
        if left is None or time.monotonic() > left[1]:
            return False
        return self._store.notes(JOB_KEY).get(JOB_KEY) == left[0]

    def _work_on(self, held: Held) -> bool:
        noted = self._holdings.insist(held, lambda: self._store.notes(JOB_KEY)).get(JOB_KEY)
        task = None if noted is None else self._understands(noted)
        if task is None:
            if noted is not None:
                self._left = (noted, time.monotonic() + _LEFT_SECONDS)
            self._holdings.finish(held, held.grant.range.start)
            return False
        try:
            came = self._run(task, held)
        except BaseException as error:  # of a job, on a thread of ours: no interrupt comes here from outside
            told = failure(held.grant, reason_of(error), host=self.host, traceback=trace_of(error))
            self._holdings.fail(held, told)
            return True
        key, text = f"{RESULT_KEYS}{task.name}/{uuid.uuid4().hex}", came.encoded()
        # First the result: a unit that is done has one. If the lease was lost, there are two, and one is undone.
        self._holdings.insist(held, lambda: self._store.note(key, text))
        self._holdings.finish(held, came.unit.stop)
        self._done += 1
        return True

    def _run(self, task: Task, held: Held) -> ResultNote:
        unit, job = held.grant.range, task.job
        bind = getattr(job, "until", None)
        stoppable = job if bind is None else bind(held.lost.is_set)
        try:
            return ResultNote(unit, task.kind.result_row(stoppable(unit)))
        except OttlaError as error:
            error.add_note(f"while {unit} was worked on")
            return ResultNote(unit, None, error)

    def _report(self) -> dict[str, Any]:
        return {"host": self.host, "pid": os.getpid(), "holds": len(self._holdings), "units": {"done": self._done}}

    def _tell(self, event: Event) -> None:
        _log.info("%s", event)
