"""The Java client, through Kafka's own ProducerPerformance: with its defaults, and with batches as large as ours.

The tool keeps the clock itself, from its first record after the warm-up to the last acknowledgement, and takes the same
values as everybody else from a file. Its processor time is not known.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from bench.harness import Sample
from bench.peers.produce import BATCH_BYTES, FLUSH_SECONDS, LINGER, Job, Sent
from ottla.cluster.tools import run_tool

_STEADY = re.compile(r"(\d+) steady state records sent, ([0-9.]+) records/sec")
# More memory for its buffers, or a larger heap, made it no faster.
_TUNED = {"batch.size": BATCH_BYTES, "max.request.size": 2 * BATCH_BYTES}


def _perf(settings: dict[str, Any]) -> Callable[[Job], Sent]:
    def run(job: Job) -> Sent:
        warmup = job.records // 2
        properties = settings | {
            "bootstrap.servers": job.bootstrap,
            "acks": job.acks,
            "compression.type": job.codec,
            "linger.ms": int(LINGER * 1000),
        }
        printed = run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", job.topic, "--payload-file", job.payload, "--throughput", "-1"),
            *("--num-records", str(job.records + warmup), "--warmup-records", str(warmup)),
            *("--command-property", *(f"{name}={value}" for name, value in properties.items())),
            timeout=FLUSH_SECONDS,
        ).decode()
        return Sent(job.records, warmup, Sample(_wall(printed, job.records), 0))

    return run


def _wall(printed: str, records: int) -> int:
    """Nanoseconds for so many records at the rate that the tool states in its last line."""
    *_, (count, rate) = _STEADY.findall(printed)
    if int(count) != records:
        raise AssertionError(f"{count} records after the warm-up instead of {records}:\n{printed}")
    return round(records / float(rate) * 1e9)


VARIANTS = {"default batches": _perf({}), "large batches": _perf(_TUNED)}
PACED: dict[str, Any] = {}
