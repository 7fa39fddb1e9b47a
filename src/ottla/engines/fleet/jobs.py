"""Runs a job over ranges on the nodes of a fleet, as the local engine does in threads and Spark's in tasks.

The job is put into the store with the ranges as units; nodes that `serve` the group, and threads of whoever asked, run
it and put the results there. Jobs and results travel as plain values of a known kind (`job_notes`): nothing that comes
from a store is run. A range may be worked on twice, and its result is handed out once.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ottla.engines.fleet.job_node import Node, Task, Understands, Understood
from ottla.engines.fleet.job_notes import JOB_KEY, RESULT_KEYS, SPARE_KEYS, JobNote, Kind, result_note
from ottla.engines.fleet.planning import portions
from ottla.engines.fleet.steward import Plans
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.units import Lease, Move
from ottla.errors import EngineFailed, FleetConflict, OttlaError, StoreUnavailable
from ottla.model import OffsetRange, TopicPartition

T = TypeVar("T")
_log = logging.getLogger(__name__)
JOBS = "jobs"
"""The group in which jobs run, unless another one is named."""
_LEAD_SECONDS = 15.0
_STORE_SECONDS = 60.0
_CHECK_SECONDS = 1.0
_LOOK_SECONDS = 0.05
_LONGEST_NAP = 0.25


def run(
    job: Callable[[OffsetRange], T], ranges: Iterable[OffsetRange], *, kind: Kind[T], store: Store, threads: int = 1
) -> Generator[T, None, None]:
    """What the job returns for each range, as they are done; `threads` of this process work, too.

    `kind` says how the job and its results travel to and from the nodes that `serve` jobs of this kind. An error of
    Ottla's own is raised here as it was there; any other is tried again on another node, some times. Results that
    nobody takes any more are handed to the job's method `undo`, if it has one.
    """
    wanted = list(ranges)
    if not wanted:
        return
    asked = _Asked(job, kind, store)
    with _joined(store, asked.understood, _Nothing(), threads) as node:
        lease = _lead(node, store)
        try:
            asked.put(lease, wanted)
            yield from asked.results(wanted)
        finally:
            asked.withdraw()
            node.dismiss()
            asked.undo()


def serve(store: Store, *, kinds: Iterable[Kind[Any]], threads: int = 1, is_stopped: Callable[[], object]) -> None:
    """Works on the jobs of these kinds that are put into the group, until it is stopped; ranges that are begun are
    finished. A job that this node cannot do is left to the others."""
    with _joined(store, Understood(kinds), None, threads) as node:
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


def _lead(node: Node, store: Store) -> Lease:
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


@dataclass(frozen=True, slots=True)
class _Came(Generic[T]):
    """What came of a range."""

    unit: OffsetRange
    result: Any
    """Of the job, unless there is an error."""
    error: OttlaError | None


class _Asked(Generic[T]):
    """A job in a store, and what comes of it. A store that does not answer may come back: it is asked for a while."""

    def __init__(self, job: Callable[[OffsetRange], T], kind: Kind[T], store: Store) -> None:
        self._job = job
        self._kind = kind
        self._store = store
        self._name = uuid.uuid4().hex
        self._note = JobNote(kind=kind.name, name=self._name, row=dict(kind.job_row(job))).encoded()

    def understood(self, noted: bytes) -> Task | None:
        """What this process does of the jobs in the group: its own."""
        return Task(self._name, self._kind, self._job) if noted == self._note else None

    def put(self, lease: Lease, wanted: list[OffsetRange]) -> None:
        """The job and its ranges. Whatever is there was left by somebody who died in the middle."""
        _clear(self._store)
        for key in self._store.notes():
            self._store.note(key, None)
        self._store.note(JOB_KEY, self._note)
        lanes: dict[TopicPartition, list[OffsetRange]] = {}
        for one in sorted(wanted):
            lanes.setdefault(one.topic_partition, []).append(one)
        moves = [Move(at, None, max(one.stop for one in units), tuple(units)) for at, units in lanes.items()]
        if not all(self._store.plan(lease, portion) for portion in portions(moves)):
            raise FleetConflict(f"another job was begun in this group of {self._store.address} at the same time")

    def results(self, wanted: list[OffsetRange]) -> Iterator[T]:
        """One for each range."""
        missing = set(wanted)
        check_at = 0.0
        while missing:
            for key, value in _patiently(self._notes, RESULT_KEYS).items():
                found = self._result(value)
                if found is not None and found.unit not in missing:
                    _patiently(self._store.note, f"{SPARE_KEYS}{self._name}/{uuid.uuid4().hex}", value)
                _patiently(self._store.note, key, None)
                if found is not None and found.unit in missing:
                    missing.discard(found.unit)
                    if found.error is not None:
                        raise found.error
                    yield found.result
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
            for key, value in {**self._notes(RESULT_KEYS), **self._notes(SPARE_KEYS)}.items():
                found = self._result(value)
                if undo is not None and found is not None and found.error is None:
                    undo(found.result)
                self._store.note(key, None)
        except StoreUnavailable as error:
            _log.warning("results that nobody takes were not undone: %s", error)

    def _result(self, noted: bytes) -> _Came[T] | None:
        """None for what no node of this job has written."""
        try:
            unit, row, error = result_note(noted)
            return _Came(unit, None if row is None else self._kind.result(row), error)
        except (ValueError, TypeError, KeyError, AttributeError) as trouble:
            _log.warning("something in %s is not a result, and is left out: %s", self._store.address, trouble)
            return None

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
        return self._store.notes(JOB_KEY).get(JOB_KEY) == self._note

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
    store.note(JOB_KEY, None)
    for lane in store.look().lanes:
        store.reset(lane.at, None)


@contextmanager
def _joined(store: Store, understands: Understands, planner: Plans | None, threads: int) -> Iterator[Node]:
    node = Node(store, understands, planner, threads)
    node.start()
    try:
        yield node
    finally:
        node.dismiss()
        node.steward.stop()
