"""Counts what clients did, second by second. Threads add to one meter; it does no I/O and reads no clock itself.

Times come in with what is added, in seconds of a monotonic clock. `Measured` goes out.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from ottla.operations.perf.histogram import Histogram, Nanoseconds

SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999}
_NANO = 1e-9


@dataclass(frozen=True, slots=True)
class Second:
    """What was counted in one second of a run. Latencies are in seconds, None without any."""

    at: float
    """Seconds since the run began."""
    seconds: float
    """How long it is: the last one is shorter."""
    records: int
    size_bytes: int
    p50: float | None
    p99: float | None
    maximum: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one client did in one run."""

    client: str
    records: int
    size_bytes: int
    """Of values; of the log for a mirror."""
    seconds: float
    cpu_seconds: float | None
    """Of this process; None where it is not known."""
    histogram: Histogram | None = None
    latencies: dict[str, float] = field(default_factory=dict)
    """Percentiles in seconds, by name; from the histogram, unless another program measured them."""
    series: tuple[Second, ...] = ()
    failed: int = 0
    """Records that were not delivered or did not arrive."""
    is_interrupted: bool = False
    notes: tuple[str, ...] = ()

    @property
    def records_per_second(self) -> float:
        """The rate."""
        return self.records / self.seconds if self.seconds > 0 else 0.0

    @property
    def bytes_per_second(self) -> float:
        """The rate in bytes."""
        return self.size_bytes / self.seconds if self.seconds > 0 else 0.0

    @property
    def cpu_per_record(self) -> float | None:
        """Processor seconds of this process for one record."""
        return None if self.cpu_seconds is None or not self.records else self.cpu_seconds / self.records


def latencies_of(histogram: Histogram) -> dict[str, float]:
    """Return percentiles, mean, smallest and largest value in seconds; nothing for an empty histogram."""
    if not histogram.count:
        return {}
    values = histogram.percentiles(tuple(SHARES.values()))
    named = {name: value * _NANO for name, value in zip(SHARES, values, strict=True)}
    extremes = {"mean": histogram.mean, "min": histogram.minimum, "max": histogram.maximum}
    return named | {name: value * _NANO for name, value in extremes.items()}


class Meter:
    """Adds up records, bytes and latencies from `began` on."""

    def __init__(self, began: float, *, cpu: float = 0.0) -> None:
        self.began = began
        self._cpu = cpu
        self._lock = threading.Lock()
        self._records = self._bytes = self._failed = 0
        self._last = began
        self._histogram, self._current = Histogram(), Histogram()
        self._closed: list[Second] = []
        self._at, self._in_second, self._bytes_in_second = 0, 0, 0

    @property
    def records(self) -> int:
        """How many records were counted so far."""
        return self._records

    @property
    def size_bytes(self) -> int:
        """How many bytes were counted so far."""
        return self._bytes

    def add(self, now: float, records: int, size_bytes: int, *, latencies: Nanoseconds | int | None = None) -> None:
        """Count records, with the latency of each, or one that all of them share."""
        with self._lock:
            self._close_until(int(now - self.began))
            self._last = max(self._last, now)
            self._records += records
            self._bytes += size_bytes
            self._in_second += records
            self._bytes_in_second += size_bytes
            if isinstance(latencies, int):
                self._current.record(latencies, records)
            elif latencies is not None:
                self._current.record_all(latencies)

    def wait(self, nanoseconds: int) -> None:
        """Count a latency that belongs to no record: how long something was waited for."""
        with self._lock:
            self._current.record(nanoseconds)

    def fail(self, records: int) -> None:
        """Count records that were lost."""
        with self._lock:
            self._failed += records

    def measured(
        self,
        client: str,
        *,
        ended: float | None = None,
        cpu: float | None = None,
        is_interrupted: bool = False,
        notes: tuple[str, ...] = (),
    ) -> Measured:
        """Return what was counted. The run ends with the last record, or at `ended`."""
        with self._lock:
            end = self._last if ended is None else max(ended, self._last)
            self._close_until(int(end - self.began))
            if self._in_second or self._current.count:
                self._close(max(end - self.began - self._at, _NANO))
            return Measured(
                client=client,
                records=self._records,
                size_bytes=self._bytes,
                seconds=end - self.began,
                cpu_seconds=None if cpu is None else cpu - self._cpu,
                histogram=self._histogram,
                latencies=latencies_of(self._histogram),
                series=tuple(self._closed),
                failed=self._failed,
                is_interrupted=is_interrupted,
                notes=notes,
            )

    def _close_until(self, second: int) -> None:
        while self._at < second:
            self._close(1.0)

    def _close(self, seconds: float) -> None:
        low, high = self._current.percentiles((0.5, 0.99))
        has_any = self._current.count > 0
        self._closed.append(
            Second(
                float(self._at),
                seconds,
                self._in_second,
                self._bytes_in_second,
                low * _NANO if has_any else None,
                high * _NANO if has_any else None,
                self._current.maximum * _NANO if has_any else None,
            )
        )
        self._histogram.merge(self._current)
        if has_any:
            self._current = Histogram()
        self._at += 1
        self._in_second = self._bytes_in_second = 0
