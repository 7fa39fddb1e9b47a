"""The way of records through `ottla consume`: out of a source, through the selection, into an output.

Batches come in from a `Source`; what is to be seen of one is written out before the next is asked for. It stops at the
end of the source, at a number of records, or at a signal. Where records come from and go to is not known here.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from ottla.cli.reading.outputs import Output
from ottla.cli.reading.selecting import Selection
from ottla.cli.terminal.interrupting import Interrupted, Interruption
from ottla.cli.terminal.progress import LiveLine
from ottla.model import OffsetRange, TopicPartition
from ottla.wire.decode import COLUMNS

WHERE = frozenset({"topic", "partition", "offset"})
"""The columns that tell how far a source is."""
_BAR = 24


class Source(Protocol):
    """Where records come from. Leaving the block closes it; whether an error ends the block matters to groups."""

    def open(self, columns: Collection[str]) -> list[OffsetRange] | None:
        """Begins to read these columns; returns all that will come, None when there is no end."""

    def next(self, interruption: Interruption) -> pa.RecordBatch | None:
        """Records of one partition, after those before; None at the end. Raises `Interrupted` at a signal."""

    def cut(self, records: pa.RecordBatch) -> None:
        """Of what `next` gave last, these are written out and nothing after them."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Progress:
    """How much was read, and how much of what there is."""

    def __init__(self) -> None:
        self.records = 0
        """Written, not only read."""
        self._bytes = 0
        self._began = time.monotonic()
        self._starts: dict[TopicPartition, int] = {}
        self._passed: dict[TopicPartition, int] = {}
        self._total: int | None = None

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        """All that will come."""
        self._starts = {one.topic_partition: one.start for one in ranges}
        self._total = sum(map(len, ranges))

    def read(self, records: pa.RecordBatch) -> None:
        """Some more was read."""
        self._bytes += records.nbytes
        if self._starts:
            at, stop = end_of(records)
            self._passed[at] = stop - self._starts.get(at, 0)

    def __str__(self) -> str:
        seconds = max(time.monotonic() - self._began, 0.001)
        rate = f"{self.records:,} records, {self._bytes / 1e6:,.1f} MB, {self.records / seconds:,.0f} records/s"
        if self._total is None:
            return rate
        share = min(1.0, sum(self._passed.values()) / self._total) if self._total else 1.0
        return f"[{'#' * int(share * _BAR):-<{_BAR}}] {share:4.0%}  {rate}"


def end_of(records: pa.RecordBatch) -> tuple[TopicPartition, int]:
    """The partition of these records, and the offset after the last of them."""
    at = TopicPartition(records.column("topic")[0].as_py(), records.column("partition")[0].as_py())
    return at, records.column("offset")[records.num_rows - 1].as_py() + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One run."""

    source: Source
    selection: Selection
    output: Output
    interruption: Interruption
    progress: Progress
    is_shown: bool
    """Whether the progress is, on the terminal."""
    limit: int | None = None

    def run(self) -> None:
        """To the end, the limit or a signal; what was read until then is written out."""
        live: AbstractContextManager[object] = LiveLine(lambda: str(self.progress)) if self.is_shown else nullcontext()
        columns = [name for name in COLUMNS if name in self._columns]
        with live, suppress(Interrupted):
            ranges = self.interruption.wait(lambda: self.source.open(columns))
            if ranges is not None:
                self.progress.expect(ranges)
            while (records := self.source.next(self.interruption)) is not None:
                if self._pass(records):
                    return

    @property
    def _columns(self) -> frozenset[str]:
        # A source must be told how far things are when it is cut, and progress is counted by offsets.
        tracked = WHERE if self.is_shown or self.limit is not None else frozenset()
        return self.output.columns | self.selection.columns | tracked

    def _pass(self, records: pa.RecordBatch) -> bool:
        """Whether that was the last that is wanted."""
        selected = self.selection.of(records)
        left = None if self.limit is None else self.limit - self.progress.records
        is_last = left is not None and selected.num_rows >= left
        shown = selected.slice(0, left) if is_last else selected
        if shown.num_rows:
            self.output.write(shown)
        self.progress.records += shown.num_rows
        if self.is_shown:
            self.progress.read(records)
        if is_last:
            self.source.cut(shown)
        return is_last
