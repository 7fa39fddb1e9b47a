"""Takes the next unit while the current one is still being worked on, and begins to fetch it.

A unit says when it is nearly read; then a thread asks the store for another one and has a reader fetch its first
records, so that neither is waited for between two units. A unit that is not claimed soon goes back: its records may be
wanted by a node that has nothing to do. Nothing here knows what is done with units.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from ottla.engines.fleet.holding import Held
from ottla.errors import OttlaError
from ottla.fetch.reader import Prefetch
from ottla.model import OffsetRange
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
    """For one thread that works on units one after the other."""

    def __init__(
        self,
        take: Callable[[], Held | None],
        prefetch: Callable[[OffsetRange], Prefetch],
        give_back: Callable[[Held], object],
    ) -> None:
        self._take = take
        self._prefetch = prefetch
        self._give_back = give_back
        self._errand: _Errand | None = None
        self._is_closed = False
        self._misses = 0
        self._skipped = 0

    def begin(self) -> None:
        """The current unit is nearly read."""
        if self._is_closed or self._errand is not None:
            return
        if self._skipped:
            self._skipped -= 1
            return
        self._errand = _Errand(self._take, self._prefetch, self._give_back)
        threading.Thread(target=self._errand.run, name="ottla-fleet-ahead", daemon=True).start()

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

    def close(self) -> None:
        """What was taken ahead goes back, and nothing more is taken."""
        self._is_closed = True
        errand, self._errand = self._errand, None
        if errand is not None:
            errand.cancel()


class _Errand:
    """One unit, from asking the store to being claimed or given back."""

    def __init__(
        self,
        take: Callable[[], Held | None],
        prefetch: Callable[[OffsetRange], Prefetch],
        give_back: Callable[[Held], object],
    ) -> None:
        self._take = take
        self._prefetch = prefetch
        self._give_back = give_back
        self._taken: deque[Claimed] = deque()
        """Whoever pops it has it: the thread that works, or the one that gives it back."""
        self._is_ready = Flag()
        self._is_wanted = Flag()
        self.was_late = False
        """Whether nobody claimed the unit in time."""

    def run(self) -> None:
        """On a thread of its own."""
        try:
            held = self._take()
            if held is not None:
                self._taken.append(Claimed(held, self._begun(held)))
        except OttlaError as error:
            _log.debug("no unit was taken ahead: %s", error)
        finally:
            self._is_ready.set()
        if not self._is_wanted.wait(_PATIENCE_SECONDS):
            self.was_late = bool(self._taken)
            self._return()

    def claim(self) -> Claimed | None:
        """The unit, after waiting for the store if it is being asked; None if there was none, or it went back."""
        self._is_wanted.set()
        self._is_ready.wait()
        return self._pop()

    def cancel(self) -> None:
        """Nobody wants it."""
        self._is_wanted.set()
        self._is_ready.wait()
        self._return()

    def _begun(self, held: Held) -> Prefetch | None:
        try:
            return self._prefetch(held.grant.range)
        except OttlaError as error:  # told by the unit itself when it is read
            _log.debug("%s is not fetched ahead: %s", held.grant.range, error)
            return None

    def _return(self) -> None:
        claimed = self._pop()
        if claimed is None:
            return
        if claimed.prefetch is not None:
            claimed.prefetch.close()
        try:
            self._give_back(claimed.held)
        except OttlaError as error:
            _log.debug("%s was not given back, and waits for its lease to end: %s", claimed.held.grant.range, error)

    def _pop(self) -> Claimed | None:
        try:
            return self._taken.pop()
        except IndexError:
            return None
