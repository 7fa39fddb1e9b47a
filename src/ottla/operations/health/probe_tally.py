"""What a probe of one broker saw: availability, latencies, loss and duplicates.

What was sent, acknowledged, refused and read comes in, with times by one monotonic clock; a `BrokerReport` goes out.
Memory is bounded however long it runs. Pure: no socket, no clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds of the histogram of latencies."""
_SAMPLES = 10_000
"""Latencies that percentiles are taken from: the latest."""
_REMEMBERED = 10_000
"""Records that were read, of which a second copy is recognized."""


class Latencies:
    """Latencies of one kind: a histogram of all, and percentiles of the latest."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS) + 1)
        """How many were in each bucket; the last is without bound."""
        self.total = 0.0
        """The sum of all, in seconds."""
        self._latest: deque[float] = deque(maxlen=_SAMPLES)

    def add(self, seconds: float) -> None:
        """Count one."""
        self.counts[bisect_left(BUCKETS, seconds)] += 1
        self.total += seconds
        self._latest.append(seconds)

    def percentile(self, share: float) -> float | None:
        """Return the latency that this share of the latest was at most; None without any."""
        ordered = sorted(self._latest)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None


@dataclass(frozen=True, slots=True)
class LatencyReport:
    """Latencies in seconds. Percentiles are of the latest ones, the histogram is of all."""

    p50: float
    p99: float
    most: float
    counts: tuple[int, ...]
    """How many were in each of `BUCKETS`; the last is without bound."""
    total: float


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """How one broker served the probe."""

    broker: int
    partition: int | None
    """The partition that the probe writes to; None if the broker leads none yet."""
    sent: int
    acknowledged: int
    failed: int
    """Writes that were refused or not acknowledged in time."""
    received: int
    lost: int
    """Records that were acknowledged and that a reader did not get, although it got later ones."""
    duplicates: int
    corrupt: int
    failed_in_a_row: int
    """Failures since the last success: 0 if the broker serves."""
    error: str | None
    """Why the last write or read failed, if it did."""
    down_since: float | None
    """When the present failures began, in seconds since 1970."""
    produce: LatencyReport | None
    round_trip: LatencyReport | None

    @property
    def availability(self) -> float | None:
        """The share of writes that were acknowledged; None before the first."""
        decided = self.acknowledged + self.failed
        return self.acknowledged / decided if decided else None

    @property
    def is_up(self) -> bool:
        """Whether the last write and read succeeded."""
        return self.failed_in_a_row == 0

    def to_json(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "broker": self.broker,
            "partition": self.partition,
            "up": self.is_up,
            "availability": self.availability,
            "sent": self.sent,
            "acknowledged": self.acknowledged,
            "failed": self.failed,
            "received": self.received,
            "lost": self.lost,
            "duplicates": self.duplicates,
            "corrupt": self.corrupt,
            "error": self.error,
            "down_since": self.down_since,
            "produce_seconds": _percentiles_json(self.produce),
            "round_trip_seconds": _percentiles_json(self.round_trip),
        }


class ProbeTally:
    """Counts what happens to the records of one broker. They are numbered from 0 on, in the order they are sent."""

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.partition: int | None = None
        self.produce = Latencies()
        self.round_trip = Latencies()
        self._sent = self._acknowledged = self._failed = self._received = 0
        self._lost = self._duplicates = self._corrupt = 0
        self._in_a_row = 0
        self._error: str | None = None
        self._down_since: float | None = None
        self._sent_at: OrderedDict[int, float] = OrderedDict()
        self._awaited: OrderedDict[int, int] = OrderedDict()
        """Offsets of acknowledged records that were not read yet, by number."""
        self._seen: OrderedDict[int, None] = OrderedDict()

    def sent(self, number: int, at: float) -> None:
        """A record goes out."""
        self._sent += 1
        self._sent_at[number] = at
        _trim(self._sent_at)

    def withdrawn(self, number: int) -> None:
        """The record does not count: the partition was too new to take it."""
        self._sent -= 1
        self._sent_at.pop(number, None)

    def acknowledged(self, number: int, offset: int, at: float) -> None:
        """The broker has it."""
        self._acknowledged += 1
        self.produce.add(at - self._sent_at.get(number, at))
        if number not in self._seen:
            self._awaited[number] = offset
            # A reader that is stuck for that long has an error of its own; these cannot count as lost.
            _trim(self._awaited)

    def failed(self, error: str, wall: float) -> None:
        """A write or a read failed. `wall` is the time in seconds since 1970."""
        self._error = error
        self._in_a_row += 1
        if self._down_since is None:
            self._down_since = wall

    def write_failed(self, number: int, error: str, wall: float) -> None:
        """The record was refused, or no answer came: it may or may not be in the log."""
        self._failed += 1
        self.failed(error, wall)

    def works(self) -> None:
        """A record went out and came back."""
        self._in_a_row, self._error, self._down_since = 0, None, None

    def read(self, number: int, offset: int, at: float) -> None:
        """A record of this run was read at an offset."""
        if number in self._seen:
            self._duplicates += 1
            return
        self._seen[number] = None
        _trim(self._seen)
        self._received += 1
        self._awaited.pop(number, None)
        if number in self._sent_at:
            self.round_trip.add(at - self._sent_at.pop(number))

    def read_up_to(self, offset: int) -> None:
        """Everything before this offset was read: what was acknowledged there and did not come is lost."""
        gone = [number for number, place in self._awaited.items() if place < offset]
        for number in gone:
            del self._awaited[number]
        self._lost += len(gone)

    def damaged(self) -> None:
        """A record was read whose checksum does not match."""
        self._corrupt += 1

    def report(self) -> BrokerReport:
        """Return what is known now."""
        return BrokerReport(
            self.broker,
            self.partition,
            self._sent,
            self._acknowledged,
            self._failed,
            self._received,
            self._lost,
            self._duplicates,
            self._corrupt,
            self._in_a_row,
            self._error,
            self._down_since,
            _percentiles(self.produce),
            _percentiles(self.round_trip),
        )


def worst_of(reports: Sequence[BrokerReport]) -> list[BrokerReport]:
    """Return the reports of brokers that are down, or lost, repeated or damaged records."""
    return [each for each in reports if not each.is_up or each.lost or each.duplicates or each.corrupt]


def _percentiles(latencies: Latencies) -> LatencyReport | None:
    values = [latencies.percentile(share) for share in (0.5, 0.99, 1.0)]
    p50, p99, most = values
    if p50 is None or p99 is None or most is None:
        return None
    return LatencyReport(p50, p99, most, tuple(latencies.counts), latencies.total)


def _percentiles_json(values: LatencyReport | None) -> dict[str, float] | None:
    return None if values is None else {"p50": values.p50, "p99": values.p99, "max": values.most}


def _trim(memory: OrderedDict[int, Any]) -> None:
    while len(memory) > _REMEMBERED:
        memory.popitem(last=False)
