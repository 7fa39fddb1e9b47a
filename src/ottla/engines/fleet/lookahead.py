"""Takes the next unit while the current one is still being worked on, and begins to fetch its records.

When a unit is nearly read, a thread takes another one from the store and has a reader fetch its first records, so that
no time is lost between two units. A unit that is not claimed soon is given back: an idle node may take it. Nothing has
to be closed for that, so a program may drop its iterator at any moment.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ottla.engines.fleet.held_units import Held
from ottla.errors import OttlaError
from ottla.fetch.reader import Prefetch
from ottla.model import OffsetRange
from ottla.net.deadline import Deadline
from ottla.net.waiting import Flag

_log = logging.getLogger(__name__)

NEAR_END_SECONDS = 0.1
"""A unit is nearly read when reading the rest takes no longer than this."""
_PATIENCE_SECONDS = 0.25
"""How long a unit that was taken ahead waits to be claimed."""
_MAX_SKIPPED = 64
"""Maximum number of units for which a slow thread takes nothing ahead."""


class Claimed(NamedTuple):
    """A unit that was taken ahead, and the prefetch of its first records; None if that failed."""

    held: Held
    prefetch: Prefetch | None


class Lookahead:
    """The units that the threads of a node take ahead."""

    def __init__(
        self,
        take: Callable[[], Held | None],
        prefetch: Callable[[OffsetRange], Prefetch],
        give_back: Callable[[Held], object],
    ) -> None:
        self._take = take
        self._prefetch = prefetch
        self._give_back = give_back
        self._errands: set[_Errand] = set()

    def slot(self) -> Slot:
        """Return the slot of one thread that works on units one after the other."""
        return Slot(self._begin)

    def hurry(self) -> None:
        """Give back now what was taken ahead. Signal handlers may call it."""
        for errand in list(self._errands):
            errand.is_claimed.set()

    def join(self, deadline: Deadline) -> None:
        """Wait until everything that was taken ahead is given back, or the deadline has passed."""
        self.hurry()
        for errand in list(self._errands):
            errand.is_over.wait(deadline.remaining())

    def _begin(self) -> _Errand:
        """Start a thread that takes a unit ahead."""
        errand = _Errand()
        threading.Thread(target=self._run, args=(errand,), name="ottla-fleet-ahead", daemon=True).start()
        return errand

    def _run(self, errand: _Errand) -> None:
        """Take a unit, wait until it is claimed, and give it back if it is not."""
        self._errands.add(errand)
        try:
            self._fetch(errand)
            errand.is_claimed.wait(_PATIENCE_SECONDS)
            errand.was_late = self._return(errand)
        finally:
            self._errands.discard(errand)
            errand.is_over.set()

    def _fetch(self, errand: _Errand) -> None:
        """Take a unit and start to fetch its records."""
        try:
            held = self._take()
            if held is not None:
                errand.taken.append(Claimed(held, self._begun(held)))
        except OttlaError as error:
            _log.debug("no unit was taken ahead: %s", error)
        finally:
            errand.is_ready.set()

    def _begun(self, held: Held) -> Prefetch | None:
        try:
            return self._prefetch(held.grant.range)
        except (OttlaError, RuntimeError) as error:  # reading the unit will raise it, if it is still so
            _log.debug("could not prefetch %s: %s", held.grant.range, error)
            return None

    def _return(self, errand: _Errand) -> bool:
        """Give the unit back, unless it was claimed. Returns whether it was given back."""
        claimed = errand.pop()
        if claimed is None:
            return False
        if claimed.prefetch is not None:
            claimed.prefetch.close()
        try:
            self._give_back(claimed.held)
        except OttlaError as error:
            _log.debug("could not give back %s, its lease will expire: %s", claimed.held.grant.range, error)
        return True


class Slot:
    """The next unit of one thread. It lives as long as the thread may still claim it."""

    def __init__(self, begin: Callable[[], _Errand]) -> None:
        self._begin = begin
        self._errand: _Errand | None = None
        self._misses = 0
        self._skipped = 0

    def opener(self) -> Callable[[], None]:
        """Return a function to call when the current unit is nearly read."""
        reference = weakref.ref(self)  # a unit may outlive the slot and must not keep it alive

        def near_end() -> None:
            if (slot := reference()) is not None:
                slot._open()

        return near_end

    def claim(self) -> Claimed | None:
        """Return the unit that was taken ahead, if there is one."""
        errand, self._errand = self._errand, None
        if errand is None:
            return None
        claimed = errand.claim()
        if errand.was_late:
            # The program works long between reading a unit and asking for the next. Take ahead less and less often.
            self._misses += 1
            self._skipped = min(_MAX_SKIPPED, 2**self._misses)
        elif claimed is not None:
            self._misses = 0
        return claimed

    def _open(self) -> None:
        """Start to take the next unit, unless that is under way or being skipped."""
        if self._errand is not None:
            return
        if self._skipped:
            self._skipped -= 1
            return
        try:
            self._errand = self._begin()
        except RuntimeError as error:  # the system refuses another thread, and the current unit needs none
            _log.debug("no unit is taken ahead: %s", error)


class _Errand:
    """One unit, from the request to the store until it is claimed or given back."""

    def __init__(self) -> None:
        self.taken: deque[Claimed] = deque()
        """At most one unit. The thread that pops it owns it: either the worker, or the thread that gives it back."""
        self.is_ready = Flag()
        self.is_claimed = Flag()
        self.is_over = Flag()
        self.was_late = False
        """Whether the unit was not claimed in time."""

    def claim(self) -> Claimed | None:
        """Return the unit, after waiting for the store to answer; None if there was none, or it was given back."""
        self.is_ready.wait()
        claimed = self.pop()
        self.is_claimed.set()
        return claimed

    def pop(self) -> Claimed | None:
        """Return the unit to the first caller, and None to all others."""
        try:
            return self.taken.pop()
        except IndexError:
            return None
