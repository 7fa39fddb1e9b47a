"""`RecordSharing`: hands the records of units out to several threads, one by one, and ends each unit when it is due.

Units come in, records go out, and every unit is ended. A thread that asks for the next record has handled its previous
one; a thread that terminates instead has not. No call to the store happens while the lock on the counts is held.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ottla.engines.fleet.handlers import came_from_outside
from ottla.engines.fleet.unit import Unit, reason_of
from ottla.engines.fleet.unit_endings import log_failure
from ottla.errors import OttlaError
from ottla.model import Record

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Share:
    """A unit whose records are being handed out."""

    unit: Unit
    reached: int
    """The offset after the last record that was handed out."""
    in_progress: int = 0
    """Number of its records that threads are working on."""
    is_read: bool = False
    """Whether no more records follow."""
    is_over: bool = False

    def ends(self, error: BaseException | None) -> bool:
        """Whether the unit ends now. Returns True only once, to the caller that must end the unit."""
        was_over = self.is_over
        self.is_over = was_over or error is not None or (self.is_read and self.in_progress == 0)
        return self.is_over and not was_over


class Reiterable:
    """An iterable of units that calls a function for each new iteration."""

    def __init__(self, looks: Callable[[], Iterator[Unit | None]]) -> None:
        self._looks = looks

    def __iter__(self) -> Iterator[Unit | None]:
        return self._looks()


class RecordSharing:
    """Hands records of units out to several threads, one by one.

    A unit is done when every thread that got one of its records has asked for another. It fails when such a thread
    terminates instead, or when it cannot be read. A retry then hands out all of its records again.
    """

    def __init__(self, units: Iterable[Unit | None], is_stopped: Callable[[], bool] = lambda: False) -> None:
        """`units` blocks while there are none, and ends after a stop. It yields None now and then while it waits, so
        that terminated threads are noticed. It is iterated again for each unit, because an interrupt ends a generator.

        Once `is_stopped` returns True, the current unit is split: it is done up to what was handed out, as soon as that
        is handled, and the rest waits for another node.
        """
        self._units = units
        self._is_stopped = is_stopped
        self._reading = threading.Lock()
        """Guards `_share` and `_records`. It may be held for minutes."""
        self._share: _Share | None = None
        self._records: Iterator[Record] = iter(())
        self._books = threading.Lock()
        """Guards `_assigned` and all counts. It is never held during a call to the store."""
        self._assigned: dict[threading.Thread, tuple[_Share, int]] = {}
        """The unit and the offset of the record that each thread is working on."""

    def next(self) -> Record | None:
        """Return the next record; None when `units` has ended. The calling thread has handled its previous record."""
        me = threading.current_thread()
        self._settle(me)
        with self._reading:
            try:
                while not self._is_stopped() and (self._share is not None or self._begin()):
                    if (record := self._read(me)) is not None:
                        return record
            except BaseException as error:  # Ctrl-C, perhaps with a record that is not assigned to a thread yet
                self._leave(error)
                raise
            self._leave(None)
        return None

    def put_back(self) -> None:
        """Give the current unit back: this thread was interrupted before it received its record."""
        with self._books:
            share, _ = self._assigned.pop(threading.current_thread(), (None, 0))
            if share is None:
                return
            share.in_progress -= 1
            is_end = share.ends(GeneratorExit())
        if is_end:
            _end_unit(share, GeneratorExit())

    def _settle(self, asking: threading.Thread | None) -> None:
        """Take the records from the thread that asks for the next one, and from threads that have terminated."""
        over: list[tuple[_Share, Exception | None]] = []
        with self._books:
            for thread in [thread for thread in self._assigned if thread is asking or not thread.is_alive()]:
                share, offset = self._assigned.pop(thread)
                share.in_progress -= 1
                fault = None if thread is asking else RuntimeError(f"{thread.name} ended while it had offset {offset}")
                if share.ends(fault):
                    over.append((share, fault))
        for share, error in over:
            _end_unit(share, error)

    def _begin(self) -> bool:
        """Wait for the next unit. Returns False if there will be none."""
        for unit in self._units:
            if unit is not None:
                self._share, self._records = _Share(unit, unit.range.start), unit.records()
                return True
            self._settle(None)
        return False

    def _read(self, me: threading.Thread) -> Record | None:
        """Return the next record of the current unit; None if it has no more, or is over."""
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
            elif not share.is_over:  # another thread may have ended the unit while this one was reading
                share.reached = record.offset + 1
                share.in_progress += 1
                self._assigned[me] = (share, record.offset)
                return record
        self._leave(None)
        return None

    def _leave(self, error: BaseException | None) -> None:
        """Hand out no more records of the current unit."""
        share, self._share, self._records = self._share, None, iter(())
        if share is None:
            return
        with self._books:
            share.is_read = True
            is_end = share.ends(error)
        if is_end:
            _end_unit(share, error)


def _end_unit(share: _Share, error: BaseException | None) -> None:
    """End a unit. Does not raise: the calling thread may have nothing to do with this unit."""
    unit = share.unit
    try:
        if error is None:
            unit.done(share.reached)
        elif came_from_outside(error):
            unit.give_back()
        else:
            log_failure(unit, error)
            unit.fail(error)
    except OttlaError as end_error:
        _log.warning("could not report how %s ended: %s", unit.range, reason_of(end_error))
