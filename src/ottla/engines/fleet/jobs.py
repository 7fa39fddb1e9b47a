"""The engine that runs a job over ranges on the nodes of a fleet.

`run` puts the job into the store, with its ranges as units. Nodes that `serve` the group, and threads of the caller,
run it and put the results into the store. Jobs and results travel as plain values of a known kind (`job_notes`):
nothing that comes from a store is executed. A range may be worked on twice, but its result is yielded once.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ottla.engines import contract
from ottla.engines.contract import Job
from ottla.engines.fleet.job_node import KnownKinds, Node, Task, TaskFactory
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
"""The default group for jobs."""
_LEAD_SECONDS = 15.0
"""How long `run` waits for the lease to plan. The lease of a caller that died expires sooner."""
_STORE_SECONDS = 60.0
"""How long requests to a store that does not answer are retried."""
_CHECK_SECONDS = 1.0
"""Time between two checks that missing results can still come."""
_LOOK_SECONDS = 0.05
"""Time between two looks for results."""
_LONGEST_NAP = 0.25


def run(
    job: Job[T], ranges: Iterable[OffsetRange], *, kind: Kind[T], store: Store, threads: int = 1
) -> Generator[T, None, None]:
    """Yield what the job returns for each range, in the order of completion; `threads` of this process work, too.

    `kind` encodes the job and its results for the nodes that `serve` jobs of this kind. Results that were not yielded
    go to the job's `undo`, if it is an `UndoableJob`. Raises the first `OttlaError` of the job; a range with any other
    error is retried on any node, and raises `EngineFailed` after its last attempt. Raises `FleetConflict` if another
    job runs in the group, and `StoreUnavailable` if the store does not answer for long.
    """
    units = list(ranges)
    if not units:
        return
    stored_job = _StoredJob(job, kind, store)
    with _joined(store, stored_job.task_of, _NoPlanner(), threads) as node:
        lease = _lead(node, store)
        try:
            stored_job.put(lease, units)
            yield from stored_job.results(units)
        finally:
            # In this order: no node may begin a range, then this one stops, and only then is the rest undone.
            stored_job.withdraw()
            node.dismiss()
            stored_job.undo()


def serve(store: Store, *, kinds: Iterable[Kind[Any]], threads: int = 1, is_stopped: Callable[[], object]) -> None:
    """Work on jobs of these kinds until `is_stopped` returns True; ranges in progress are then finished.

    Leaves a job that this node cannot do to other nodes. Raises `StoreUnavailable` if the store does not answer at the
    start.
    """
    with _joined(store, KnownKinds(kinds), None, threads) as node:
        while not is_stopped():
            time.sleep(_LONGEST_NAP)
        node.finish()


# The caller's side


class _NoPlanner:
    """Plans nothing: `run` puts the units into the store itself."""

    def begin(self) -> None:
        """Do nothing."""

    def round(self, lease: Lease) -> bool:
        """Do nothing."""
        return False

    def end(self) -> None:
        """Do nothing."""


def _lead(node: Node, store: Store) -> Lease:
    """Wait for the lease to plan, which one job at a time holds. Raises `FleetConflict` if another job keeps it."""
    deadline = time.monotonic() + _LEAD_SECONDS
    while (lease := node.steward.lease) is None:
        if time.monotonic() > deadline:
            raise FleetConflict(
                f"another job runs in this group of {store.address}, or the store did not answer within"
                f" {_LEAD_SECONDS:.0f} s: wait for the other job, or use another group"
            )
        time.sleep(_LOOK_SECONDS)
    return lease


@dataclass(frozen=True, slots=True)
class _Outcome(Generic[T]):
    """The result or the error of a range."""

    unit: OffsetRange
    result: Any
    """What the job returned, unless there is an error."""
    error: OttlaError | None


class _StoredJob(Generic[T]):
    """A job in a store, and its results. Requests to a store that does not answer are retried for a while."""

    def __init__(self, job: Job[T], kind: Kind[T], store: Store) -> None:
        self._job = job
        self._kind = kind
        self._store = store
        self._name = uuid.uuid4().hex
        self._note = JobNote(kind=kind.name, name=self._name, row=dict(kind.job_row(job))).encoded()

    def task_of(self, note: bytes) -> Task | None:
        """Return the task for this job. This process does no other job of the group."""
        return Task(self._name, self._kind, self._job) if note == self._note else None

    def put(self, lease: Lease, ranges: list[OffsetRange]) -> None:
        """Put the job and its ranges into the store, in place of anything that a crashed caller left there.

        Raises `FleetConflict` if the lease to plan is lost.
        """
        _clear(self._store)
        for key in self._store.notes():
            self._store.note(key, None)
        self._store.note(JOB_KEY, self._note)
        by_partition: dict[TopicPartition, list[OffsetRange]] = {}
        for unit in sorted(ranges):
            by_partition.setdefault(unit.topic_partition, []).append(unit)
        moves = [
            Move(partition, None, max(unit.stop for unit in units), tuple(units))
            for partition, units in by_partition.items()
        ]
        if not all(self._store.plan(lease, portion) for portion in portions(moves)):
            raise FleetConflict(f"another job was started in this group of {self._store.address} at the same time")

    def results(self, ranges: list[OffsetRange]) -> Iterator[T]:
        """Yield one result per range."""
        missing = set(ranges)
        check_at = 0.0
        while missing:
            for key, value in _patiently(self._notes, RESULT_KEYS).items():
                outcome = self._outcome(value)
                if outcome is not None and outcome.unit not in missing:
                    # A second result of the same range. It is kept for `undo` under another key.
                    _patiently(self._store.note, f"{SPARE_KEYS}{self._name}/{uuid.uuid4().hex}", value)
                _patiently(self._store.note, key, None)
                if outcome is not None and outcome.unit in missing:
                    missing.discard(outcome.unit)
                    if outcome.error is not None:
                        raise outcome.error
                    yield outcome.result
            if missing and time.monotonic() >= check_at:
                self._check(missing)
                check_at = time.monotonic() + _CHECK_SECONDS
            if missing:
                time.sleep(_LOOK_SECONDS)

    def withdraw(self) -> None:
        """Remove the job from the store, unless it is another job by now. Units in progress lose their leases."""
        try:
            if self._is_current():
                _clear(self._store)
        except StoreUnavailable as error:
            _log.warning("the job stays in the store until the next job replaces it: %s", error)

    def undo(self) -> None:
        """Undo the results that were not yielded."""
        try:
            for key, value in {**self._notes(RESULT_KEYS), **self._notes(SPARE_KEYS)}.items():
                outcome = self._outcome(value)
                if outcome is not None and outcome.error is None:
                    contract.undo(self._job, [outcome.result])
                self._store.note(key, None)
        except StoreUnavailable as error:
            _log.warning("could not undo unused results: %s", error)

    def _outcome(self, note: bytes) -> _Outcome[T] | None:
        """Decode a result; None if no node of this job can have written it."""
        try:
            unit, row, error = result_note(note)
            return _Outcome(unit, None if row is None else self._kind.result(row), error)
        except (ValueError, TypeError, KeyError, AttributeError) as parse_error:
            _log.warning("ignored a note in %s that is not a result: %s", self._store.address, parse_error)
            return None

    def _check(self, missing: set[OffsetRange]) -> None:
        """Raise if the missing results cannot come any more."""
        if not _patiently(self._is_current):
            raise FleetConflict(
                f"the job is gone from {self._store.address}: the store lost it, or another job was started while this"
                " process was suspended; run the job again"
            )
        for entry in _patiently(self._store.failures):
            if entry.range in missing:
                raise EngineFailed(
                    f"{entry.range} failed {entry.attempts} times, most recently on {entry.host}: {entry.reason}"
                )

    def _is_current(self) -> bool:
        return self._store.notes(JOB_KEY).get(JOB_KEY) == self._note

    def _notes(self, prefix: str) -> dict[str, bytes]:
        return self._store.notes(f"{prefix}{self._name}/")


def _patiently(request: Callable[..., T], *arguments: object) -> T:
    """Repeat a request until the store answers. Raises `StoreUnavailable` after a minute."""
    deadline = time.monotonic() + _STORE_SECONDS
    while True:
        try:
            return request(*arguments)
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LONGEST_NAP)


def _clear(store: Store) -> None:
    """Remove the job and its units. Units in progress lose their leases."""
    store.note(JOB_KEY, None)
    for state in store.look().partitions:
        store.reset(state.partition, None)


@contextmanager
def _joined(store: Store, task_of: TaskFactory, planner: Plans | None, threads: int) -> Iterator[Node]:
    node = Node(store, task_of, planner, threads)
    node.start()
    try:
        yield node
    finally:
        node.dismiss()
        node.steward.stop()
