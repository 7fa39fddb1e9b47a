"""`Unit`: a range that this node holds a lease on, with its records and the calls that end it.

Used in a `with` block, it is done when the block ends, failed when the block raises, and given back when the block is
interrupted from outside. A granted range and a reader come in; the ending goes to a callback. This module knows neither
the store nor the worker.
"""

from __future__ import annotations

import math
import os
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from types import TracebackType
from typing import Self

import pyarrow as pa

from ottla.consume.records import records_of
from ottla.engines.fleet.handlers import came_from_outside
from ottla.engines.fleet.held_units import Ending, Held
from ottla.engines.fleet.lookahead import NEAR_END_SECONDS
from ottla.errors import InputError, LeaseLost, UsedAfterFork
from ottla.fetch.reader import Prefetch, Reader
from ottla.model import OffsetRange, Record
from ottla.wire.decode import COLUMNS, SCHEMA

Report = Callable[["Unit", Held, int, BaseException | None], Ending]
"""Reports that a unit is done up to an offset, or has failed with an error."""
_MAX_REASON_CHARS = 1_000
_MAX_TRACE_CHARS = 10_000


class Unit:
    """A range of one partition to work on. Only one thread may use it at a time."""

    def __init__(
        self,
        held: Held,
        reader: Reader,
        report: Report,
        *,
        prefetch: Prefetch | None = None,
        near_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`prefetch` has begun to fetch the records; `near_end` is called once, when little is left to read."""
        self._pid = os.getpid()
        self._held = held
        self._reader = reader
        self._report = report
        self._prefetch = prefetch
        self._near_end = near_end
        self.range: OffsetRange = held.grant.range
        """The offsets to work on. Key your writes by it: a retry has the same range."""
        self.attempt: int = held.grant.attempt
        """1 for the first attempt."""
        self.fence: int = held.grant.lease.number
        """A fencing token, larger than that of every earlier attempt. A system that remembers the largest token can
        reject late writers."""
        self.records_read = 0
        self.records_wasted = 0
        """Records fetched and discarded, because batches on the broker do not end where units do."""
        self.bytes_read = 0
        self.reached: int = self.range.start
        """The offset after the last record that was read."""
        self.ending: Ending | None = None
        """How the unit ended; None while it is in progress."""

    def __repr__(self) -> str:
        return f"<Unit {self.range}, attempt {self.attempt}{f', {self.ending.value}' if self.ending else ''}>"

    @property
    def is_lost(self) -> bool:
        """Whether another node has taken the unit over. Any further work on it is done twice."""
        return self._held.lost.is_set()

    @property
    def seconds(self) -> float:
        """Seconds since the unit was taken."""
        return time.monotonic() - self._held.since

    def read(self, columns: Collection[str] = COLUMNS) -> Iterator[pa.RecordBatch]:
        """Yield the records as Arrow batches.

        Raises `LeaseLost` if another node has taken the unit over, and `OffsetsLost` if records are missing and
        `on_lost` is "error".
        """
        rest = _Rest(self, self._near_end)
        # `check` also runs while no records arrive: a log that was replaced or truncated may never have the offsets.
        stretches = self._reader.decoded(
            self._prefetch or self.range,
            columns=columns,
            fingerprint=False,
            check=self._require_lease,
            all_fetched=rest.all_fetched,
        )
        self._prefetch = None  # only now: after a wrong argument, the next call reads it
        for stretch in stretches:
            self._require_lease()
            self.records_read += stretch.rows
            self.records_wasted += stretch.left_out
            self.bytes_read += stretch.records.nbytes
            self.reached = stretch.next_offset
            rest.look()
            yield stretch.records
        self.reached = self.range.stop

    def table(self, columns: Collection[str] = COLUMNS) -> pa.Table:
        """Return all records as one table, which may be empty: compaction can leave a unit without records.

        Raises what `read` raises.
        """
        batches = list(self.read(columns))
        return pa.Table.from_batches(batches, pa.schema([field for field in SCHEMA if field.name in columns]))

    def records(self) -> Iterator[Record]:
        """Yield the records one by one. Raises what `read` raises."""
        for batch in self.read():
            yield from records_of(batch)

    def done(self, upto: int | None = None) -> Ending:
        """Mark the unit as done. With `upto`, only the offsets below it are done, and the rest becomes a new unit.

        Raises `InputError` if `upto` is outside the range or the unit has already ended.
        """
        reached = self.range.stop if upto is None else upto
        if not self.range.start <= reached <= self.range.stop:
            raise InputError(f"done(upto={upto}) is outside {self.range}")
        return self._end(reached, None)

    def give_back(self) -> Ending:
        """Return the unit to the group without counting an attempt. Raises `InputError` if it has already ended."""
        return self._end(self.range.start, None)

    def fail(self, error: BaseException | str) -> Ending:
        """End this attempt as failed: the unit is retried, or moved to the error list with `error` as the reason.

        Raises `InputError` if the unit has already ended.
        """
        return self._end(self.range.start, error if isinstance(error, BaseException) else RuntimeError(error))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ending is not None or os.getpid() != self._pid:
            return  # a forked child must not end its parent's unit
        if error is None:
            self.done()
        elif came_from_outside(error):
            self.give_back()
        else:
            self.fail(error)

    def _require_lease(self) -> None:
        if self.is_lost:
            raise LeaseLost(f"{self.range} was given to another node while this one read it")

    def _end(self, reached: int, error: BaseException | None) -> Ending:
        if os.getpid() != self._pid:
            raise UsedAfterFork(f"{self.range} was taken by the parent process: only that process can end it")
        if self.ending is not None:
            raise InputError(f"{self.range} has already ended: {self.ending.value}")
        if self._prefetch is not None:  # it was never read
            self._prefetch.close()
        self.ending = self._report(self, self._held, reached, error)
        return self.ending


class _Rest:
    """The unread rest of a unit. Calls `near_end` once, when little is left and the brokers have sent all of it.

    Fetching the next unit any earlier would only slow down this one.
    """

    def __init__(self, unit: Unit, near_end: Callable[[], None]) -> None:
        self._unit = unit
        self._began = time.monotonic()
        self._is_fetched = False
        # A list, because two threads look: the one that pops the callback calls it.
        self._near_end = [near_end]

    def all_fetched(self) -> None:
        """Note that the brokers have sent everything. Any thread may call it."""
        self._is_fetched = True
        self.look()

    def look(self) -> None:
        """Check after each stretch of records how much is left."""
        if self._is_fetched and self._near_end and self._seconds_left() <= NEAR_END_SECONDS:
            try:
                near_end = self._near_end.pop()
            except IndexError:
                return  # the other thread was first
            near_end()

    def _seconds_left(self) -> float:
        """Estimate how long the rest takes to read, at the pace so far."""
        read = self._unit.reached - self._unit.range.start
        if not read:
            return math.inf  # a prefetch may have brought all of it before any of it is read
        return (len(self._unit.range) - read) * (time.monotonic() - self._began) / read


def reason_of(error: BaseException) -> str:
    """Describe an error in one line of bounded length."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # a handler may raise anything, even errors whose __str__ fails
        text = "its text is not available"
    lines = f"{name}: {text}".splitlines() if text else [name]
    return lines[0][:_MAX_REASON_CHARS]


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error; only its end, if it is long."""
    return "".join(traceback.format_exception(error))[-_MAX_TRACE_CHARS:]
