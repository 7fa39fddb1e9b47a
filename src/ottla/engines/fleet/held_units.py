"""The units that a node holds: takes them, keeps their leases alive, and reports to the store how they ended.

A store and the node's name come in. A report is repeated until the store has received it or the node is closed. If the
store refuses it, because the unit was given to another node, that is an `Ending` and not an error.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

from ottla.engines.fleet.stop_flag import StopFlag
from ottla.engines.fleet.store import Store
from ottla.engines.fleet.units import LEAP, Failure, Grant, Out, node_of
from ottla.errors import OttlaError, StoreUnavailable
from ottla.model import OffsetRange

T = TypeVar("T")
_log = logging.getLogger(__name__)
_RETRY_SECONDS = 0.25
"""Time between two attempts to reach a store that does not answer."""
_HURRIED_SECONDS = 10.0
"""How long reports are repeated once the node was asked to stop."""


class Ending(Enum):
    """How a unit ended."""

    DONE = "done"
    PART = "part"
    """Done up to an offset; the rest waits again."""
    GIVEN_BACK = "given back"
    FAILED = "failed"
    LOST = "lost"
    """The lease was lost: another node has the unit, and the report was rejected."""
    UNSURE = "unsure"
    """The store stopped answering during the report: either it received the report, or the unit is done once more."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Held:
    """A unit that this node holds, for as long as something refers to this object."""

    grant: Grant
    since: float
    """When the unit was taken, on the monotonic clock."""
    lost: threading.Event = field(default_factory=threading.Event)
    """Set when the lease is lost."""


class HeldUnits:
    """All units of one node. Threads may share it."""

    def __init__(
        self,
        store: Store,
        node: str,
        *,
        host: str = "",
        most_seconds: float | None = None,
        went_back: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`most_seconds` is how long a unit may be held before it counts as failed. `went_back` is called with the
        reason when the store issues lease numbers a second time."""
        self._store = store
        self._went_back = went_back
        self._highest = 0
        self._node = node
        self._host = host or node
        self._most_seconds = most_seconds
        self._numbers = itertools.count(1)
        # Weak references: a unit that the program dropped must not be kept alive by its own lease.
        self._held: dict[Grant, weakref.ref[Held]] = {}
        self._taking: set[str] = set()
        """Holders for which a request to the store is in progress."""
        self._astray: set[Grant] = set()
        self._lock = threading.RLock()  # reentrant: a signal handler may end a unit, too
        self._given_up = StopFlag()
        self._hurried_at: float | None = None

    def __len__(self) -> int:
        return len(self.all())

    def take(self, most: int) -> list[Held]:
        """Take up to `most` waiting units. Raises `StoreUnavailable` if the store does not answer."""
        holder = f"{self._node}/{next(self._numbers)}"
        self._taking.add(holder)
        try:
            return self._take(holder, most)
        finally:
            self._taking.discard(holder)

    def _take(self, holder: str, most: int) -> list[Held]:
        known = self._highest  # read before the request: other nodes take units in the meantime
        grants = self._store.take(holder, most)
        if any(grant.lease.number <= known for grant in grants):
            self._refuse(grants, known)
            return []
        self.saw(grant.lease.number for grant in grants)
        now = time.monotonic()
        taken = [Held(grant, now) for grant in grants]
        with self._lock:
            self._held.update((held.grant, weakref.ref(held)) for held in taken)
        return taken

    def saw(self, numbers: Iterable[int]) -> None:
        """Record lease numbers that the store has issued to any node. Later ones must be higher."""
        with self._lock:
            self._highest = max(self._highest, *numbers, 0)

    def renew(self) -> list[Held]:
        """Raise the beat of all leases, and return the units whose lease is lost. Units held too long are failed.

        Raises `StoreUnavailable` if the store does not answer.
        """
        all_held = self.all()
        late = [held for held in all_held if self._is_late(held)]
        for held in late:
            self._store.fail(held.grant.range, held.grant.lease, self._too_long(held))
        leases = [(held.grant.range, held.grant.lease) for held in all_held]
        kept = self._store.renew(leases) if leases else []
        lost = [held for held, is_kept in zip(all_held, kept, strict=True) if not is_kept]
        with self._lock:
            # Units that ended during the request are not lost.
            gone = [held for held in lost if self._held.pop(held.grant, None) is not None]
        for held in gone:
            held.lost.set()
        return gone

    def finish(self, held: Held, reached: int) -> Ending:
        """Report that a unit is done up to `reached`: completely, in part, or not at all, which gives it back.

        Giving back is tried only once: if the store does not answer, the lease simply expires.
        """
        unit = held.grant.range
        ending = Ending.DONE if reached >= unit.stop else Ending.PART if reached > unit.start else Ending.GIVEN_BACK
        insists = ending is not Ending.GIVEN_BACK
        return self._end(held, ending, lambda: self._store.finish(unit, held.grant.lease, reached), insists=insists)

    def fail(self, held: Held, failure: Failure) -> Ending:
        """Report that the attempt has failed."""
        return self._end(held, Ending.FAILED, lambda: self._store.fail(held.grant.range, held.grant.lease, failure))

    def all(self) -> list[Held]:
        """Return the units that have not ended."""
        with self._lock:
            references = [reference() for reference in self._held.values()]
        return [held for held in references if held is not None]

    def insist(self, held: Held, request: Callable[[], T]) -> T:
        """Repeat a request until the store answers.

        Raises `StoreUnavailable` if the unit is lost or the node is closed meanwhile.
        """
        while True:
            try:
                return request()
            except StoreUnavailable:
                if held.lost.is_set() or self._given_up.wait(_RETRY_SECONDS):
                    raise

    def hurry(self) -> None:
        """The node stops: from now on, wait for a store that does not answer only for a bounded time."""
        self._hurried_at = time.monotonic()

    def give_up(self) -> None:
        """Give all units back, and stop waiting for the store. What it does not receive, it learns from the leases."""
        self._given_up.set()
        for held in self.all():
            try:
                self._give_back(held.grant)
            except OttlaError as error:
                _log.warning("could not give back %s, its lease will expire: %s", held.grant.range, error)
                break
        for held in self.all():
            self.forget(held)
            held.lost.set()

    def give_back_astray(self, out: Iterable[Out], *, at_once: bool = False) -> list[Out]:
        """Give back units that are leased to this node but that no code holds any more, and return them.

        The program dropped them, or an interrupt came while they were being taken. No attempt is counted. Unless
        `at_once`, a unit must be astray in two looks: it may have ended since `out` was read.
        """
        mine = {
            Grant(unit.range, unit.seen.lease, unit.attempt): unit
            for unit in out
            if self._is_ours(unit.seen.lease.holder)
        }
        grants = {held.grant for held in self.all()}
        astray = {grant for grant in mine if grant not in grants}
        due = astray if at_once else astray & self._astray
        self._astray = astray - due
        gone = [mine[grant] for grant in due if self._give_back(grant)]
        with self._lock:
            for grant in due:
                self._held.pop(grant, None)
        return gone

    def _is_ours(self, holder: str) -> bool:
        """Whether a holder belongs to this node, and is not just taking the unit."""
        return node_of(holder) == self._node and holder not in self._taking

    def _give_back(self, grant: Grant) -> bool:
        return self._store.finish(grant.range, grant.lease, grant.range.start)

    def _end(self, held: Held, ending: Ending, report: Callable[[], bool], *, insists: bool = True) -> Ending:
        """Call `report` until the store has answered, and return the resulting ending."""
        is_unsure = False
        try:
            while not held.lost.is_set():
                try:
                    # A refusal after an unanswered report is ambiguous: the first one may have used up the lease.
                    return ending if report() else Ending.UNSURE if is_unsure else Ending.LOST
                except StoreUnavailable:
                    is_unsure = True
                    if not insists or self._is_too_late() or self._given_up.wait(_RETRY_SECONDS):
                        break
            return Ending.UNSURE if is_unsure else Ending.LOST
        finally:
            self.forget(held)  # even if the store raised another error: a lease without a worker must expire

    def _is_too_late(self) -> bool:
        return self._hurried_at is not None and time.monotonic() - self._hurried_at > _HURRIED_SECONDS

    def forget(self, held: Held) -> None:
        """Stop renewing the lease of a unit."""
        with self._lock:
            self._held.pop(held.grant, None)

    def _refuse(self, grants: list[Grant], known: int) -> None:
        """Give back units with old lease numbers: a system that has seen a higher fence would reject their writes."""
        self._store.raise_number(known + LEAP)
        for grant in grants:
            self._give_back(grant)
        self._went_back(f"it issued number {grants[0].lease.number} after number {known}")

    def _is_late(self, held: Held) -> bool:
        return self._most_seconds is not None and time.monotonic() - held.since > self._most_seconds

    def _too_long(self, held: Held) -> Failure:
        return failure(held.grant, f"it took longer than {self._most_seconds} s", host=self._host)


def failure(grant: Grant, reason: str, *, host: str, traceback: str = "") -> Failure:
    """Return the entry for the error list of a unit that failed here and now."""
    return Failure(grant.range, grant.attempt, reason, traceback, host, time.time())


def lost_by(unit: OffsetRange, holder: str, attempt: int, reason: str) -> Failure:
    """Return the entry for the error list of a unit whose holder is gone."""
    return Failure(unit, attempt, reason, "", node_of(holder), time.time())
