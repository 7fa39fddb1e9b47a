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
from typing import Any, TypeVar

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
_JOB = "job"
_LEAD_SECONDS = 15.0
_STORE_SECONDS = 60.0
_LOOK_SECONDS = 0.05
_LONGEST_NAP = 0.25


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
    stopped = threading.Event()
    with _joined(store, _Nothing()) as node:
        lease = _lead(node, store)
        name = uuid.uuid4().hex
        crew = [threading.Thread(target=node.work, args=(stopped,), daemon=True) for _ in range(threads)]
        try:
            _clear(store)
            store.note(_JOB, pickle.dumps((name, job)))
            _publish(store, lease, wanted)
            for thread in crew:
                thread.start()
            yield from _collected(store, name, wanted)
        finally:
            _clear(store)
            stopped.set()
            for thread in crew:
                if thread.ident is not None:
                    thread.join()
            _undo(job, store, name)


def serve(store: Store, *, threads: int = 1, is_stopped: Callable[[], object]) -> None:
    """Works on whatever jobs are put into the group, until it is stopped; ranges that are begun are finished."""
    stopped = threading.Event()
    with _joined(store, None) as node:
        crew = [threading.Thread(target=node.work, args=(stopped,), daemon=True) for _ in range(threads)]
        for thread in crew:
            thread.start()
        try:
            while not is_stopped():
                time.sleep(_LONGEST_NAP)
        finally:
            stopped.set()
        for thread in crew:
            thread.join()


# Whoever asks


class _Nothing:
    """Plans nothing: the ranges are given."""

    def begin(self) -> None:
        """Nothing to forget."""

    def round(self, lease: Lease) -> None:
        """Nothing is due."""

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


def _publish(store: Store, lease: Lease, wanted: list[OffsetRange]) -> None:
    lanes: dict[TopicPartition, list[OffsetRange]] = {}
    for one in wanted:
        lanes.setdefault(one.topic_partition, []).append(one)
    moves = [Move(at, None, max(one.stop for one in units), tuple(units)) for at, units in lanes.items()]
    if not store.plan(lease, moves):
        raise FleetConflict(f"another job was begun in this group of {store.address} at the same time")


def _collected(store: Store, name: str, wanted: list[OffsetRange]) -> Iterator[Any]:
    missing = set(wanted)
    while missing:
        for key, value in _patiently(lambda: store.notes(f"result/{name}/")).items():
            unit, result = pickle.loads(value)  # noqa: S301 - from our own nodes
            store.note(key, None)
            if unit not in missing:
                store.note(f"spare/{name}/{uuid.uuid4().hex}", value)
                continue
            missing.discard(unit)
            if isinstance(result, _Raised):
                raise result.error
            yield result
        for given_up in _patiently(store.failures):
            if given_up.range in missing:
                raise EngineFailed(
                    f"{given_up.range} failed {given_up.attempts} times, at last on {given_up.host}: {given_up.reason}"
                )
        if missing:
            time.sleep(_LOOK_SECONDS)


def _patiently(ask: Callable[[], T]) -> T:
    """A store that does not answer may come back, and nothing is lost meanwhile."""
    deadline = time.monotonic() + _STORE_SECONDS
    while True:
        try:
            return ask()
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LONGEST_NAP)


def _clear(store: Store) -> None:
    """No job: whoever holds a unit of one has lost it."""
    store.note(_JOB, None)
    for lane in store.look().lanes:
        store.reset(lane.at, None)


def _undo(job: Callable[[OffsetRange], Any], store: Store, name: str) -> None:
    undo = getattr(job, "undo", None)
    for prefix in (f"result/{name}/", f"spare/{name}/"):
        for key, value in store.notes(prefix).items():
            _, result = pickle.loads(value)  # noqa: S301 - from our own nodes
            if undo is not None and not isinstance(result, _Raised):
                undo(result)
            store.note(key, None)


# Whoever works


class _Raised:
    """What is put into the store when a job has raised an error that another attempt would raise again."""

    def __init__(self, error: OttlaError) -> None:
        self.error = error


class _Node:
    """One process of the group: it holds units and has a steward."""

    def __init__(self, store: Store, planner: Plans | None) -> None:
        self.host = socket.gethostname()
        name = f"{self.host}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._store = store
        self._holdings = Holdings(store, name)
        self._done = 0
        self.steward = Steward(
            store, self._holdings, planner, store.found(_CHARTER), node=name, report=self._report, tell=self._tell
        )

    def work(self, stopped: threading.Event) -> None:
        """Takes units and runs the job on them."""
        nap = _LOOK_SECONDS
        while not stopped.is_set():
            try:
                if self._work_once():
                    nap = _LOOK_SECONDS
                    continue
            except StoreUnavailable as error:
                _log.debug("waiting for the store: %s", error)
            except Exception:
                _log.exception("a worker of jobs failed; it goes on")
            stopped.wait(nap)
            nap = min(_LONGEST_NAP, 2 * nap)

    def _work_once(self) -> bool:
        taken = self._holdings.take(1)
        if not taken:
            return False
        held = taken[0]
        noted = self._store.notes(_JOB).get(_JOB)
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
        key = f"result/{name}/{uuid.uuid4().hex}"
        # First the result: a unit that is done has one. If the lease was lost, there are two, and one is undone.
        self._store.note(key, pickle.dumps((unit, result)))
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
def _joined(store: Store, planner: Plans | None) -> Iterator[_Node]:
    node = _Node(store, planner)
    node.steward.start()
    try:
        yield node
    finally:
        node.steward.stop()
