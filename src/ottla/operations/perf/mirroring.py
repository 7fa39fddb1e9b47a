"""Measures `ottla.jobs.mirror`: a link of its own copies topics, and the meter counts what the target acknowledged.

The link has a name and a journal that nothing else uses; the caller removes the copies and the journal. The clock runs
from the first acknowledged records to the last: taking over partitions is not counted, as little as the start of a JVM.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

from ottla.errors import MirrorError
from ottla.jobs.brokers import Brokers
from ottla.jobs.mirror_link import Link
from ottla.jobs.mirrors import Mirroring
from ottla.mirror.lane import Phase
from ottla.operations.perf.meter import Measured, Meter
from ottla.operations.perf.running import IsStopped, Progress
from ottla.operations.perf.workload import Workload

LATENCY = "not measured: 'ottla perf latency' does, and 'ottla mirror status' has the lag"
_SAMPLE_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """From where to where, and under which name."""

    source: Brokers
    target: Brokers
    name: str
    """Of the link; copies are called `{name}.{topic}`."""
    replicas: int = -1

    @property
    def journal(self) -> str:
        """The topic with the positions of the link."""
        return f"{self.name}.journal"

    def copy_of(self, topic: str) -> str:
        """Return the name of the copy of a topic."""
        return f"{self.name}.{topic}"

    def link(self, workload: Workload) -> Link:
        """Return the link that is measured."""
        return Link(
            source=self.source,
            target=self.target,
            topics=workload.topics,
            name=self.name,
            rename="{source}.{topic}",
            replicas=self.replicas,
            journal=self.journal,
        )


class MirrorRun:
    """One run. `progress` may be read while it runs."""

    def __init__(self, workload: Workload, route: Route, *, expected: int) -> None:
        self.progress = Progress(seconds=workload.seconds, records=workload.records or expected)
        self._workload = workload
        self._route = route
        self._reached = False

    def run(self, is_stopped: IsStopped = lambda: False) -> Measured:
        """Mirror up to the end of the topics, or of the workload. Raises as `ottla.jobs.mirror` does."""
        work = self._workload
        with Mirroring(self._route.link(work)) as mirroring:
            sampler = _Sampler(mirroring, self.progress)

            def is_over() -> bool:
                meter = self.progress.meter
                if meter is not None:
                    seconds = time.monotonic() - meter.began
                    is_late = work.seconds is not None and seconds >= work.seconds
                    self._reached = is_late or (work.records is not None and meter.records >= work.records)
                return self._reached or is_stopped()

            self.progress.phase = "taking over partitions"
            with sampler:
                mirroring.run(is_stopped=is_over)
            for lane in mirroring.lanes():
                if lane.phase is Phase.FAILED and lane.error is not None:
                    raise lane.error
            return sampler.measured(is_interrupted=is_stopped())


class _Sampler:
    """Looks every few milliseconds at what is acknowledged, in a thread of its own."""

    def __init__(self, mirroring: Mirroring, progress: Progress) -> None:
        self._mirroring = mirroring
        self._progress = progress
        self._began, self._cpu = time.monotonic(), time.process_time()
        self._ended_cpu = self._cpu
        self._samples = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="ottla-perf-mirror", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            self._look()

    def _look(self) -> None:
        counts = [lane.counts for lane in self._mirroring.lanes()]
        records, size = sum(count.records for count in counts), sum(count.size_bytes for count in counts)
        if not records:
            return
        now, meter = time.monotonic(), self._progress.meter
        if meter is None:
            # The first records were acknowledged in the time since the last look.
            meter = Meter(max(self._began, now - _SAMPLE_SECONDS), cpu=self._cpu)
            self._progress.phase, self._progress.meter = "mirroring", meter
        if records > meter.records:
            meter.add(now, records - meter.records, size - meter.size_bytes)
            self._ended_cpu = time.process_time()
            self._samples += 1

    def measured(self, *, is_interrupted: bool) -> Measured:
        """Return what was seen. Raises `MirrorError` if nothing was mirrored, unless it was interrupted."""
        meter = self._progress.meter
        if meter is None and is_interrupted:
            meter = Meter(self._began, cpu=self._cpu)
        if meter is None:
            raise MirrorError("nothing was mirrored: the topics have no committed records")
        notes = ("too short to say: it took less than two looks",) if self._samples < 2 else ()
        return meter.measured("ottla", cpu=self._ended_cpu, is_interrupted=is_interrupted, notes=notes)
