"""`RecordSharing`: the records of units, one by one, to threads that share them; which unit is done then is known here.

Units come in, records go out, and every unit hears what became of it. A thread that asks again has handled what it
had; one that ended instead has not. No word goes to the store while the books are closed to others.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ottla.engines.fleet.handlers import came_from_outside
from ottla.engines.fleet.unit import Unit, reason_of
from ottla.errors import LeaseLost, OttlaError
from ottla.model import Record

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Share:
    """A unit of which records were handed out."""

    unit: Unit
    reached: int
    """Up to where they were."""
    hands: int = 0
    """How many of them are being worked on."""
    is_read: bool = False
    """Whether no others follow."""
    is_over: bool = False

    def ends(self, error: BaseException | None) -> bool:
        """Whether that is its end; of several who ask, one is told so."""
        was_over = self.is_over
        self.is_over = was_over or error is not None or (self.is_read and self.hands == 0)
        return self.is_over and not was_over


class Anew:
    """Units, from wherever somebody begins to iterate."""

    def __init__(self, looks: Callable[[], Iterator[Unit | None]]) -> None:
        self._looks = looks

    def __iter__(self) -> Iterator[Unit | None]:
        return self._looks()


class RecordSharing:
    """Records of units, one by one, to several threads.

    A unit is done when everybody who got one of its records has asked for another. It has failed when somebody who got
    one has ended instead, or when it cannot be read; what others have of it comes again, too.
    """

    def __init__(self, units: Iterable[Unit | None], is_stopped: Callable[[], bool] = lambda: False) -> None:
        """`units` blocks while there are none, and ends after a stop; with a None it lets threads that ended be noticed
        while nothing else happens. It is iterated over anew for each unit: an interrupt ends a generator.

        Once `is_stopped`, the unit at hand is cut: it is done up to what was handed out, as soon as that is handled,
        and the rest waits for somebody else. Without, it is handed out to its end.
        """
        self._units = units
        self._is_stopped = is_stopped
        self._reading = threading.Lock()
        """For these two. It may be held for minutes."""
        self._share: _Share | None = None
        self._records: Iterator[Record] = iter(())
        self._books = threading.Lock()
        """For what is in whose hands, and all counts."""
        self._hands: dict[threading.Thread, tuple[_Share, int]] = {}

    def next(self) -> Record | None:
        """The next record, for whoever has handled the last one; None when `units` has ended."""
        me = threading.current_thread()
        self._settle(me)
        with self._reading:
            try:
                while not self._is_stopped() and (self._share is not None or self._begin()):
                    if (record := self._read(me)) is not None:
                        return record
            except BaseException as error:  # Ctrl-C, perhaps with a record that is in nobody's hands yet
                self._leave(error)
                raise
            self._leave(None)
        return None

    def put_back(self) -> None:
        """What this thread was given, it has not got: it was interrupted. The rest of the unit goes back with it."""
        with self._books:
            share, _ = self._hands.pop(threading.current_thread(), (None, 0))
            if share is None:
                return
            share.hands -= 1
            is_end = share.ends(GeneratorExit())
        if is_end:
            _tell(share, GeneratorExit())

    def _settle(self, asking: threading.Thread | None) -> None:
        """Takes the records from those who are ready, and from those who are gone."""
        over: list[tuple[_Share, Exception | None]] = []
        with self._books:
            for thread in [one for one in self._hands if one is asking or not one.is_alive()]:
                share, offset = self._hands.pop(thread)
                share.hands -= 1
                fault = None if thread is asking else RuntimeError(f"{thread.name} ended while it had offset {offset}")
                if share.ends(fault):
                    over.append((share, fault))
        for share, error in over:
            _tell(share, error)

    def _begin(self) -> bool:
        for unit in self._units:
            if unit is not None:
                self._share, self._records = _Share(unit, unit.range.start), unit.records()
                return True
            self._settle(None)
        return False

    def _read(self, me: threading.Thread) -> Record | None:
        """None if the unit has no more, or is over."""
        share = self._share
        assert share is not None
        try:
            record = next(self._records, None)
        except Exception as error:
            self._leave(error)
            return None
        with self._books:
            if record is None:
                share.reached = share.unit.range.stop
            elif not share.is_over:
                share.reached = record.offset + 1
                share.hands += 1
                self._hands[me] = (share, record.offset)
                return record
        self._leave(None)
        return None

    def _leave(self, error: BaseException | None) -> None:
        """Nothing more of the unit is handed out."""
        share, self._share, self._records = self._share, None, iter(())
        if share is None:
            return
        with self._books:
            share.is_read = True
            is_end = share.ends(error)
        if is_end:
            _tell(share, error)


def _tell(share: _Share, error: BaseException | None) -> None:
    """What became of a unit; that it could not be said is no matter of the thread that comes to say it."""
    unit = share.unit
    try:
        if error is None:
            unit.done(share.reached)
        elif came_from_outside(error):
            unit.give_back()
        else:
            log_failure(unit, error)
            unit.fail(error)
    except OttlaError as trouble:
        _log.warning("what became of %s could not be said: %s", unit.range, reason_of(trouble))


def log_failure(unit: Unit, error: BaseException) -> None:
    """An attempt has failed, or was taken away."""
    if isinstance(error, LeaseLost):
        _log.warning("%s", error)
    else:
        _log.warning("%s failed (attempt %d): %s", unit.range, unit.attempt, reason_of(error))
