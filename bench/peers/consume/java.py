"""The Java client, through Kafka's own ConsumerPerformance: with its default fetches, and with large ones.

The tool reads the whole topic as the only member of a group and reports how far it is every few milliseconds. Its rate
is that of the second half: a virtual machine needs a second or two to get up to speed. Its processor time is not known.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from datetime import datetime
from typing import Any

from bench.harness import Sample
from bench.peers.consume import WAIT_SECONDS, Job, Received
from ottla.cluster.tools import run_tool

_INTERVAL_MS = 20
_WHEN, _COUNT = "time", "data.consumed.in.nMsg"
_TIMED_OUT = "Exiting before consuming"
_SECONDS = 120.0
_TUNED = ("--fetch-size", str(8 << 20))


def _perf(*settings: str) -> Callable[[Job], Received]:
    def run(job: Job) -> Received:
        if job.start:
            raise AssertionError("the tool cannot begin in the middle of a topic")
        printed = run_tool(
            "org.apache.kafka.tools.ConsumerPerformance",
            *("--bootstrap-server", job.bootstrap, "--topic", job.topic, "--num-records", str(job.records)),
            *("--show-detailed-stats", "--reporting-interval", str(_INTERVAL_MS)),
            *("--timeout", str(int(WAIT_SECONDS * 1000)), *settings),
            timeout=_SECONDS,
        ).decode()
        return second_half(printed, job.records)

    return run


def second_half(printed: str, records: int) -> Received:
    """From the first line that has half of the records to the last one."""
    if _TIMED_OUT in printed:
        raise AssertionError(printed[-2000:])
    report = csv.DictReader(printed.splitlines(), skipinitialspace=True)
    lines = [(datetime.strptime(row[_WHEN], "%Y-%m-%d %H:%M:%S:%f"), int(row[_COUNT])) for row in report]
    (began, before), *_ = (line for line in lines if line[1] >= records // 2)
    ended, after = lines[-1]
    if after == before:
        raise AssertionError(f"too few records for a rate: the report ends with {before} of {records}:\n{printed}")
    return Received(after - before, Sample(int((ended - began).total_seconds() * 1e9), 0))


VARIANTS = {"default fetches": _perf(), "large fetches": _perf(*_TUNED)}
PACED: dict[str, Any] = {}
