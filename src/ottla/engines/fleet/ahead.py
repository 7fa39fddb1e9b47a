"""Takes the next unit while the current one is still being worked on, and begins to fetch it.

A unit says when it is nearly read; then a thread asks the store for another one and has a reader fetch its first
records, so that neither is waited for between two units. A unit that is not claimed soon goes back: a node that has
nothing to do may want it. Nothing has to be closed for that, so a program may drop its iterator at any moment.
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
"""A unit is nearly read when the rest of it takes no longer than this."""
_PATIENCE_SECONDS = 0.25
"""How long a unit that was taken ahead waits to be claimed."""
_MOST_SKIPPED = 64


class Claimed(NamedTuple):
    """A unit that was taken ahead; its first records are on their way unless the prefetch failed."""

    held: Held
    prefetch: Prefetch | None


class Ahead:
    """What all threads of a node take ahead."""

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
        """For one thread that works on units one after the other."""
        return Slot(self._begin)

    def hurry(self) -> None:
        """What was taken ahead goes back now. Signal handlers may call it."""
        for errand in list(self._errands):
            errand.is_claimed.set()

    def join(self, deadline: Deadline) -> None:
        """Waits until all of it went back."""
        self.hurry()
        for errand in list(self._errands):
            errand.is_over.wait(deadline.remaining())

    def _begin(self) -> _Errand:
        errand = _Errand()
        threading.Thread(target=self._run, args=(errand,), name="ottla-fleet-ahead", daemon=True).start()
        return errand

    def _run(self, errand: _Errand) -> None:
        self._errands.add(errand)
        try:
            self._fetch(errand)
            errand.is_claimed.wait(_PATIENCE_SECONDS)
            errand.was_late = self._return(errand)
        finally:
            self._errands.discard(errand)
            errand.is_over.set()

    def _fetch(self, errand: _Errand) -> None:
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
        except OttlaError as error:  # told by the unit itself when it is read
            _log.debug("%s is not fetched ahead: %s", held.grant.range, error)
            return None

    def _return(self, errand: _Errand) -> bool:
        """Gives the unit back, unless somebody has claimed it."""
        claimed = errand.pop()
        if claimed is None:
            return False
        if claimed.prefetch is not None:
            claimed.prefetch.close()
        try:
            self._give_back(claimed.held)
        except OttlaError as error:
            _log.debug("%s was not given back, and waits for its lease to end: %s", claimed.held.grant.range, error)
        return True


class Slot:
    """The next unit of one thread. It lives as long as somebody will claim it."""

    def __init__(self, begin: Callable[[], _Errand]) -> None:
        self._begin = begin
        self._errand: _Errand | None = None
        self._misses = 0
        self._skipped = 0

    def opener(self) -> Callable[[], None]:
        """To be called when the current unit is nearly read. It does not keep the slot alive: a unit may outlive it."""
        slot = weakref.ref(self)

        def near_end() -> None:
            if (there := slot()) is not None:
                there._open()

        return near_end

    def claim(self) -> Claimed | None:
        """The unit that was taken ahead, if there is one."""
        errand, self._errand = self._errand, None
        if errand is None:
            return None
        claimed = errand.claim()
        if errand.was_late:
            # The program takes its time between reading a unit and asking for the next: taking ahead is wasted on it.
            self._misses += 1
            self._skipped = min(_MOST_SKIPPED, 2**self._misses)
        elif claimed is not None:
            self._misses = 0
        return claimed

    def _open(self) -> None:
        if self._errand is not None:
            return
        if self._skipped:
            self._skipped -= 1
            return
        self._errand = self._begin()


class _Errand:
    """One unit, from asking the store to being claimed or given back."""

    def __init__(self) -> None:
        self.taken: deque[Claimed] = deque()
        """Whoever pops it has it: the thread that works, or the one that gives it back."""
        self.is_ready = Flag()
        self.is_claimed = Flag()
        self.is_over = Flag()
        self.was_late = False
        """Whether nobody claimed the unit in time."""

    def claim(self) -> Claimed | None:
        """The unit, after waiting for the store if it is being asked; None if there was none, or it went back."""
        self.is_ready.wait()
        claimed = self.pop()
        self.is_claimed.set()
        return claimed

    def pop(self) -> Claimed | None:
        """The unit, once."""
        try:
            return self.taken.pop()
        except IndexError:
            return None
