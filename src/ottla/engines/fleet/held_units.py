"""The units that a node holds: taking them, keeping their leases alive, and telling the store what became of them.

A store and the node's name come in. Every word is said until the store has heard it or the node is closed; a word that
the store refuses because the unit was given to somebody else is an `Ending`, not an error.
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
_AGAIN_SECONDS = 0.25
"""Between two tries to tell a store that does not answer."""
_HURRIED_SECONDS = 10.0
"""How long a store is told again once the node is to stop."""


class Ending(Enum):
    """What became of a unit."""

    DONE = "done"
    PART = "part"
    """Done up to somewhere; the rest waits again."""
    GIVEN_BACK = "given back"
    FAILED = "failed"
    LOST = "lost"
    """The lease was gone: somebody else has the unit, and what was said of it does not count."""
    UNSURE = "unsure"
    """The store stopped answering in the middle: the word came through, or the unit is done once more."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Held:
    """A unit that this node holds, as long as somebody has this value."""

    grant: Grant
    since: float
    """When it was taken, on the monotonic clock."""
    lost: threading.Event = field(default_factory=threading.Event)
    """Set when the lease is gone."""


class HeldUnits:
    """All units of one node. Threads share it."""

    def __init__(
        self,
        store: Store,
        node: str,
        *,
        host: str = "",
        most_seconds: float | None = None,
        went_back: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`most_seconds` is how long a unit may be held; after that it counts as failed. `went_back` hears of a store
        that gives out numbers a second time."""
        self._store = store
        self._went_back = went_back
        self._highest = 0
        self._node = node
        self._host = host or node
        self._most_seconds = most_seconds
        self._numbers = itertools.count(1)
        self._held: dict[Grant, weakref.ref[Held]] = {}
        self._taking: set[str] = set()
        """Holders for whom the store is asked at this moment."""
        self._astray: set[Grant] = set()
        self._lock = threading.RLock()  # a signal handler may say something of a unit, too
        self._given_up = StopFlag()
        self._hurried_at: float | None = None

    def __len__(self) -> int:
        return len(self.all())

    def take(self, most: int) -> list[Held]:
        """Units that wait, at most so many."""
        holder = f"{self._node}/{next(self._numbers)}"
        self._taking.add(holder)
        try:
            return self._take(holder, most)
        finally:
            self._taking.discard(holder)

    def _take(self, holder: str, most: int) -> list[Held]:
        known = self._highest  # before the store is asked: others take meanwhile
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
        """Numbers that the store has given out, to whomever: what it gives out next is above all of them."""
        with self._lock:
            self._highest = max(self._highest, *numbers, 0)

    def renew(self) -> list[Held]:
        """The beat of all leases; those that are lost come out. The ones held for too long are told as failed."""
        held = self.all()
        late = [one for one in held if self._is_late(one)]
        for one in late:
            self._store.fail(one.grant.range, one.grant.lease, self._too_long(one))
        kept = self._store.renew([(one.grant.range, one.grant.lease) for one in held]) if held else []
        lost = [one for one, is_kept in zip(held, kept, strict=True) if not is_kept]
        with self._lock:
            # Those that ended while the store was asked are not lost.
            gone = [one for one in lost if self._held.pop(one.grant, None) is not None]
        for one in gone:
            one.lost.set()
        return gone

    def finish(self, held: Held, reached: int) -> Ending:
        """Done up to `reached`: all of it, a part, or nothing, which gives the unit back.

        That is said once, and not to a store that is away: there the lease ends by itself.
        """
        unit = held.grant.range
        word = Ending.DONE if reached >= unit.stop else Ending.PART if reached > unit.start else Ending.GIVEN_BACK
        insists = word is not Ending.GIVEN_BACK
        return self._end(held, word, lambda: self._store.finish(unit, held.grant.lease, reached), insists=insists)

    def fail(self, held: Held, failure: Failure) -> Ending:
        """The attempt has failed."""
        return self._end(held, Ending.FAILED, lambda: self._store.fail(held.grant.range, held.grant.lease, failure))

    def all(self) -> list[Held]:
        """Those that have not ended."""
        with self._lock:
            found = [ref() for ref in self._held.values()]
        return [held for held in found if held is not None]

    def insist(self, held: Held, ask: Callable[[], T]) -> T:
        """What the store answers as soon as it does, while the unit is held."""
        while True:
            try:
                return ask()
            except StoreUnavailable:
                if held.lost.is_set() or self._given_up.wait(_AGAIN_SECONDS):
                    raise

    def hurry(self) -> None:
        """Nothing more is begun: a store that is away is not waited for as long as one likes."""
        self._hurried_at = time.monotonic()

    def give_up(self) -> None:
        """All units go back, and waits for the store end: what it does not hear of, it finds out by itself."""
        self._given_up.set()
        for held in self.all():
            try:
                self._give_back(held.grant)
            except OttlaError as error:
                _log.warning("%s was not given back, and waits for its lease to end: %s", held.grant.range, error)
                break
        for held in self.all():
            self.forget(held)
            held.lost.set()

    def give_back_astray(self, out: Iterable[Out], *, at_once: bool = False) -> list[Out]:
        """Units that the store thinks are here, and nobody has: they were dropped, or whoever took them was interrupted
        before he had them. They go back, without an attempt being counted; those that were, come out.

        What the store was seen to have may have ended since: such a unit is given time until the next look.
        """
        mine = {
            Grant(one.range, one.seen.lease, one.attempt): one for one in out if self._is_ours(one.seen.lease.holder)
        }
        held = {one.grant for one in self.all()}
        astray = {grant for grant in mine if grant not in held}
        due = astray if at_once else astray & self._astray
        self._astray = astray - due
        gone = [mine[grant] for grant in due if self._give_back(grant)]
        with self._lock:
            for grant in due:
                self._held.pop(grant, None)
        return gone

    def _is_ours(self, holder: str) -> bool:
        """Whether it is a unit of this node, and not one that is being taken."""
        return node_of(holder) == self._node and holder not in self._taking

    def _give_back(self, grant: Grant) -> bool:
        return self._store.finish(grant.range, grant.lease, grant.range.start)

    def _end(self, held: Held, word: Ending, say: Callable[[], bool], *, insists: bool = True) -> Ending:
        unheard = False
        try:
            while not held.lost.is_set():
                try:
                    return word if say() else Ending.UNSURE if unheard else Ending.LOST
                except StoreUnavailable:
                    unheard = True
                    if not insists or self._is_too_late() or self._given_up.wait(_AGAIN_SECONDS):
                        break
            return Ending.UNSURE if unheard else Ending.LOST
        finally:
            self.forget(held)  # also if the store answers with an error: a lease that nobody works under must end

    def _is_too_late(self) -> bool:
        return self._hurried_at is not None and time.monotonic() - self._hurried_at > _HURRIED_SECONDS

    def forget(self, held: Held) -> None:
        """It is no longer this node's."""
        with self._lock:
            self._held.pop(held.grant, None)

    def _refuse(self, grants: list[Grant], known: int) -> None:
        """A store that has forgotten numbers must not use them again: whoever has seen the largest would be refused."""
        self._store.raise_number(known + LEAP)
        for grant in grants:
            self._give_back(grant)
        self._went_back(f"it gave out number {grants[0].lease.number} after number {known}")

    def _is_late(self, held: Held) -> bool:
        return self._most_seconds is not None and time.monotonic() - held.since > self._most_seconds

    def _too_long(self, held: Held) -> Failure:
        return failure(held.grant, f"it took longer than {self._most_seconds} s", host=self._host)


def failure(grant: Grant, reason: str, *, host: str, traceback: str = "") -> Failure:
    """What the error list shows of a unit that is given up."""
    return Failure(grant.range, grant.attempt, reason, traceback, host, time.time())


def lost_by(unit: OffsetRange, holder: str, attempt: int, reason: str) -> Failure:
    """The same for one whose holder is gone."""
    return Failure(unit, attempt, reason, "", holder.partition("/")[0], time.time())
