"""Measures latency: records are sent at a rate and read at the same time; each carries when it was due.

Latency is counted from the moment at which a record was due, not from the call that sent it, so that a stall counts for
every record that it delayed. Both clocks are the monotonic one of this process. Records are checked: what does not
arrive, or arrives twice, is reported.
"""

from __future__ import annotations

import secrets
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ottla.errors import ConfigError, ConnectionLost
from ottla.operations.perf.histogram import Histogram
from ottla.operations.perf.meter import Measured, Meter, latencies_of
from ottla.operations.perf.pace import Pace
from ottla.operations.perf.produce import OttlaSending
from ottla.operations.perf.running import IsStopped, Progress, nap, together
from ottla.operations.perf.workload import STAMP_BYTES, Workload

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.fetch.reader import Reader
    from ottla.jobs.brokers import Brokers

LATENCY = "from when a record was due to when a program had it"
ACKNOWLEDGED = "from when a record was due to its acknowledgement"
_STAMP = struct.Struct("<qqq")
_PATIENCE = 10.0
_NANO = 1_000_000_000
_MOST_AT_ONCE = 1000


@dataclass(slots=True)
class Arrivals:
    """Which records have arrived, and how late. Not for several threads at once."""

    run: int
    """The word that marks the records of this run."""
    seen: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(1 << 16, np.bool_))
    count: int = 0
    repeated: int = 0

    def take(self, stamps: npt.NDArray[np.int64], now: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Note stamps, one in each row. Return when the new ones were due, and how late they are, in nanoseconds."""
        ours = stamps[stamps[:, 0] == self.run]
        numbers = ours[:, 1]
        if len(numbers):
            self._reach(int(numbers.max()))
        first = np.unique(numbers, return_index=True)[1]
        fresh = first[~self.seen[numbers[first]]]
        self.repeated += len(numbers) - len(fresh)
        self.seen[numbers[fresh]] = True
        self.count += len(fresh)
        due = ours[fresh, 2]
        return due, now - due

    def _reach(self, number: int) -> None:
        if number >= len(self.seen):
            self.seen = np.concatenate([self.seen, np.zeros(max(number + 1, len(self.seen)), np.bool_)])


def stamps_in(values: pa.Array, size: int) -> npt.NDArray[np.int64]:
    """Return the stamps at the start of values of this size; others are passed over."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    starts = offsets[:-1][np.diff(offsets) == size]
    data = values.buffers()[2]
    if data is None or not len(starts):
        return np.zeros((0, 3), np.int64)
    content = np.frombuffer(data, np.uint8)
    rows = content[starts[:, None].astype(np.int64) + np.arange(STAMP_BYTES)]
    return np.ascontiguousarray(rows).view(np.int64)


class Latencies:
    """One run. `progress` may be read while it runs."""

    def __init__(self, workload: Workload, brokers: Brokers) -> None:
        """Check the settings. Raises `ConfigError` without a rate or an end, and for records that are too small."""
        if workload.rate is None:
            raise ConfigError("latency is measured at a rate: without one, records wait for each other only")
        if workload.seconds is None and workload.records is None:
            raise ConfigError("a latency test needs a duration or a number of records")
        if workload.record_bytes < STAMP_BYTES:
            raise ConfigError(f"records of a latency test have at least {STAMP_BYTES} bytes, which carry their time")
        self.progress = Progress(seconds=workload.seconds, records=workload.records)
        self._workload = workload
        self._brokers = brokers
        self._run = secrets.randbits(62)
        self._filler = workload.pool()[0][: workload.record_bytes - STAMP_BYTES]
        self._sent = 0
        self._is_over = threading.Event()

    def run(self, is_stopped: IsStopped = lambda: False) -> Measured:
        """Send and read, and return what was measured. Raises the first error."""
        work = self._workload
        sending = OttlaSending(work, self._brokers)
        acknowledged, arrivals = Histogram(), Arrivals(self._run)
        try:
            with self._brokers.reader() as reader:
                reading = self._open(reader)
                self.progress.phase = "warming up"
                pace = Pace(work.rate or 1.0, time.monotonic() + 0.05)
                first = int(np.ceil(work.warmup * pace.rate - 1e-9))
                meter = Meter(pace.began + work.warmup)
                cpu: list[float] = []

                def send(stopped: IsStopped) -> None:
                    try:
                        self._send(sending, pace, first, acknowledged, cpu, is_stopped=stopped)
                        self._await(arrivals, stopped)
                    finally:
                        self._is_over.set()
                        reader.close()  # ends the iterator, which would wait for more records

                def receive(_: IsStopped) -> None:
                    self._receive(reading, meter, arrivals, since=int(pace.intended(first, first + 1)[0]))

                together([send, receive], name="latency", is_stopped=is_stopped)
                ended = time.process_time()
        finally:
            sending.close()
        meter.fail(max(0, self._sent - arrivals.count))
        notes = (f"{arrivals.repeated:,} records arrived more than once",) if arrivals.repeated else ()
        spent = ended - cpu[0] if cpu else 0.0
        measured = meter.measured("ottla", cpu=spent, is_interrupted=is_stopped(), notes=notes)
        acks = {f"acknowledged {name}": value for name, value in latencies_of(acknowledged).items()}
        measured.latencies.update(acks)
        return measured

    def _open(self, reader: Reader) -> Iterator[pa.RecordBatch]:
        """Start to read at the present end, so that nothing that is sent from now on is missed."""
        ends = {at: offset for topic in self._workload.topics for at, offset in reader.offsets(topic, "latest").items()}
        return reader.read(list(self._workload.topics), ends, None, columns=("value",))

    def _send(
        self,
        sending: OttlaSending,
        pace: Pace,
        first: int,
        acknowledged: Histogram,
        cpu: list[float],
        *,
        is_stopped: IsStopped,
    ) -> None:
        work, lock = self._workload, threading.Lock()
        warm_until = pace.began + work.warmup
        end = float("inf") if work.records is None else first + work.records
        errors: list[BaseException] = []

        def done_with(start: int, stop: int) -> None:
            late = time.monotonic_ns() - pace.intended(max(start, first), stop)
            with lock:
                acknowledged.record_all(late)

        number = 0
        while number < end and not is_stopped() and not errors:
            now = time.monotonic()
            if work.seconds is not None and now >= warm_until + work.seconds:
                break
            count = min(pace.due(now) - number, _MOST_AT_ONCE, end - number)
            if count <= 0:
                nap(pace.wait(number, now))
                continue
            if not cpu and number >= first:
                cpu.append(time.process_time())
                self.progress.phase = "measuring"
            start, stop = number, number + int(count)
            due = pace.intended(start, stop).tolist()
            values = [_STAMP.pack(self._run, start + at, moment) + self._filler for at, moment in enumerate(due)]
            topic = work.topics[start % len(work.topics)]
            sending.send(
                topic,
                values,
                lambda error, start=start, stop=stop: (
                    errors.append(error)  # type: ignore[misc]
                    if error is not None
                    else (done_with(start, stop) if stop > first else None)
                ),
            )
            self._sent = number = stop
        sending.flush(_PATIENCE if is_stopped() else None)
        if errors:
            raise errors[0]

    def _await(self, arrivals: Arrivals, is_stopped: IsStopped) -> None:
        """Wait until everything has arrived, as long as that can be expected."""
        deadline = time.monotonic() + (1.0 if is_stopped() else _PATIENCE)
        while arrivals.count < self._sent and time.monotonic() < deadline:
            nap(0.01)

    def _receive(self, batches: Iterator[pa.RecordBatch], meter: Meter, arrivals: Arrivals, *, since: int) -> None:
        """Count what was due at `since` or later (nanoseconds): when the first record after the warm-up was."""
        work = self._workload
        self.progress.meter = meter
        try:
            for batch in batches:
                now = time.monotonic_ns()
                due, late = arrivals.take(stamps_in(batch.column("value"), work.record_bytes), now)
                counted = late[due >= since]
                if len(counted):
                    size = len(counted) * work.record_bytes
                    meter.add(now / _NANO, len(counted), size, latencies=counted)
        except ConnectionLost:
            if not self._is_over.is_set():
                raise
