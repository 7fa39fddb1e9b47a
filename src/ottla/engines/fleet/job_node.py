"""A node that works on jobs: a steward, held units, and threads that run the job of the group on them.

A store and a way to decode its jobs come in; results go into the store. This module does not know who asked for them.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from ottla.engines.contract import Job, stoppable
from ottla.engines.fleet.held_units import Held, HeldUnits, failure
from ottla.engines.fleet.job_notes import JOB_KEY, RESULT_KEYS, Kind, ResultNote, job_note
from ottla.engines.fleet.steward import Plans, Steward
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.unit import reason_of, trace_of
from ottla.engines.fleet.units import Charter
from ottla.errors import OttlaError, StoreUnavailable
from ottla.events import Event

_log = logging.getLogger(__name__)
_CHARTER = Charter(max_attempts=4)
"""The charter of a group for jobs, unless the group already has another."""
_LOOK_SECONDS, _LONGEST_NAP = 0.05, 0.25
"""Shortest and longest time between two requests for units while there are none."""
_SKIP_SECONDS = 10.0
"""How long a node skips a job that it cannot do. The reason may pass."""
_DISMISS_SECONDS = 10.0
"""How long to wait for a job that is not a `StoppableJob`."""


class Task(NamedTuple):
    """The job of the group, as this process runs it."""

    name: str
    kind: Kind[Any]
    job: Job[Any]


class TaskFactory(Protocol):
    """Decides which jobs of a group a node does."""

    def __call__(self, note: bytes, /) -> Task | None:
        """Return the task for the note of a job; None if other nodes shall do it."""


class KnownKinds:
    """Builds tasks for jobs of known kinds. Caches the last task, and logs a job that it cannot do only once."""

    def __init__(self, kinds: Iterable[Kind[Any]]) -> None:
        self._kinds = {kind.name: kind for kind in kinds}
        self._lock = threading.Lock()
        self._last: tuple[bytes, Task] | None = None
        self._logged: tuple[bytes, str] | None = None

    def __call__(self, note: bytes, /) -> Task | None:
        with self._lock:
            if self._last is not None and self._last[0] == note:
                return self._last[1]
            try:
                task = self._build(note)
            except (OttlaError, ValueError, TypeError, KeyError, AttributeError) as error:
                if self._logged != (note, reason_of(error)):
                    self._logged = (note, reason_of(error))
                    _log.warning("this node leaves a job to other nodes: %s", reason_of(error))
                return None
            self._last = (note, task)
            return task

    def _build(self, note: bytes) -> Task:
        job = job_note(note)
        if (kind := self._kinds.get(job.kind)) is None:
            raise ValueError(f"its kind is {job.kind!r}, and this node does {', '.join(self._kinds)}")
        return Task(job.name, kind, kind.job(job.row))


class Node:
    """One process of the group: a steward, held units, and threads that work on them."""

    def __init__(self, store: Store, task_of: TaskFactory, planner: Plans | None, threads: int) -> None:
        self._task_of = task_of
        self._skipped: tuple[bytes, float] | None = None
        """The last job that this node does not do, and until when it skips it."""
        self.host = socket.gethostname()
        name = f"{self.host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._store = store
        self._held_units = HeldUnits(store, name)
        self._done = 0
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, name=f"ottla-jobs-{number}", daemon=True) for number in range(threads)
        ]
        self.steward = Steward(
            store,
            self._held_units,
            planner,
            store.found(_CHARTER),
            node=name,
            report=self._report,
            tell=self._log_event,
        )

    def start(self) -> None:
        """Join the group and start working."""
        self.steward.start()
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Take no more units, and wait until those in progress are done."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def dismiss(self) -> None:
        """Stop working, and give back the units in progress."""
        self._stopped.set()
        self._held_units.give_up()
        for thread in self._threads:
            thread.join(_DISMISS_SECONDS)

    def _work(self) -> None:
        """The loop of a worker thread."""
        nap = _LOOK_SECONDS
        while not self._stopped.is_set():
            try:
                if self._work_once():
                    nap = _LOOK_SECONDS
                    continue
            except StoreUnavailable as error:
                _log.debug("waiting for the store: %s", error)
            except Exception:
                _log.exception("a worker thread failed; it continues with the next unit")
            self._stopped.wait(nap)
            nap = min(_LONGEST_NAP, 2 * nap)

    def _work_once(self) -> bool:
        """Take a unit and work on it. Returns False if there is nothing to do."""
        if self._is_skipping():
            return False
        taken = self._held_units.take(1)
        if not taken:
            return False
        try:
            return self._work_on(taken[0])
        finally:
            self._held_units.forget(taken[0])  # whatever happened, this node no longer works on it

    def _is_skipping(self) -> bool:
        """Whether the job of the group is one that this node does not do."""
        skipped = self._skipped
        if skipped is None or time.monotonic() > skipped[1]:
            return False
        return self._store.notes(JOB_KEY).get(JOB_KEY) == skipped[0]

    def _work_on(self, held: Held) -> bool:
        note = self._held_units.insist(held, lambda: self._store.notes(JOB_KEY)).get(JOB_KEY)
        task = None if note is None else self._task_of(note)
        if task is None:
            if note is not None:
                self._skipped = (note, time.monotonic() + _SKIP_SECONDS)
            self._held_units.finish(held, held.grant.range.start)
            return False
        try:
            result = self._run(task, held)
        except BaseException as error:  # the job's own failure: no signal arrives on a worker thread
            entry = failure(held.grant, reason_of(error), host=self.host, traceback=trace_of(error))
            self._held_units.fail(held, entry)
            return True
        key, text = f"{RESULT_KEYS}{task.name}/{uuid.uuid4().hex}", result.encoded()
        # The result first, so that every finished unit has one. If the lease was lost, another node stores a second
        # result, and the caller undoes one of the two.
        self._held_units.insist(held, lambda: self._store.note(key, text))
        self._held_units.finish(held, result.unit.stop)
        self._done += 1
        return True

    def _run(self, task: Task, held: Held) -> ResultNote:
        """Run the job on a unit. An `OttlaError` is a result: another attempt would raise it again."""
        unit = held.grant.range
        job = stoppable(task.job, held.lost.is_set)
        try:
            return ResultNote(unit, task.kind.result_row(job(unit)))
        except OttlaError as error:
            error.add_note(f"while {unit} was worked on")
            return ResultNote(unit, None, error)

    def _report(self) -> dict[str, Any]:
        return {"host": self.host, "pid": os.getpid(), "holds": len(self._held_units), "units": {"done": self._done}}

    def _log_event(self, event: Event) -> None:
        _log.info("%s", event)
