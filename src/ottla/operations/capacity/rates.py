"""What one core, one partition and one broker core can do: measured by `ottla perf`, or built-in and marked as such.

Reports of `ottla perf` come in as parsed JSON; figures with their source go out. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ottla.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Figure:
    """A rate or a cost, where it comes from, and whether it was measured."""

    value: float
    source: str
    is_measured: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor seconds for a record of a size: a part for the record and a part for each of its bytes."""

    per_record: float
    per_byte: float
    source: str
    is_measured: bool = False
    least: float = 0.0
    """What a record costs however small it is."""

    def of(self, record_bytes: float) -> Figure:
        """Return the cost of one record."""
        cost = max(self.least, self.per_record + self.per_byte * record_bytes)
        return Figure(cost, self.source, self.is_measured)


def _through(small: float, large: float, source: str) -> Cost:
    """Return the cost through two points: nanoseconds for records of 100 and of 1,000 bytes."""
    per_byte = (large - small) / 900
    return Cost((small - 100 * per_byte) * 1e-9, per_byte * 1e-9, source)


_BENCH = "bench/results, two cores of an AMD EPYC, the slowest run"
_TEXT = "Confluent's text on choosing partitions: tens of MB/s for a partition; the low end"


PRODUCER = _through(300.9, 1242.3, f"{_BENCH}: send_many, acks=all")
CONSUMER = _through(134.6, 776.7, f"{_BENCH}: Consumer, without the program's own work")
ARCHIVE = _through(755.7, 6020.3, f"{_BENCH}: archive without Spark, both cores counted")
MIRROR = Cost(0.0, 1.198e-9, f"{_BENCH}: mirror, zstd, per byte of the log")
_GOOGLE = "Google's sizing page for managed Kafka: 20 MB/s written per core, reading costs a quarter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Everything that a plan takes from measurements. The defaults are conservative."""

    producer: Cost = PRODUCER
    consumer: Cost = CONSUMER
    mirror: Cost = MIRROR
    archive: Cost = ARCHIVE
    partition_in: Figure = Figure(10e6, _TEXT)
    """Bytes per second that one partition takes."""
    partition_out: Figure | None = None
    """Bytes per second that one consumer reads; None for what its link carries."""
    consumer_link: Figure = Figure(125e6, "a consumer on a link of 1 Gbit/s")
    broker_core: Figure = Figure(20e6, _GOOGLE)

    def with_report(self, report: Mapping[str, Any], name: str) -> Rates:
        """Return the rates with those of a report of `ottla perf`. Raises `ConfigError` if it is none."""
        try:
            kind, settings = report["kind"], report["settings"]
            run = next(run for run in report["runs"] if run["client"] == "ottla")
            records, payload = int(run["records"]), float(run["bytes"])
            seconds, cpu = float(run["seconds"]), float(run["cpu_seconds"])
            partitions, threads = int(settings["partitions"]), int(settings["threads"])
            when = str(report["date"])
        except (KeyError, TypeError, ValueError, OverflowError, StopIteration) as error:
            raise ConfigError(f"{name} is not a report of 'ottla perf --json': {error!r}") from error
        if not all(map(math.isfinite, (payload, seconds, cpu, payload / max(seconds, 1e-9)))):
            raise ConfigError(f"{name}: the report has numbers that cannot be")
        if records < 1 or payload <= 0 or seconds <= 0 or cpu <= 0 or partitions < 1 or threads < 1:
            raise ConfigError(f"{name}: the report has no measured records")
        source = f"measured by 'ottla perf {kind}' on {when}"
        # One size was measured: a smaller record may cost as much, a larger one in proportion.
        cost = Cost(0.0, cpu / payload, source, is_measured=True, least=cpu / records)
        match kind:
            case "produce":
                rate = Figure(payload / seconds / partitions, source, is_measured=True)
                return replace(self, producer=cost, partition_in=rate)
            case "consume":
                rate = Figure(payload / seconds / threads, source, is_measured=True)
                return replace(self, consumer=cost, partition_out=rate)
            case "mirror":
                return replace(self, mirror=replace(cost, least=0.0))
        raise ConfigError(f"{name}: reports of 'ottla perf' produce, consume and mirror are accepted, this is {kind}")
