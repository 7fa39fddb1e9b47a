"""Runs a job over ranges on the nodes of a fleet, as the local engine does in threads and Spark's in tasks.

The job is put into the store with the ranges as units; nodes that `serve` the group, and threads of whoever asked, run
it and put the results there. The job is pickled: whoever can write to the store can run code on its nodes. A range may
be worked on twice, and its result is handed out once.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from ottla.engines.fleet.holding import Held, Holdings, failure
from ottla.engines.fleet.steward import Plans, Steward
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.unit import reason_of, trace_of
from ottla.engines.fleet.units import Charter, Lease, Move
from ottla.errors import EngineFailed, FleetConflict, OttlaError, StoreUnavailable
from ottla.events.values import Event
from ottla.model import OffsetRange, TopicPartition

T = TypeVar("T")
_log = logging.getLogger(__name__)
_CHARTER = Charter(max_attempts=4)
JOBS = "jobs"
"""The group in which jobs run, unless another one is named."""
_JOB, _RESULTS, _SPARE = "job", "result/", "spare/"
"""Notes in the store: the job, and what came of its ranges, once and a second time."""
_LEAD_SECONDS = 15.0
_STORE_SECONDS = 60.0
_CHECK_SECONDS = 1.0
_LOOK_SECONDS = 0.05
_LONGEST_NAP = 0.25
_DISMISS_SECONDS = 10.0
"""For a job that cannot be asked to end in the middle."""


def run(
    job: Callable[[OffsetRange], T], ranges: Iterable[OffsetRange], *, store: Store, threads: int = 1
) -> Generator[T, None, None]:
    """What the job returns for each range, as they are done; `threads` of this process work, too.

    An error of Ottla's own is raised here as it was there; any other is tried again on another node, some times.
    Results that nobody takes any more are handed to the job's method `undo`, if it has one.
    """
    wanted = list(ranges)
    if not wanted:
        return
    asked = _Asked(job, store)
    with _joined(store, _Nothing(), threads) as node:
        lease = _lead(node, store)
        try:
            asked.put(lease, wanted)
            yield from asked.results(wanted)
        finally:
            asked.withdraw()
            node.dismiss()
            asked.undo()


def serve(store: Store, *, threads: int = 1, is_stopped: Callable[[], object]) -> None:
    """Works on whatever jobs are put into the group, until it is stopped; ranges that are begun are finished."""
    with _joined(store, None, threads) as node:
        while not is_stopped():
            time.sleep(_LONGEST_NAP)
        node.finish()


# Whoever asks


class _Nothing:
    """Plans nothing: the ranges are given."""

    def begin(self) -> None:
        """Nothing to forget."""

    def round(self, lease: Lease) -> bool:
        """Nothing is due."""
        return False

    def end(self) -> None:
        """Nothing to keep."""


def _lead(node: _Node, store: Store) -> Lease:
    """The right to plan, which one job at a time has."""
    deadline = time.monotonic() + _LEAD_SECONDS
    while (lease := node.steward.lease) is None:
        if time.monotonic() > deadline:
            raise FleetConflict(
                f"another job runs in this group of {store.address}, or nobody could say so within"
                f" {_LEAD_SECONDS:.0f} s: wait for it, or use another group"
            )
        time.sleep(_LOOK_SECONDS)
    return lease


class _Asked(Generic[T]):
    """A job in a store, and what comes of it. A store that does not answer may come back: it is asked for a while."""

    def __init__(self, job: Callable[[OffsetRange], T], store: Store) -> None:
        self._job = job
        self._store = store
        self._name = uuid.uuid4().hex
        self._note = pickle.dumps((self._name, job))

    def put(self, lease: Lease, wanted: list[OffsetRange]) -> None:
        """The job and its ranges. Whatever is there was left by somebody who died in the middle."""
        _clear(self._store)
        for key in self._store.notes():
            self._store.note(key, None)
        self._store.note(_JOB, self._note)
        lanes: dict[TopicPartition, list[OffsetRange]] = {}
        for one in wanted:
            lanes.setdefault(one.topic_partition, []).append(one)
        moves = [Move(at, None, max(one.stop for one in units), tuple(units)) for at, units in lanes.items()]
        if not self._store.plan(lease, moves):
            raise FleetConflict(f"another job was begun in this group of {self._store.address} at the same time")

    def results(self, wanted: list[OffsetRange]) -> Iterator[T]:
        """One for each range."""
        missing = set(wanted)
        check_at = 0.0
        while missing:
            for key, value in _patiently(self._notes, _RESULTS).items():
                unit, result = pickle.loads(value)  # noqa: S301 - from our own nodes
                if unit not in missing:
                    _patiently(self._store.note, f"{_SPARE}{self._name}/{uuid.uuid4().hex}", value)
                _patiently(self._store.note, key, None)
                if unit in missing:
                    missing.discard(unit)
                    if isinstance(result, _Raised):
                        raise result.error
                    yield result
            if missing and time.monotonic() >= check_at:
                self._check(missing)
                check_at = time.monotonic() + _CHECK_SECONDS
            if missing:
                time.sleep(_LOOK_SECONDS)

    def withdraw(self) -> None:
        """No such job any more: whoever holds a unit of it has lost it. A job that somebody else began stays."""
        try:
            if self._is_there():
                _clear(self._store)
        except StoreUnavailable as error:
            _log.warning("the job was left in the store, where the next one replaces it: %s", error)

    def undo(self) -> None:
        """For results that nobody has taken."""
        undo = getattr(self._job, "undo", None)
        try:
            for key, value in {**self._notes(_RESULTS), **self._notes(_SPARE)}.items():
                _, result = pickle.loads(value)  # noqa: S301 - from our own nodes
                if undo is not None and not isinstance(result, _Raised):
                    undo(result)
                self._store.note(key, None)
        except StoreUnavailable as error:
            _log.warning("results that nobody takes were not undone: %s", error)

    def _check(self, missing: set[OffsetRange]) -> None:
        """Whether the rest can still come."""
        if not _patiently(self._is_there):
            raise FleetConflict(
                f"the job is gone from {self._store.address}: the store has forgotten it, or another job was begun"
                " while this process stood still; run it again"
            )
        for given_up in _patiently(self._store.failures):
            if given_up.range in missing:
                raise EngineFailed(
                    f"{given_up.range} failed {given_up.attempts} times, at last on {given_up.host}: {given_up.reason}"
                )

    def _is_there(self) -> bool:
        return self._store.notes(_JOB).get(_JOB) == self._note

    def _notes(self, prefix: str) -> dict[str, bytes]:
        return self._store.notes(f"{prefix}{self._name}/")


def _patiently(ask: Callable[..., T], *words: object) -> T:
    """What a store answers, even if it does not answer at once."""
    deadline = time.monotonic() + _STORE_SECONDS
    while True:
        try:
            return ask(*words)
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LONGEST_NAP)


def _clear(store: Store) -> None:
    """No job: whoever holds a unit of one has lost it."""
    store.note(_JOB, None)
    for lane in store.look().lanes:
        store.reset(lane.at, None)


# Whoever works


class _Raised:
    """What is put into the store when a job has raised an error that another attempt would raise again."""

    def __init__(self, error: OttlaError) -> None:
        self.error = error


class _Node:
    """One process of the group: it has a steward, holds units, and has threads that work on them."""

    def __init__(self, store: Store, planner: Plans | None, threads: int) -> None:
        self.host = socket.gethostname()
        name = f"{self.host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._store = store
        self._holdings = Holdings(store, name)
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
        taken = self._holdings.take(1)
        if not taken:
            return False
        try:
            return self._work_on(taken[0])
        finally:
            self._holdings.forget(taken[0])  # whatever happened, nobody works on it any more

    def _work_on(self, held: Held) -> bool:
        noted = self._holdings.insist(held, lambda: self._store.notes(_JOB)).get(_JOB)
        if noted is None:
            self._holdings.finish(held, held.grant.range.start)
            return False
        try:
            name, job = pickle.loads(noted)  # noqa: S301 - from our own store
            result = self._run(job, held)
        except Exception as error:
            told = failure(held.grant, reason_of(error), host=self.host, traceback=trace_of(error))
            self._holdings.fail(held, told)
            return True
        unit = held.grant.range
        key, text = f"{_RESULTS}{name}/{uuid.uuid4().hex}", pickle.dumps((unit, result))
        # First the result: a unit that is done has one. If the lease was lost, there are two, and one is undone.
        self._holdings.insist(held, lambda: self._store.note(key, text))
        self._holdings.finish(held, unit.stop)
        self._done += 1
        return True

    def _run(self, job: Any, held: Held) -> Any:
        bind = getattr(job, "until", None)
        stoppable = job if bind is None else bind(held.lost.is_set)
        try:
            return stoppable(held.grant.range)
        except OttlaError as error:
            error.add_note(f"while {held.grant.range} was worked on")
            return _Raised(error)

    def _report(self) -> dict[str, Any]:
        return {"host": self.host, "pid": os.getpid(), "holds": len(self._holdings), "units": {"done": self._done}}

    def _tell(self, event: Event) -> None:
        _log.info("%s", event)


@contextmanager
def _joined(store: Store, planner: Plans | None, threads: int) -> Iterator[_Node]:
    node = _Node(store, planner, threads)
    node.start()
    try:
        yield node
    finally:
        node.dismiss()
        node.steward.stop()
