"""One module for each way to have Kafka in Spark, all with the same names; each is a process with one Spark session.

    VARIANTS    what it can be asked for, by name: a function from a `Job` to what it `Moved`
    PACED       the same for small batches: from a `Job` to the seconds that each micro-batch took

A variant runs on a small topic right before the clock starts, so that the JVM, the kernels and also the Python workers
are warm: Spark ends workers that had nothing to do for a minute, and the others' turns take longer than that.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.harness import Sample

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SMALL_BATCH_RECORDS = 10
_MASTER = "local[2]"
_DRIVER_MEMORY = "2g"
MASTER_AND_MEMORY = {
    "spark.master": _MASTER,
    "spark.driver.memory": _DRIVER_MEMORY,
    "spark.ui.enabled": "false",
}
"""The same for everybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one variant: all `records` of `topic`, or so many new ones into it."""

    bootstrap: str
    topic: str
    records: int
    record_bytes: int
    folder: str
    """Empty, for what is written to the disk."""
    small_topic: str
    small_records: int

    def small(self) -> Job:
        """All of the small topic, into a folder beside."""
        folder = Path(self.folder) / "small"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return replace(self, topic=self.small_topic, records=self.small_records, folder=str(folder))


@dataclass(frozen=True, slots=True)
class Moved:
    """How many records were moved, and how long that took."""

    records: int
    time: Sample


def timed(prepare: Callable[[Job], Callable[[], int | None]]) -> Callable[[Job], Moved]:
    """A variant: `prepare` makes the work, the clock covers its call. It is done on the small topic before. What the
    work returns is how many records it moved; None if it cannot know."""

    def run(job: Job) -> Moved:
        prepare(job.small())()
        work = prepare(job)
        began = time.perf_counter_ns()
        moved = work()
        return Moved(job.records if moved is None else moved, Sample(time.perf_counter_ns() - began, 0))

    return run


def rows(spark: SparkSession, job: Job) -> DataFrame:
    """New rows with a value, in memory."""
    values = spark.range(job.records, numPartitions=2).selectExpr(
        f"lpad(cast(id as string), {job.record_bytes}, 'x') as value"
    )
    values = values.persist()
    values.count()
    return values


def batch_seconds(query: Any) -> list[float]:
    """What each micro-batch of a query that has ended took, without those that had nothing to do."""
    return [
        progress["durationMs"]["triggerExecution"] / 1000
        for progress in query.recentProgress
        if progress["numInputRows"]
    ]


def without_first(seconds: Iterable[float]) -> list[float]:
    """Without the first batches, in which the query starts up."""
    return list(seconds)[5:]
