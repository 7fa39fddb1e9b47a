"""What every benchmark shares: a process for each peer, clocks, statistics, and a description of the machine.

Comes in: callables to be timed. Goes out: plain dictionaries that JSON can hold. Nothing here knows what is measured.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = Path(__file__).parent / "results"
_PROCESS_TIMEOUT = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much to measure. `rounds` is how often each peer gets a new process; the peers take turns."""

    rounds: int
    min_samples: int
    max_samples: int
    seconds: float
    """How long to go on with one measurement beyond `min_samples`, in each round."""
    scale: float
    """Share of the full amount of data."""


FULL = Effort(rounds=3, min_samples=3, max_samples=15, seconds=0.5, scale=1.0)
QUICK = Effort(rounds=1, min_samples=2, max_samples=2, seconds=0.0, scale=0.02)


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed call: wall and CPU time of the process, in nanoseconds."""

    wall: int
    cpu: int


class Stopwatch:
    """Wall and CPU time of this process, all of its threads, from its making to `stop`."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time_ns(), time.perf_counter_ns()

    def stop(self) -> Sample:
        """The time since it was made."""
        return Sample(time.perf_counter_ns() - self._wall, time.process_time_ns() - self._cpu)


def paced(count: int, per_second: int, act: Callable[[], None]) -> None:
    """Call `act` at an even pace, sleeping in between; one that is late does not delay those after it."""
    began = time.perf_counter()
    for i in range(count):
        wait = began + i / per_second - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
        act()


def measure(call: Callable[[], object], effort: Effort) -> list[Sample]:
    """Time `call` again and again, after one call that is not counted; garbage is collected between the calls."""
    call()
    samples: list[Sample] = []
    began = time.monotonic()
    while len(samples) < effort.min_samples or (
        len(samples) < effort.max_samples and time.monotonic() - began < effort.seconds
    ):
        gc.collect()
        samples.append(_timed(call))
    return samples


def _timed(call: Callable[[], object]) -> Sample:
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    result = call()
    sample = Sample(time.perf_counter_ns() - wall, time.process_time_ns() - cpu)
    del result  # giving memory back is not part of the call
    return sample


def summary(samples: Iterable[Sample], units: int) -> dict[str, Any]:
    """Median and spread per unit, in nanoseconds of wall and of CPU time."""
    wall = [sample.wall / units for sample in samples]
    cpu = [sample.cpu / units for sample in samples]
    return {
        "ns": round(statistics.median(wall), 2),
        "ns_spread": _spread(wall),
        "cpu_ns": round(statistics.median(cpu), 2),
        "cpu_ns_spread": _spread(cpu),
        "samples": len(wall),
    }


def _spread(values: list[float]) -> dict[str, float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return {"min": round(min(values), 2), "q1": round(low, 2), "q3": round(high, 2), "max": round(max(values), 2)}


def in_own_process(module: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Run `python -m module` with the request as JSON on its standard input; its standard output is the answer."""
    done = subprocess.run(
        [sys.executable, "-m", module],
        input=json.dumps(request),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_PROCESS_TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{module} failed for {request.get('peer')}:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    load = os.getloadavg() if hasattr(os, "getloadavg") else (0.0, 0.0, 0.0)
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_bytes": _memory_bytes(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "load_before": [round(value, 2) for value in load],
    }


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of the packages that took part."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in packages}


def today() -> str:
    """The date for a result, in UTC."""
    return datetime.now(UTC).date().isoformat()


def save(result: Mapping[str, Any]) -> str:
    """Write a result to its file and tell its name from the root of the project."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{result['date']}-{result['bench']}.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path.relative_to(ROOT).as_posix()


def progress(text: str) -> None:
    """Tell the person who waits what is going on."""
    print(text, file=sys.stderr, flush=True)
