"""The loop of `ottla consume`: records from a source, through filters, to an output.

Each batch is written out before the next one is fetched. The loop ends at the end of the source, at a number of
records, or at a signal.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from ottla.cli.consume.filters import Filters
from ottla.cli.consume.outputs import Output
from ottla.cli.output.pace import Pace, progress_line, records_rate
from ottla.cli.terminal.interruption import Interrupted, Interruption
from ottla.cli.terminal.progress import LiveLine
from ottla.model import OffsetRange, TopicPartition
from ottla.wire.decode import COLUMNS

POSITION_COLUMNS = frozenset({"topic", "partition", "offset"})
"""The columns that say how far a source is."""


class Source(Protocol):
    """Where records come from. Leaving the block closes it; a group commits only if no error ends the block."""

    def open(self, columns: Collection[str]) -> list[OffsetRange] | None:
        """Start to read these columns. Returns all ranges that will be read, None if there is no end."""

    def next(self, interruption: Interruption) -> pa.RecordBatch | None:
        """Return the next records, of one partition; None at the end. Raises `Interrupted` at a signal."""

    def cut(self, records: pa.RecordBatch) -> None:
        """Accept that of the last batch only these records were written out."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Progress:
    """How much was read, and of how much."""

    def __init__(self) -> None:
        self.records = 0
        """Written, not only read."""
        self._bytes = 0
        self._pace, self._place = Pace(), Pace()
        self._starts: dict[TopicPartition, int] = {}
        self._passed: dict[TopicPartition, int] = {}
        self._total: int | None = None

    def expect(self, ranges: Sequence[OffsetRange]) -> None:
        """Set all ranges that will be read."""
        self._starts = {range_.topic_partition: range_.start for range_ in ranges}
        self._total = sum(map(len, ranges))

    def read(self, records: pa.RecordBatch) -> None:
        """Count records that were read."""
        self._bytes += records.nbytes
        if self._starts:
            tp, stop = end_of(records)
            self._passed[tp] = stop - self._starts.get(tp, 0)

    def __str__(self) -> str:
        now = time.monotonic()
        self._pace.observe(now, self.records)
        parts = (f"{self.records:,} records", f"{self._bytes / 1e6:,.1f} MB", records_rate(self._pace))
        if self._total is None:
            return progress_line(*parts, pace=self._pace)
        # Offsets that were passed say how far it is: filters and gaps leave out records.
        self._place.observe(now, sum(self._passed.values()))
        return progress_line(*parts, pace=self._place, total=self._total)


def end_of(records: pa.RecordBatch) -> tuple[TopicPartition, int]:
    """Return the partition of these records, and the offset after the last of them."""
    tp = TopicPartition(records.column("topic")[0].as_py(), records.column("partition")[0].as_py())
    return tp, records.column("offset")[records.num_rows - 1].as_py() + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """One run of the loop."""

    source: Source
    filters: Filters
    output: Output
    interruption: Interruption
    progress: Progress
    is_shown: bool
    """Whether progress is shown on the terminal."""
    limit: int | None = None

    def run(self) -> None:
        """Run to the end, the limit or a signal; everything read until then is written out."""
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
        # `Source.cut` and the progress need offsets.
        tracked = POSITION_COLUMNS if self.is_shown or self.limit is not None else frozenset()
        return self.output.columns | self.filters.columns | tracked

    def _pass(self, records: pa.RecordBatch) -> bool:
        """Write the selected records; return whether the limit is reached."""
        selected = self.filters.apply(records)
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
