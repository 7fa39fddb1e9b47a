"""Sends rows and keeps track of their lines: which are in flight, where they arrived, and which failed.

When a delivery settles, the counts go up, and every line that failed is reported with its reason. Settled deliveries
are dropped, so memory is bounded by what the producer buffers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.cli.output.pace import Pace, progress_line, records_rate
from ottla.cli.produce.rows import Rows
from ottla.cli.values.quantities import show_size
from ottla.errors import KeptInSpool, NotDelivered, OttlaError, RecordTooLarge
from ottla.model import TopicPartition
from ottla.produce import records as checks
from ottla.produce.delivery import BulkDelivery
from ottla.produce.producer import Producer

_RUNS_PER_TEXT = 20
_LEAST_FOR_RATE = 1000
"""Of fewer records, and of less than a second, a rate says nothing."""


@dataclass(slots=True)
class Arrived:
    """Records that a partition received, in offsets `[start, stop)`, perhaps with those of others between them."""

    records: int = 0
    start: int = -1
    stop: int = -1

    def add(self, records: int, offset: int) -> None:
        """Count more records at `offset`, negative if it is unknown."""
        self.records += records
        if offset >= 0:
            self.start = offset if self.start < 0 else min(self.start, offset)
            self.stop = max(self.stop, offset + records)


@dataclass(slots=True)
class Counts:
    """Counts of lines and records."""

    size_bytes: int = 0
    delivered: int = 0
    failed: int = 0
    """Records that were not delivered."""
    kept: int = 0
    """Records that were not delivered and stay in the spool."""
    bad: int = 0
    """Invalid lines, and files that could not be read."""
    began: float = field(default_factory=time.monotonic)
    arrived: dict[TopicPartition, Arrived] = field(default_factory=dict)

    def start(self) -> None:
        """Start the clock: the first line is about to be read."""
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.began

    @property
    def is_complete(self) -> bool:
        """Whether every line that was read was delivered."""
        return not self.bad and not self.failed and not self.kept

    def __str__(self) -> str:
        seconds = self.seconds
        text = f"{self.amount} in {seconds:.1f} s"
        if seconds >= 1 and self.delivered >= _LEAST_FOR_RATE:
            text += f", {self.delivered / seconds:,.0f} records/s"
        return text + self.trouble

    @property
    def amount(self) -> str:
        """What was delivered, and read for it."""
        records = f"{self.delivered:,} record{'s' if self.delivered != 1 else ''}"
        return f"{records} delivered ({show_size(self.size_bytes)} read)"

    @property
    def trouble(self) -> str:
        """What was not delivered; empty if there is nothing."""
        text = ""
        if self.failed:
            text += f"; {self.failed:,} not delivered"
        if self.kept:
            text += f"; {self.kept:,} not delivered, kept in the spool"
        if self.bad:
            text += f"; {self.bad:,} bad line{'s' if self.bad != 1 else ''}"
        return text

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        return {
            "delivered": self.delivered,
            "not_delivered": self.failed,
            "kept": self.kept,
            "bad_lines": self.bad,
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "partitions": [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "records": arrived.records,
                    "start": arrived.start,
                    "stop": arrived.stop,
                }
                for tp, arrived in sorted(self.arrived.items())
            ],
        }


class Shown:
    """The live line of a run: with a bar and the time left if it is known how much there is to read."""

    def __init__(self, counts: Callable[[], Counts], *, total_bytes: int | None) -> None:
        self._counts = counts
        self._total_bytes = total_bytes
        self._delivered, self._read = Pace(), Pace()

    def line(self) -> str:
        """Return the line of this moment."""
        counts, now = self._counts(), time.monotonic()
        self._delivered.observe(now, counts.delivered)
        self._read.observe(now, counts.size_bytes)
        pace = self._delivered if self._total_bytes is None else self._read
        text = progress_line(counts.amount, records_rate(self._delivered), pace=pace, total=self._total_bytes)
        return text + counts.trouble


class Ledger:
    """Sends rows through a producer and keeps track of them."""

    def __init__(self, producer: Producer, *, max_record_bytes: int, say: Callable[[str], None]) -> None:
        self.counts = Counts()
        self._producer = producer
        self._max_record_bytes = max_record_bytes
        self._say = say
        self._open: deque[tuple[Rows, BulkDelivery]] = deque()
        self._reported = 0  # failed after the call, and reported by line
        self._failed_in_all = 0
        self._reason = ""

    def bad(self, source: str, line: int, reason: str) -> None:
        """Report an invalid line."""
        self.counts.bad += 1
        self._say(f"{source}:{line}: {_flat(reason)}")

    def unreadable(self, file: str, reason: str) -> None:
        """Report that the rest of a file cannot be read."""
        self.counts.bad += 1
        self._say(f"{file}: cannot be read: {reason}")

    def note_failures(self, error: NotDelivered) -> None:
        """Note how many records failed in all; which ones is known from their deliveries."""
        self._failed_in_all += error.records
        self._reason = str(error)

    def end(self) -> None:
        """Settle the rest after the producer was closed. Failed records without a line were in the spool before."""
        self.settle()
        others = self._failed_in_all - self._reported
        if others > 0:
            self.counts.failed += others
            self._say(f"not delivered, {others:,} records from the spool: {_flat(self._reason)}")

    def send(self, rows: Rows) -> None:
        """Send rows; those that the producer refuses are reported at once."""
        if not len(rows.numbers):
            return
        try:
            delivery = self._producer.send_table(rows.topic, rows.table)
        except RecordTooLarge:
            self.send(self._without_oversize(rows))
            return
        except OttlaError as error:
            self._failed(rows, np.arange(len(rows.numbers)), str(error))
            return
        except KeyboardInterrupt:
            self._failed(rows, np.arange(len(rows.numbers)), "interrupted")
            raise
        self.counts.size_bytes += rows.size_bytes
        self._open.append((rows, delivery))

    def settle(self) -> None:
        """Count deliveries that settled since the last call, in the order of the lines."""
        while self._open and self._open[0][1].done:
            self._count(*self._open.popleft())

    def _count(self, rows: Rows, delivery: BulkDelivery) -> None:
        failures: dict[str, tuple[OttlaError, list[npt.NDArray[np.int64]]]] = {}
        for tp, numbers, offset, error in delivery.outcomes(0):
            if error is not None:
                failures.setdefault(str(error), (error, []))[1].append(numbers)
                continue
            self.counts.delivered += len(numbers)
            self.counts.arrived.setdefault(tp, Arrived()).add(len(numbers), offset)
        for error, pieces in failures.values():
            which = np.sort(np.concatenate(pieces))
            if isinstance(error, KeptInSpool):
                self.counts.kept += len(which)
                self._report(rows, which, str(error))
            else:
                self._reported += len(which)
                self._failed(rows, which, str(error))

    def _failed(self, rows: Rows, which: npt.NDArray[np.int64], reason: str) -> None:
        self.counts.failed += len(which)
        self._report(rows, which, reason)

    def _report(self, rows: Rows, which: npt.NDArray[np.int64], reason: str) -> None:
        for text in line_ranges(np.asarray(rows.numbers, np.int64)[which]):
            self._say(f"{rows.source}:{text}: not delivered: {_flat(reason)}")

    def _without_oversize(self, rows: Rows) -> Rows:
        limit = self._max_record_bytes
        large = checks.oversize_rows(checks.columns(rows.table)[0], limit)
        for row, size in large:
            reason = f"it takes {size:,} bytes, the limit is {limit:,} (--max-record-size)"
            self._failed(rows, np.array([row]), reason)
        kept = np.setdiff1d(np.arange(len(rows.numbers)), np.array([row for row, _ in large]))
        numbers = np.asarray(rows.numbers, np.int64)[kept]
        return Rows(rows.source, rows.topic, rows.table.take(pa.array(kept)), numbers)


def line_ranges(lines: npt.NDArray[np.int64]) -> Iterator[str]:
    """Yield ascending line numbers as short texts such as `3,7-9`."""
    breaks = np.flatnonzero(np.diff(lines) != 1) + 1
    runs = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in np.split(lines, breaks)]
    for first in range(0, len(runs), _RUNS_PER_TEXT):
        yield ",".join(runs[first : first + _RUNS_PER_TEXT])


def _flat(text: str) -> str:
    """Return the text on one line, even if it has a hint on a second."""
    return "; ".join(line.strip() for line in text.splitlines())
