"""`Unit`: a range that this node may work on, with its records, until it says what became of it.

It is used in a `with` block: done when the block ends, failed when it raises, given back when it is interrupted from
outside. Who takes it and whom it tells is not known here.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa

from ottla.consume.records import records_of
from ottla.engines.fleet.ahead import NEAR_END_SECONDS
from ottla.engines.fleet.handlers import came_from_outside
from ottla.engines.fleet.held_units import Ending, Held
from ottla.errors import InputError, LeaseLost, UsedAfterFork
from ottla.fetch.reader import Prefetch, Reader
from ottla.model import OffsetRange, Record
from ottla.wire.decode import COLUMNS, SCHEMA

Told = Callable[["Unit", Held, int, BaseException | None], Ending]
"""Says that a unit is done up to an offset, or has failed."""


class Unit:
    """A slice of one partition. One thread uses it at a time."""

    def __init__(
        self,
        held: Held,
        reader: Reader,
        tell: Told,
        *,
        prefetch: Prefetch | None = None,
        near_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`prefetch` has begun to fetch its records; `near_end` hears once that little is left to read."""
        self._pid = os.getpid()
        self._held = held
        self._reader = reader
        self._tell = tell
        self._prefetch = prefetch
        self._near_end = near_end
        self.range: OffsetRange = held.grant.range
        """What is to be worked on. Key what you write by it: another attempt has the same range."""
        self.attempt: int = held.grant.attempt
        """1 for the first."""
        self.fence: int = held.grant.lease.number
        """Larger than that of any attempt before: a system that keeps the largest can refuse whoever is late."""
        self.records_read = 0
        self.records_wasted = 0
        """Records that were read and thrown away: batches on the broker do not end where units do."""
        self.bytes_read = 0
        self.reached: int = self.range.start
        """How far it was read."""
        self.ending: Ending | None = None
        """What became of it; None as long as it is worked on."""

    def __repr__(self) -> str:
        return f"<Unit {self.range}, attempt {self.attempt}{f', {self.ending.value}' if self.ending else ''}>"

    @property
    def is_lost(self) -> bool:
        """Somebody else has it by now: whatever is done from here on is done twice."""
        return self._held.lost.is_set()

    @property
    def seconds(self) -> float:
        """Since it was taken."""
        return time.monotonic() - self._held.since

    def read(self, columns: Collection[str] = COLUMNS) -> Iterator[pa.RecordBatch]:
        """Its records as Arrow. Raises `LeaseLost` when the unit is somebody else's by now."""
        what, self._prefetch = self._prefetch or self.range, None
        rest = _Rest(self, self._near_end)
        # `check` also runs while nothing comes: a log that was replaced or cut may never have the offsets.
        for stretch in self._reader.decoded(
            what, columns=columns, fingerprint=False, check=self._require_lease, all_fetched=rest.all_fetched
        ):
            self._require_lease()
            self.records_read += stretch.rows
            self.records_wasted += stretch.left_out
            self.bytes_read += stretch.records.nbytes
            self.reached = stretch.next_offset
            rest.look()
            yield stretch.records
        self.reached = self.range.stop

    def table(self, columns: Collection[str] = COLUMNS) -> pa.Table:
        """All of its records together, empty where there are none: units can lie in a hole that compaction left."""
        batches = list(self.read(columns))
        return pa.Table.from_batches(batches, pa.schema([field for field in SCHEMA if field.name in columns]))

    def records(self) -> Iterator[Record]:
        """Its records one by one."""
        for batch in self.read():
            yield from records_of(batch)

    def done(self, upto: int | None = None) -> Ending:
        """It is done; with `upto`, only the offsets before that one, and the rest becomes a unit of its own."""
        reached = self.range.stop if upto is None else upto
        if not self.range.start <= reached <= self.range.stop:
            raise InputError(f"done(upto={upto}) lies outside of {self.range}")
        return self._end(reached, None)

    def give_back(self) -> Ending:
        """Somebody else shall do it; that is no failure."""
        return self._end(self.range.start, None)

    def fail(self, error: BaseException | str) -> Ending:
        """This attempt has failed: it is tried again, or comes to the error list with this reason."""
        return self._end(self.range.start, error if isinstance(error, BaseException) else RuntimeError(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ending is not None or os.getpid() != self._pid:
            return  # what a forked child does is not what becomes of the parent's unit
        if error is None:
            self.done()
        elif came_from_outside(error):
            self.give_back()
        else:
            self.fail(error)

    def _require_lease(self) -> None:
        if self.is_lost:
            raise LeaseLost(f"{self.range} was given to another node while it was read")

    def _end(self, reached: int, error: BaseException | None) -> Ending:
        if os.getpid() != self._pid:
            raise UsedAfterFork(f"{self.range} belongs to the process that took it: what becomes of it is said there")
        if self.ending is not None:
            raise InputError(f"{self.range} has ended already: {self.ending.value}")
        if self._prefetch is not None:  # it was never read
            self._prefetch.close()
        self.ending = self._tell(self, self._held, reached, error)
        return self.ending


class _Rest:
    """What is left to read of a unit: says once that it is little, and that the brokers have sent all of it.

    Before that, fetching the next unit would only slow down this one.
    """

    def __init__(self, unit: Unit, near_end: Callable[[], None]) -> None:
        self._unit = unit
        self._began = time.monotonic()
        self._is_fetched = False
        self._near_end = [near_end]
        """Whoever takes it out calls it: two threads look."""

    def all_fetched(self) -> None:
        """The brokers have sent everything."""
        self._is_fetched = True
        self.look()

    def look(self) -> None:
        """The unit has been read further."""
        if self._is_fetched and self._near_end and self._seconds_left() <= NEAR_END_SECONDS:
            try:
                near_end = self._near_end.pop()
            except IndexError:
                return  # the other thread was first
            near_end()

    def _seconds_left(self) -> float:
        """How long reading the rest takes, at the pace so far."""
        read = self._unit.reached - self._unit.range.start
        pace = (time.monotonic() - self._began) / max(1, read)
        return (len(self._unit.range) - read) * pace


def reason_of(error: BaseException) -> str:
    """In one line."""
    name = type(error).__name__
    try:
        said = str(error)
    except Exception:  # a handler's error may be of any kind
        said = "its text cannot be told"
    lines = f"{name}: {said}".splitlines() if said else [name]
    return lines[0][:_LONGEST_REASON]


def trace_of(error: BaseException) -> str:
    """Where it came from; the end of it, if it is long."""
    return "".join(traceback.format_exception(error))[-_LONGEST_TRACE:]


_LONGEST_REASON = 1_000
_LONGEST_TRACE = 10_000
