"""Measures consuming: threads read a part of the partitions each, from beginning to end, and the meter counts records.

Ranges and a function that opens a `Reading` come in, so that every client runs in the same loop. Nothing is committed
and no group is joined: the cluster is left as it was.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ottla.errors import ConfigError
from ottla.model import OffsetRange
from ottla.operations.perf.meter import Measured, Meter
from ottla.operations.perf.running import IsStopped, Progress, together
from ottla.operations.perf.workload import Workload

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.jobs.brokers import Brokers

LATENCY = "how long a call waited for the next batch of records"

Portions = Generator[tuple[int, int], None, None]
"""Records and bytes of values, of one portion after the other; the first, once the client is connected, has none."""
Reading = Callable[[Sequence[OffsetRange]], Portions]
"""Opens a client and yields what it reads of the ranges; closing the generator closes the client."""


def ottla_reading(brokers: Brokers) -> Reading:
    """Return how Ottla reads: all columns, as Arrow."""

    def read(ranges: Sequence[OffsetRange]) -> Portions:
        with brokers.reader() as reader:
            reader.cluster.metadata([])
            yield 0, 0
            batches = reader.read(list(ranges))
            try:
                for batch in batches:
                    yield batch.num_rows, _payload(batch.column("value"))
            finally:
                batches.close()

    return read


def _payload(values: pa.Array) -> int:
    """Return the bytes of all values of a column."""
    offsets = values.buffers()[1]
    if offsets is None or not len(values):
        return 0
    numbers = np.frombuffer(offsets, np.int32)
    return int(numbers[values.offset + len(values)]) - int(numbers[values.offset])


def divided(ranges: Sequence[OffsetRange], parts: int) -> list[list[OffsetRange]]:
    """Divide ranges among threads, as evenly as whole ranges can be. Raises `ConfigError` if there are too few."""
    if parts > len(ranges):
        raise ConfigError(f"{parts} threads for {len(ranges)} partitions with records: each thread needs one")
    loads: list[list[OffsetRange]] = [[] for _ in range(parts)]
    for unit in sorted(ranges, key=len, reverse=True):
        min(loads, key=lambda load: sum(map(len, load))).append(unit)
    return loads


class Consuming:
    """One run of one client. `progress` may be read while it runs."""

    def __init__(
        self, workload: Workload, ranges: Sequence[OffsetRange], read: Reading, *, client: str = "ottla"
    ) -> None:
        self.progress = Progress(seconds=workload.seconds, records=workload.records or sum(map(len, ranges)))
        self._workload = workload
        self._parts = divided([unit for unit in ranges if len(unit)], workload.threads)
        self._read = read
        self._client = client
        self._times = 0

    def run(self, is_stopped: IsStopped = lambda: False) -> Measured:
        """Warm up, measure, and return what was measured. Raises the first error of a thread.

        With `seconds`, it starts again at the beginning until they are over.
        """
        work = self._workload
        if work.warmup:
            self.progress.phase = "warming up"
            self._round(Meter(time.monotonic()), records=None, seconds=work.warmup, is_stopped=is_stopped)
        self._times = 0
        self._round(None, records=work.records, seconds=work.seconds, is_stopped=is_stopped)
        meter = self.progress.meter
        assert meter is not None
        notes = (f"read {self._times} times from beginning to end",) if self._times > len(self._parts) else ()
        return meter.measured(self._client, cpu=time.process_time(), is_interrupted=is_stopped(), notes=notes)

    def _round(self, meter: Meter | None, *, records: int | None, seconds: float | None, is_stopped: IsStopped) -> None:
        """Read once, or until the round is over. Without a meter, it is the measured round, which makes its own."""
        opened = [self._read(ranges) for ranges in self._parts]
        try:
            for portions in opened:
                next(portions)  # connects
            if meter is None:
                meter = Meter(time.monotonic(), cpu=time.process_time())
                self.progress.phase, self.progress.meter = "consuming", meter
            parts = [
                _part(self._consume, portions, ranges, meter, records, seconds)
                for portions, ranges in zip(opened, self._parts, strict=True)
            ]
            together(parts, name="consume", is_stopped=is_stopped)
        finally:
            for portions in opened:
                portions.close()

    def _consume(
        self,
        portions: Portions,
        ranges: list[OffsetRange],
        meter: Meter,
        records: int | None,
        seconds: float | None,
        *,
        is_stopped: IsStopped,
    ) -> None:
        began = time.monotonic()
        while True:
            before, counted = time.monotonic_ns(), 0
            try:
                for count, size in portions:
                    now = time.monotonic_ns()
                    meter.add(now * 1e-9, count, size)
                    meter.wait(now - before)
                    counted += count
                    is_over = seconds is not None and now * 1e-9 >= began + seconds
                    if is_over or is_stopped() or (records is not None and meter.records >= records):
                        return
                    before = time.monotonic_ns()
            finally:
                portions.close()
            self._times += 1
            if seconds is None or not counted:
                return
            portions = self._read(ranges)
            next(portions)


def _part(consume: Callable[..., None], *arguments: object) -> Callable[[IsStopped], None]:
    return lambda stopped: consume(*arguments, is_stopped=stopped)
