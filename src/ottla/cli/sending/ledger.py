"""Keeps the books of a command that sends lines: what is under way, what arrived where, and which lines did not.

`Rows` come in and go to a producer; when their deliveries are decided, counts go up and every line that failed is named
with its reason. Memory is bounded by what the producer holds: a delivery is dropped once it is decided.
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

from ottla.cli.sending.rows import Rows
from ottla.errors import KeptInSpool, NotDelivered, OttlaError, RecordTooLarge
from ottla.model import TopicPartition
from ottla.produce import records as checks
from ottla.produce.delivery import BulkDelivery
from ottla.produce.producer import Producer

_RUNS_A_TEXT = 20


@dataclass(slots=True)
class Arrived:
    """What a partition has of us: so many records from `start` up to `stop`, maybe with others' between them."""

    records: int = 0
    start: int = -1
    stop: int = -1

    def add(self, records: int, offset: int) -> None:
        """More of them, at `offset`, or nobody knows where."""
        self.records += records
        if offset >= 0:
            self.start = offset if self.start < 0 else min(self.start, offset)
            self.stop = max(self.stop, offset + records)


@dataclass(slots=True)
class Counts:
    """How far it is."""

    size_bytes: int = 0
    delivered: int = 0
    failed: int = 0
    """Records that were not delivered."""
    kept: int = 0
    """Records that were not delivered and are safe in the spool."""
    bad: int = 0
    """Lines that are no records, and files that could not be read."""
    began: float = field(default_factory=time.monotonic)
    arrived: dict[TopicPartition, Arrived] = field(default_factory=dict)

    def start(self) -> None:
        """The first line is about to be read."""
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self.began

    @property
    def is_complete(self) -> bool:
        """Whether every line that was read has arrived."""
        return not self.bad and not self.failed and not self.kept

    def __str__(self) -> str:
        seconds = self.seconds
        rate = self.delivered / max(seconds, 1e-3)
        amount = f"{self.delivered:,} record{'s' if self.delivered != 1 else ''} delivered"
        text = f"{amount} ({self.size_bytes / 1e6:,.1f} MB read) in {seconds:.1f} s, {rate:,.0f} a second"
        if self.failed:
            text += f"; {self.failed:,} not delivered"
        if self.kept:
            text += f"; {self.kept:,} not delivered, kept in the spool"
        if self.bad:
            text += f"; {self.bad:,} bad line{'s' if self.bad != 1 else ''}"
        return text

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "delivered": self.delivered,
            "not_delivered": self.failed,
            "kept": self.kept,
            "bad_lines": self.bad,
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 3),
            "partitions": [
                {"topic": at.topic, "partition": at.partition, "records": a.records, "start": a.start, "stop": a.stop}
                for at, a in sorted(self.arrived.items())
            ],
        }


class Ledger:
    """What one command sends through one producer."""

    def __init__(self, producer: Producer, *, max_record_bytes: int, say: Callable[[str], None]) -> None:
        self.counts = Counts()
        self._producer = producer
        self._max_record_bytes = max_record_bytes
        self._say = say
        self._open: deque[tuple[Rows, BulkDelivery]] = deque()
        self._named = 0  # records that failed after the call, and were named
        self._told = 0
        self._reason = ""

    def bad(self, source: str, line: int, reason: str) -> None:
        """A line is no record."""
        self.counts.bad += 1
        self._say(f"{source}:{line}: {_flat(reason)}")

    def unreadable(self, file: str, reason: str) -> None:
        """The rest of a file cannot be read."""
        self.counts.bad += 1
        self._say(f"{file}: cannot be read: {reason}")

    def told(self, error: NotDelivered) -> None:
        """The producer says how many have failed in all; who they are is known from their deliveries."""
        self._told += error.records
        self._reason = str(error)

    def end(self) -> None:
        """The producer is closed: books the rest. What failed without a line was in the spool before."""
        self.settle()
        others = self._told - self._named
        if others > 0:
            self.counts.failed += others
            self._say(f"not delivered, {others:,} records that were in the spool before: {_flat(self._reason)}")

    def send(self, rows: Rows) -> None:
        """Hands rows over; those that are refused at the call are named at once."""
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
        """Books what was decided since the last time, in the order of the lines."""
        while self._open and self._open[0][1].done:
            self._book(*self._open.popleft())

    def _book(self, rows: Rows, delivery: BulkDelivery) -> None:
        failures: dict[str, tuple[OttlaError, list[npt.NDArray[np.int64]]]] = {}
        for at, numbers, offset, error in delivery.outcomes(0):
            if error is not None:
                failures.setdefault(str(error), (error, []))[1].append(numbers)
                continue
            self.counts.delivered += len(numbers)
            self.counts.arrived.setdefault(at, Arrived()).add(len(numbers), offset)
        for error, pieces in failures.values():
            which = np.sort(np.concatenate(pieces))
            if isinstance(error, KeptInSpool):
                self.counts.kept += len(which)
                self._name(rows, which, str(error))
            else:
                self._named += len(which)
                self._failed(rows, which, str(error))

    def _failed(self, rows: Rows, which: npt.NDArray[np.int64], reason: str) -> None:
        self.counts.failed += len(which)
        self._name(rows, which, reason)

    def _name(self, rows: Rows, which: npt.NDArray[np.int64], reason: str) -> None:
        for text in line_ranges(np.asarray(rows.numbers, np.int64)[which]):
            self._say(f"{rows.source}:{text}: not delivered: {_flat(reason)}")

    def _without_oversize(self, rows: Rows) -> Rows:
        limit = self._max_record_bytes
        large = checks.oversize_rows(checks.columns(rows.table)[0], limit)
        for row, size in large:
            reason = f"it takes {size:,} bytes, the limit is {limit:,} (--max-record-bytes)"
            self._failed(rows, np.array([row]), reason)
        kept = np.setdiff1d(np.arange(len(rows.numbers)), np.array([row for row, _ in large]))
        numbers = np.asarray(rows.numbers, np.int64)[kept]
        return Rows(rows.source, rows.topic, rows.table.take(pa.array(kept)), numbers)


def line_ranges(lines: npt.NDArray[np.int64]) -> Iterator[str]:
    """Ascending line numbers as texts like `3,7-9`, none of them too long."""
    breaks = np.flatnonzero(np.diff(lines) != 1) + 1
    runs = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in np.split(lines, breaks)]
    for at in range(0, len(runs), _RUNS_A_TEXT):
        yield ",".join(runs[at : at + _RUNS_A_TEXT])


def _flat(text: str) -> str:
    """On one line, also when it has a hint."""
    return "; ".join(line.strip() for line in text.splitlines())
