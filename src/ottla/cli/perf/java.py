"""The same work by Kafka's own tools, ProducerPerformance and ConsumerPerformance, from the pinned jars.

They run one thread, keep their own clock, and print what they measured; this module starts them and reads that.
"""

from __future__ import annotations

import re
import resource
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.errors import LocalClusterError
from ottla.operations.perf.meter import Measured
from ottla.operations.perf.running import IsStopped, Progress
from ottla.operations.perf.workload import Workload

if TYPE_CHECKING:
    from ottla.jobs.brokers import Brokers

_SENT = re.compile(
    r"(\d+)(?: steady state)? records sent, ([0-9.]+) records/sec \([^)]*\), ([0-9.]+) ms avg latency,"
    r" ([0-9.]+) ms max latency, ([0-9.]+) ms 50th, ([0-9.]+) ms 95th, ([0-9.]+) ms 99th, ([0-9.]+) ms 99.9th"
)
_SLOWEST = 1000.0
"""Records per second below which the tool is taken for stuck."""
_START_SECONDS = 60.0
_CPU_NOTE = "its processor time includes the start of the JVM"
_LETTERS_NOTE = "its records are random letters, which compress otherwise"


class JavaRun:
    """One run of a tool. It shows no progress before its end."""

    def __init__(self, kind: str, workload: Workload, brokers: Brokers, *, records: int) -> None:
        self.progress = Progress(phase="running Kafka's own tool")
        self._kind = kind
        self._workload = workload
        self._bootstrap = brokers.bootstrap
        self._records = records

    def run(self, is_stopped: IsStopped = lambda: False) -> Measured:
        """Run the tool. Raises `LocalClusterError` if it fails; interrupted, it measures nothing."""
        from ottla.cluster.tools import run_tool

        main, arguments = self._produce() if self._kind == "produce" else self._consume()
        rate = min(self._workload.rate or _SLOWEST, _SLOWEST)
        before = _children_seconds()
        try:
            printed = run_tool(main, *arguments, timeout=_START_SECONDS + 2 * self._records / rate).decode()
        except LocalClusterError:
            if not is_stopped():
                raise
            return Measured(client="java", records=0, size_bytes=0, seconds=0.0, cpu_seconds=None, is_interrupted=True)
        cpu = _children_seconds() - before
        return produced(printed, self._workload, cpu) if self._kind == "produce" else consumed(printed, cpu)

    def _produce(self) -> tuple[str, Sequence[str]]:
        work = self._workload
        warmup = self._records // 2 if work.warmup else 0
        settings = {
            "bootstrap.servers": self._bootstrap,
            "acks": work.acks,
            "compression.type": work.codec,
            "linger.ms": round(work.linger * 1000),
            "batch.size": work.batch_bytes,
            "max.request.size": 2 * work.batch_bytes,
            "enable.idempotence": str(work.acks == "all").lower(),
        }
        return "org.apache.kafka.tools.ProducerPerformance", (
            *("--topic", work.topics[0], "--record-size", str(work.record_bytes)),
            *("--throughput", "-1" if work.rate is None else str(round(work.rate))),
            *("--num-records", str(self._records + warmup)),
            *(("--warmup-records", str(warmup)) if warmup else ()),
            *("--command-property", *(f"{name}={value}" for name, value in settings.items())),
        )

    def _consume(self) -> tuple[str, Sequence[str]]:
        return "org.apache.kafka.tools.ConsumerPerformance", (
            *("--bootstrap-server", self._bootstrap, "--topic", self._workload.topics[0]),
            *("--num-records", str(self._records), "--timeout", "30000"),
        )


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def produced(printed: str, work: Workload, cpu: float) -> Measured:
    """Return what ProducerPerformance printed. Raises `LocalClusterError` if that is not its report."""
    found = _SENT.findall(printed)
    if not found:
        raise LocalClusterError(f"ProducerPerformance printed no result:\n{printed[-2000:]}")
    count, rate, mean, largest, *percentiles = map(float, found[-1])
    named = dict(zip(("p50", "p95", "p99", "p99.9"), percentiles, strict=True)) | {"mean": mean, "max": largest}
    notes = (_CPU_NOTE,) if work.codec == "none" else (_CPU_NOTE, _LETTERS_NOTE)
    return Measured(
        client="java",
        records=int(count),
        size_bytes=int(count) * work.record_bytes,
        seconds=count / rate,
        cpu_seconds=cpu,
        latencies={name: value / 1000 for name, value in named.items()},
        notes=notes,
    )


def consumed(printed: str, cpu: float) -> Measured:
    """Return what ConsumerPerformance printed. Raises `LocalClusterError` if that is not its report."""
    rows = [line.split(", ") for line in printed.splitlines() if line[:2].isdigit()]
    try:
        *_, row = rows
        size, count, milliseconds = float(row[2]) * (1 << 20), int(row[4]), float(row[7])
    except (ValueError, IndexError) as error:
        raise LocalClusterError(f"ConsumerPerformance printed no result:\n{printed[-2000:]}") from error
    return Measured(
        client="java",
        records=count,
        size_bytes=round(size),
        seconds=max(milliseconds, 1.0) / 1000,
        cpu_seconds=cpu,
        notes=(_CPU_NOTE, "its time begins once the group has given the partitions"),
    )
