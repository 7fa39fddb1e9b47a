"""The report of a performance test: settings, machine, and what each client did, as plain values and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ottla.operations.perf.meter import Measured, Second

_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that a run of `ottla perf` found."""

    kind: str
    """produce, consume, mirror or latency."""
    date: str
    settings: Mapping[str, Any]
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    runs: Sequence[Measured]
    latency: str
    """What the latency is from and to, in words."""
    notes: tuple[str, ...] = field(default=())

    @property
    def ours(self) -> Measured:
        """The run of Ottla."""
        return self.runs[0]

    def ratios(self) -> dict[str, dict[str, float]]:
        """Return ours divided by theirs for each other client: more is better for `rate`, less for the others."""
        return {run.client: _compared(self.ours, run) for run in self.runs[1:]}

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "kind": self.kind,
            "date": self.date,
            "settings": dict(self.settings),
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "latency": self.latency,
            "runs": [_run(run) for run in self.runs],
            "ratios": self.ratios(),
            "notes": list(self.notes),
        }


def _compared(ours: Measured, theirs: Measured) -> dict[str, float]:
    pairs: dict[str, tuple[float | None, float | None]] = {
        "rate": (ours.records_per_second, theirs.records_per_second),
        "cpu_per_record": (ours.cpu_per_record, theirs.cpu_per_record),
        "p50": (ours.latencies.get("p50"), theirs.latencies.get("p50")),
        "p99": (ours.latencies.get("p99"), theirs.latencies.get("p99")),
    }
    return {name: round(left / right, 3) for name, (left, right) in pairs.items() if left and right}


def _run(run: Measured) -> dict[str, Any]:
    cpu = run.cpu_per_record
    return {
        "client": run.client,
        "records": run.records,
        "bytes": run.size_bytes,
        "seconds": round(run.seconds, _DIGITS),
        "records_per_second": round(run.records_per_second, 1),
        "bytes_per_second": round(run.bytes_per_second, 1),
        "cpu_seconds": None if run.cpu_seconds is None else round(run.cpu_seconds, _DIGITS),
        "cpu_microseconds_per_record": None if cpu is None else round(cpu * 1e6, 4),
        "latency_seconds": {name: round(value, _DIGITS) for name, value in run.latencies.items()},
        "failed": run.failed,
        "interrupted": run.is_interrupted,
        "notes": list(run.notes),
        "series": [_second(second) for second in run.series],
    }


def _second(second: Second) -> dict[str, Any]:
    latencies = {"p50": second.p50, "p99": second.p99, "max": second.maximum}
    return {
        "at": second.at,
        "seconds": round(second.seconds, _DIGITS),
        "records": second.records,
        "bytes": second.size_bytes,
        "latency_seconds": {name: round(value, _DIGITS) for name, value in latencies.items() if value is not None},
    }
